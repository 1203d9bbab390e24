"""Options that commands have in common."""

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
Benchmark = Annotated[
    str,
    typer.Argument(metavar="BENCHMARK", help="perm-, rot-, split- or people- followed by a data set."),
]
Methods = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads the annotation on Python 3.10 too
    typer.Option(
        help="Methods to run, in this order; comma-separated or repeated. See `clpu methods`.", show_default="all"
    ),
]
ProfileName = Annotated[
    str,
    typer.Option(
        help="Size preset: smoke (seconds; checks the installation), small (minutes on two CPU cores), medium (CIFAR "
        "only: the paper's settings with a narrower network) or paper (the paper's settings)."
    ),
]
Requests = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="Requests, such as '1R 2T 2F' or '1R @p7F', or the name of a known stream.",
        show_default="bench: clpu-2022, audit: clpu-audit; with people: learn all, then some leave",
    ),
]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(help="Worker processes.", show_default="cores"),
]
Threads = Annotated[int, typer.Option(help="Threads per agent. Results depend on it.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", help="Override a setting: key=value or method.key=value; may be repeated."),
]
MixMachines = Annotated[
    bool,
    typer.Option("--mix-machines", help="Resume even if this machine computes differently; the report shows it."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress, only the result.")]
Nice = Annotated[bool, typer.Option("--nice", help="Run the workers at the lowest priority.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]


def load_files(files: list[Path] | None) -> None:
    """Register the methods and networks in the files of `--load`."""
    if files:
        from clpu.methods.plugins import load

        for path in files:
            load(path)


def names_of(methods: list[str] | None) -> list[str]:
    """The names in `--methods`, given often or with commas."""
    return [name for text in methods or ["all"] for name in text.replace(",", " ").split()]
