"""The list of methods with their settings."""

from __future__ import annotations

from rich.table import Table

from clpu import terminal
from clpu.methods import METHODS
from clpu.settings import setting_fields


def show() -> None:
    """Print every method, its first line of description, whether it is exact, and its settings."""
    console = terminal.console()
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for column in ("method", "forgetting", "what it does"):
        table.add_column(column, no_wrap=column != "what it does")
    for name, method in METHODS.items():
        kind = terminal.text("exact", "green") if method.forgets_exactly() else terminal.text("approximate", "yellow")
        about = (method.__doc__ or "").strip().partition("\n")[0]
        table.add_row(terminal.text(name, "bold"), kind, terminal.text(about))
    console.print(table)
    settings = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("setting", "default", "used by", "meaning"):
        settings.add_column(column)
    used_by: dict[str, list[str]] = {}
    fields = {}
    for name, method in METHODS.items():
        for setting, field in setting_fields(method.Settings).items():
            used_by.setdefault(setting, []).append(name)
            fields[setting] = field
    for setting, field in fields.items():
        without = [name for name in METHODS if name not in used_by[setting]]
        users = " ".join(["all but", *without] if len(without) <= 2 else used_by[setting]) if without else "all"
        cells = (setting, field.default, users, field.metadata["help"])
        settings.add_row(*map(terminal.text, cells))
    console.print()
    console.print(settings)
