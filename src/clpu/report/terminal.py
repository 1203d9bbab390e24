"""Print the table of a run: with colours in a terminal, as plain text in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from clpu import terminal
from clpu.metrics.learning import Floats
from clpu.report import distinct, formatting
from clpu.report.summary import (
    METRIC_KEYS,
    Estimate,
    Row,
    best,
    deviation,
    paired_differences,
    shown_metrics,
    summarise,
)
from clpu.report.tables import DIGITS, WITH_SPREAD, caveats, heading, title, with_spread
from clpu.results import Run


def show(runs: Sequence[Run], console: Console | None = None) -> None:
    """Print the table of each run, and below it the comparison with the paper if the paper has that benchmark."""
    console = console or terminal.console(pipe_width=terminal.PIPE_WIDTH)
    for run in distinct(runs):
        rows = summarise(run)
        name = f"{run.name}: " if len(runs) > 1 else ""
        console.print(terminal.text(name + heading(run), style="bold"))
        full = table(rows)
        width = console.measure(full, options=console.options.update(width=1000)).maximum
        console.print(full if width <= console.width else table(rows, spreads=False))
        if any(row.paper for row in rows):
            console.print(
                terminal.text("Difference from the paper (ours − paper; privacy metrics as in the authors' script):")
            )
            console.print(differences(rows))
        for note in caveats(run, rows):
            console.print(terminal.text(note, style="dim"))
        console.print()
    if len(runs) == 2 and (paired := paired_differences(*runs)):
        first, second = distinct(runs)
        paired_title = f"Paired difference in ACC, {second.name} − {first.name}, in points:"
        console.print(terminal.text(paired_title, style="bold"))
        console.print(_paired(paired, first))


def table(rows: Sequence[Row], *, spreads: bool = True) -> Table:
    """Return the metrics of a run as the paper defines them, the best of each column highlighted."""
    winners = {key: best(rows, key, DIGITS[key]) for key in shown_metrics(rows)}
    result = _empty(winners)
    for row in rows:
        cells = []
        for key in winners:
            text = with_spread(row.metrics[key], DIGITS[key], spread=spreads and key in WITH_SPREAD)
            cells.append(terminal.text(text, style="bold green" if row.method in winners[key] else ""))
        result.add_row(terminal.text(row.label), *cells)
    return result


def differences(rows: Sequence[Row]) -> Table:
    """Return ours − paper, with privacy metrics as in the authors' script."""
    result = _empty(METRIC_KEYS)
    for row in rows:
        if row.paper:
            cells = (formatting.number(row.difference(key), DIGITS[key], sign=True) for key in METRIC_KEYS)
            result.add_row(terminal.text(row.label), *map(terminal.text, cells))
    return result


def _paired(paired: Mapping[str, Floats], run: Run) -> Table:
    """Return the difference of each method: mean, standard deviation, and one column per seed."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    result.add_column("Method", no_wrap=True)
    for name in ("mean ± sd", *(f"seed {seed}" for seed in run.recipe.seeds)):
        result.add_column(name, justify="right", no_wrap=True)
    for method, values in paired.items():
        mean = with_spread(Estimate(float(values.mean()), deviation(values)), 2, spread=len(values) > 1)
        seeds = (formatting.number(value, sign=True) for value in values)
        result.add_row(*map(terminal.text, (run.recipe.about(method).label, mean, *seeds)))
    return result


def _empty(keys: Iterable[str]) -> Table:
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    result.add_column("Method", no_wrap=True)
    for key in keys:
        result.add_column(terminal.text(title(key)), justify="right", no_wrap=True)
    return result
