"""The tables of the page, as text; `templates/macros.html` turns them into HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clpu.report import formatting
from clpu.report.summary import CLASS_INCREMENTAL, PRIVACY, Estimate, Row, best, shown_metrics
from clpu.report.tables import BOLD, FINE_DIGITS, WITH_SPREAD, Group, excluding, title
from clpu.results import Result, Run


@dataclass(frozen=True)
class Cell:
    """A value and its standard deviation, with small lines below; `label` names its column on a narrow screen."""

    text: str
    bold: bool = False
    spread: str = ""
    small: tuple[str, ...] = ()
    label: str = ""
    style: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    name: str
    cells: Sequence[Cell]
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A table; `groups` are titles above the columns, each with the number of columns it spans."""

    head: Sequence[str]
    lines: Sequence[Line]
    groups: Sequence[tuple[str, int]] = ()
    note: str = ""
    style: str = "plain"


def main_table(rows: Sequence[Row]) -> Table:
    """Return the paper's table for a run, with the paper's value and the difference below comparable values."""
    compared = any(row.paper for row in rows)
    keys = shown_metrics(rows)
    groups = [("learning", len(keys) - len(PRIVACY)), ("privacy (paper's definition)", 4)]
    groups += [("privacy (authors' script)", 4)] if compared else []
    winners = {key: best(rows, key, FINE_DIGITS[key]) for key in keys}
    published = {key: best(rows, key, FINE_DIGITS[key], published=True) for key in PRIVACY}
    lines = []
    for row in rows:
        cells = []
        for key in keys:
            below = _next_to_paper(row, key) if key in ("acc", "fm") else ()
            cells.append(_metric(key, row.metrics[key], row.method in winners[key], below, title(key)))
        for key in PRIVACY if compared else ():
            label = f"{title(key)} (authors' script)"
            won = row.method in published[key]
            cells.append(_metric(key, row.published[key], won, _next_to_paper(row, key), label))
        traits = {"upper-bound": row.about.upper_bound, "exact": row.about.exact}
        lines.append(Line(row.label, cells, " ".join(name for name, has in traits.items() if has)))
    note = (
        "Mean ± standard deviation; in brackets, a 95% bootstrap interval over seeds (that of IRR leans downwards: a "
        f"resample can only lower the largest in-group distance). {BOLD}{excluding(rows)}. "
    )
    if any(row.about.exact for row in rows):
        note += "Methods that forget exactly have their names in bold. "
    accuracies = "ACC, CI-ACC" if CLASS_INCREMENTAL in keys else "ACC"
    note += f"{accuracies} and FM in percent, IJSD and AJSD in nats."
    if compared:
        note += (
            " The printed privacy metrics sum over different tasks than the definition says, so they are compared with "
            "ours computed in the same way (authors' script). Δ is ours − paper; ✓ marks ACC and FM within the larger "
            "of 0.7 points and twice the paper's standard deviation."
        )
    head = ["Method", *(title(key) for key in [*keys, *(PRIVACY if compared else ())])]
    return Table(head, lines, groups, note, style="main")


def _metric(key: str, estimate: Estimate, bold: bool, below: tuple[str, ...], label: str) -> Cell:
    digits = FINE_DIGITS[key]
    spread = (
        formatting.number(estimate.spread, digits) if key in WITH_SPREAD and not math.isnan(estimate.spread) else ""
    )
    return Cell(formatting.number(estimate.value, digits), bold, spread, _interval(estimate, digits) + below, label)


def _interval(estimate: Estimate, digits: int) -> tuple[str, ...]:
    if math.isnan(estimate.low):
        return ()
    return (f"[{formatting.number(estimate.low, digits)}, {formatting.number(estimate.high, digits)}]",)


def _next_to_paper(row: Row, key: str) -> tuple[str, ...]:
    if key not in row.paper:
        return ()
    difference = row.difference(key)
    near = key in ("acc", "fm") and abs(difference) <= max(0.7, 2 * row.paper[f"{key}_std"])
    delta = f"Δ {formatting.number(difference, sign=True)}{' ✓' if near else ''}"
    return f"paper {formatting.number(row.paper[key])}", delta


def comparison_table(groups: Sequence[Group]) -> Table:
    """Return ACC, CI-ACC where it makes sense, FM, JS-ratio and IRR of every method in every run.

    Runs of the same benchmark also show the difference from the first of them.
    """
    shown = shown_metrics([row for _, rows in groups for row in rows])
    keys = [key for key in shown if key not in ("ijsd", "ajsd")]
    by_run = [{row.method: row for row in rows} for _, rows in groups]
    rows = {method: row for found in reversed(by_run) for method, row in found.items()}
    recorded = {method for run, _ in groups for method in run.recipe.methods_about}
    order = list(dict.fromkeys(method for found in by_run for method in found))
    order.sort(key=lambda method: (method not in recorded, rows[method].about.position))
    first: dict[str, dict[str, Row]] = {}
    for (run, _), found in zip(groups, by_run):
        first.setdefault(run.recipe.benchmark, found)
    lines = []
    for method in order:
        cells = []
        for (run, _), found in zip(groups, by_run):
            base = first[run.recipe.benchmark].get(method)
            cells += [_compared(found.get(method), base, key) for key in keys]
        lines.append(Line(rows[method].label, cells))
    return Table(
        head=["Method", *(title(key) for _ in groups for key in keys)],
        lines=lines,
        groups=[(run.name, len(keys)) for run, _ in groups],
        note="Metrics as the paper defines them. Small print: difference from the first run of the same benchmark.",
        style="plain compare",
    )


def _compared(row: Row | None, base: Row | None, key: str) -> Cell:
    if row is None:
        return Cell("–")
    text = formatting.number(row.metrics[key].value, FINE_DIGITS[key])
    if base is None or base is row:
        return Cell(text)
    change = row.metrics[key].value - base.metrics[key].value
    return Cell(text, small=(formatting.number(change, FINE_DIGITS[key], sign=True),))


def extra_table(rows: Sequence[Row]) -> Table:
    """Return transfer, accuracy on forgotten tasks, size and time."""
    lines = []
    for row in rows:
        counterfactual = [100 * float(item.counterfactual.mean()) for item in row.forgotten]
        cells = [_signed(row.backward), _signed(row.forward), _left(row), Cell(_percents(counterfactual))]
        cells += [Cell(formatting.size(row.bytes)), Cell(f"{row.seconds:.1f}")]
        lines.append(Line(row.label, cells))
    upper_bound = next((row.label for row in rows if row.about.upper_bound), "the upper bound, which this run lacks")
    return Table(
        head=[
            "Method",
            "backward transfer",
            "forward transfer",
            "ACC on forgotten tasks",
            "ACC, counterfactual",
            "peak size",
            "seconds, all seeds",
        ],
        lines=lines,
        note=(
            "Backward transfer: how much the accuracy on the tasks active at the end changed after they were learned, "
            "in points. Forward transfer: how much better or worse a task is learned after other tasks than alone, by "
            f"{upper_bound}. ACC on forgotten tasks: right after each forget request, in order, next to that of "
            "replicas that never learned the task. In brackets, 95% bootstrap intervals over seeds."
        ),
    )


def _left(row: Row) -> Cell:
    """Show the accuracy on each forgotten task with its interval or, if there are many, their mean."""
    if len(row.forgotten) > 3:
        return Cell(f"{row.left.value:.1f}% on average", small=_interval(row.left, 1))
    intervals = tuple(text for item in row.forgotten for text in _interval(item.estimate, 1))
    return Cell(_percents([item.estimate.value for item in row.forgotten]), small=intervals)


def _percents(values: Sequence[float]) -> str:
    if len(values) > 3:
        return f"{sum(values) / len(values):.1f}% on average"
    return ", ".join(f"{value:.1f}%" for value in values) or "–"


def _signed(estimate: Estimate) -> Cell:
    if math.isnan(estimate.value):
        return Cell("–")
    spread = "" if math.isnan(estimate.spread) else formatting.number(estimate.spread)
    return Cell(formatting.number(estimate.value, sign=True), spread=spread, small=_interval(estimate, 2))


def request_tables(run: Run, rows: Sequence[Row]) -> list[tuple[str, Table]]:
    """Return accuracy, size and time per request, each with its title."""
    results = [run.results[row.method] for row in rows]
    head = ["Method", *results[0].requests]
    sizes = [Line(row.label, [Cell(formatting.size(b)) for b in r.bytes]) for row, r in zip(rows, results)]
    times = [Line(row.label, [Cell(f"{s:.1f}") for s in r.seconds]) for row, r in zip(rows, results)]
    accuracies = [line for row, result in zip(rows, results) for line in _accuracy_lines(row.label, result)]
    return [
        (
            "Accuracy on each task after each request, in percent (grey: not yet learned, or forgotten)",
            Table(["After", *results[0].requests], accuracies),
        ),
        ("Size of one agent after each request", Table(head, sizes)),
        ("Seconds per request, all seeds together", Table(head, times)),
    ]


def _accuracy_lines(label: str, result: Result) -> list[Line]:
    percent = 100 * result.accuracy.mean(axis=2)
    return [
        Line(
            f"{label}, task {task}",
            [
                Cell(f"{percent[i, column]:.1f}", style="" if task in alive else "dead")
                for i, alive in enumerate(result.alive)
            ],
        )
        for column, task in enumerate(result.tasks)
    ]
