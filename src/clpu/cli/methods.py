"""The list of methods with their settings."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from clpu.methods import METHODS
from clpu.settings import Training, known


def show() -> None:
    """Print every method, its first line of description, whether it is exact, and its settings."""
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for column in ("method", "forgetting", "what it does"):
        table.add_column(column, no_wrap=column != "what it does")
    for name, method in METHODS.items():
        kind = "[green]exact[/]" if method.exact else "[yellow]approximate[/]"
        table.add_row(f"[bold]{name}[/]", kind, (method.__doc__ or "").strip().splitlines()[0])
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
        settings.add_row(setting, str(field.default), users, field.metadata["help"])
    console.print()
    console.print(settings)
