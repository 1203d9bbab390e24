"""Turn run folders into tables and a page, next to the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clpu.results import Run

FILES = ("table.csv", "matrix.csv", "table.md", "table.tex", "report.html")


def write(runs: Sequence[Run], out: Path | str) -> list[Path]:
    """Write `FILES`, the tables and the page about one run or several, into a folder."""
    # Imported here so that the command line starts without NumPy.
    from clpu import jsonfile
    from clpu.report import page, tables
    from clpu.report.summary import summarise

    groups = [(run, summarise(run)) for run in distinct(runs)]
    writers = (tables.to_csv, tables.to_matrix, tables.to_markdown, tables.to_latex, page.page)
    return [jsonfile.write_text(Path(out) / name, text(groups)) for name, text in zip(FILES, writers)]


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, with runs of the same name numbered."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({names[:i].count(run.name) + 1})") if names.count(run.name) > 1 else run
        for i, run in enumerate(runs)
    ]
