"""Options that commands of different kinds have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Load = Annotated[
    Optional[list[Path]],  # noqa: UP045  typer reads the annotation on Python 3.10 too
    typer.Option(
        metavar="FILE",
        help="A Python file with custom methods or networks (docs/adding-a-method.md); may be repeated.",
    ),
]


def load_files(files: list[Path] | None) -> None:
    """Register the methods and networks in the files of `--load`."""
    if files:
        from clpu.methods.plugins import load

        for path in files:
            load(path)
