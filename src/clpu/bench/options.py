"""Options that `clpu bench` and `clpu audit` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

StreamOfTasks = Annotated[
    str, typer.Argument(help="The stream of tasks: perm-, rot- or split- and a data set (`clpu data list`).")
]
Methods = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads the annotation on Python 3.10 too
    typer.Option(help="Methods, by name and as often as you like, or all (`clpu methods`).", show_default="all"),
]
Size = Annotated[str, typer.Option(help="How big: paper, small (two CPU cores) or smoke (a test of the machinery).")]
Requests = Annotated[str, typer.Option(help="Requests, such as '1R 2T 2F', or the name of a known stream.")]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(help="Worker processes.", show_default="cores"),
]
Threads = Annotated[int, typer.Option(help="Threads per agent. The numbers depend on it.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", help="key=value or method.key=value: changes a setting; as often as you like."),
]
Load = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(help="A Python file with methods of your own (docs/adding-a-method.md); as often as you like."),
]
MixMachines = Annotated[
    bool,
    typer.Option("--mix-machines", help="Resume although this machine computes differently; the report shows it."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]


def load_methods(files: list[Path] | None) -> None:
    """Make the methods in the files of `--load` known."""
    from clpu.methods.files import load

    for path in files or []:
        load(path)


def names_of(methods: list[str] | None) -> list[str]:
    """The names in `--methods`, given often or with commas."""
    return [name for text in methods or ["all"] for name in text.replace(",", " ").split()]
