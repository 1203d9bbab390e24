"""From run folders to tables and a page, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clpu.results import Run

FILES = ("table.csv", "table.md", "table.tex", "report.html")


def write(runs: Sequence[Run], out: Path | str) -> list[Path]:
    """Write `table.csv`, `table.md`, `table.tex` and `report.html` about one run or several into a folder."""
    # Imported here so that the command line starts without NumPy.
    from clpu import jsonfile
    from clpu.report import page, tables
    from clpu.report.summary import summarise

    groups = [(run, summarise(run)) for run in runs]
    makers = (tables.to_csv, tables.to_markdown, tables.to_latex, page.page)
    return [jsonfile.write_text(Path(out) / name, make(groups)) for name, make in zip(FILES, makers)]
