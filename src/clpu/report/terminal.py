"""The table of a run in a terminal: colours there, plain text in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from clpu import terminal
from clpu.report import distinct, names
from clpu.report.summary import FIGURES, Row, best, summarise
from clpu.report.tables import ARROWS, DIGITS, LABELS, WITH_SPREAD, caveats, heading, with_spread
from clpu.results import Run

# Columns that the table needs with standard deviations.
_WIDE = 100


def show(runs: Sequence[Run], console: Console | None = None) -> None:
    """Print the table of each run, and beneath it the comparison with the paper where the paper has that stream."""
    console = console or terminal.console(pipe_width=terminal.PIPE_WIDTH)
    for run in distinct(runs):
        rows = summarise(run)
        name = f"{run.name}: " if len(runs) > 1 else ""
        console.print(terminal.text(name + heading(run), style="bold"))
        console.print(table(rows, spreads=console.width >= _WIDE))
        if any(row.paper for row in rows):
            console.print(terminal.text("Less the paper's values (privacy figures computed as published):"))
            console.print(differences(rows))
        for note in caveats(run, rows):
            console.print(terminal.text(note, style="dim"))
        console.print()


def table(rows: Sequence[Row], *, spreads: bool = True) -> Table:
    """The rows of a run by definition, the best of each column marked."""
    result = _empty()
    winners = {key: best(rows, key, DIGITS[key]) for key in FIGURES}
    for row in rows:
        cells = []
        for key in FIGURES:
            text = with_spread(row.figures[key], DIGITS[key], spread=spreads and key in WITH_SPREAD)
            cells.append(terminal.text(text, style="bold green" if row.method in winners[key] else ""))
        result.add_row(terminal.text(row.label), *cells)
    return result


def differences(rows: Sequence[Row]) -> Table:
    """Ours less the paper's, the privacy figures as published."""
    result = _empty()
    for row in rows:
        if row.paper:
            cells = (names.number(row.difference(key), DIGITS[key], sign=True) for key in FIGURES)
            result.add_row(terminal.text(row.label), *map(terminal.text, cells))
    return result


def _empty() -> Table:
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    result.add_column("Method", no_wrap=True)
    for key in FIGURES:
        label = f"{LABELS[key]} {ARROWS.get(key, '')}".strip()
        result.add_column(terminal.text(label), justify="right", no_wrap=True)
    return result
