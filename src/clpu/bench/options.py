"""Options that `clpu bench` and `clpu audit` have in common."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

Benchmark = Annotated[
    str,
    typer.Argument(metavar="BENCHMARK", help="perm-, rot- or split- followed by a data set (`clpu data list`)."),
]
Methods = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads the annotation on Python 3.10 too
    typer.Option(help="Methods to run, comma-separated or repeated; see `clpu methods`.", show_default="all"),
]
Size = Annotated[
    str,
    typer.Option(
        help="Size preset: smoke (seconds; checks the installation), small (minutes on two CPU cores) or paper (the "
        "paper's settings)."
    ),
]
Requests = Annotated[str, typer.Option(help="Requests, such as '1R 2T 2F', or the name of a known stream.")]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(help="Worker processes.", show_default="cores"),
]
Threads = Annotated[int, typer.Option(help="Threads per agent. The numbers depend on it.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", help="Override a setting: key=value or method.key=value; may be repeated."),
]
MixMachines = Annotated[
    bool,
    typer.Option("--mix-machines", help="Resume although this machine computes differently; the report shows it."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]


def names_of(methods: list[str] | None) -> list[str]:
    """The names in `--methods`, given often or with commas."""
    return [name for text in methods or ["all"] for name in text.replace(",", " ").split()]
