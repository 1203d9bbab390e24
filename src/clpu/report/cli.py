"""`clpu report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from clpu.terminal import say


def add_commands(app: typer.Typer) -> None:
    """Add `report` to the program."""

    @app.command()
    def report(
        runs: Annotated[
            list[Path], typer.Argument(help="Run folders of `clpu bench`; several are compared.", metavar="RUN…")
        ],
        out: Annotated[
            Optional[Path],  # noqa: UP045  typer reads the annotation on Python 3.10 too
            typer.Option(help="Output folder; by default the run folder, or ./report for several runs."),
        ] = None,
        open: Annotated[bool, typer.Option(help="Open the page in a browser.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", help="Write the files and print nothing.")] = False,
    ) -> None:
        """Write tables (CSV, Markdown, LaTeX) and a self-contained page, next to the paper's numbers."""
        # Imported here, so that `clpu --help` does not wait for NumPy.
        from clpu.report import write
        from clpu.results import read_run

        read = [read_run(folder) for folder in runs]
        folder = out or (runs[0] if len(runs) == 1 else Path("report"))
        written = write(read, folder)
        if not quiet:
            from clpu.report.terminal import show

            show(read)
            say("Wrote " + ", ".join(str(path) for path in written))
        if open:
            typer.launch(str(written[-1]))
