"""The list of methods with their settings."""

from __future__ import annotations

from rich.table import Table

from clpu import terminal
from clpu.methods import METHODS
from clpu.settings import Training
from clpu.settings import setting_fields as known


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
    for column in ("setting", "default", "of", "meaning"):
        settings.add_column(column)
    of: dict[str, list[str]] = {}
    fields = {}
    for name, method in METHODS.items():
        for setting, field in known(method.Settings).items():
            of.setdefault(setting, []).append(name)
            fields[setting] = field
    for setting, field in fields.items():
        users = "all" if setting in known(Training) else " ".join(of[setting])
        cells = (setting, field.default, users, field.metadata["help"])
        settings.add_row(*map(terminal.text, cells))
    console.print()
    console.print(settings)
