"""From a run's results to the figures of its table: one `Row` a method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clpu import metrics
from clpu.metrics import PairIntervals
from clpu.metrics.learning import Floats
from clpu.report import names, paper
from clpu.results import Result, Run

NAN = float("nan")
FIGURES = ("acc", "fm", "ijsd", "ajsd", "js_ratio", "irr")
PRIVACY = ("ijsd", "ajsd", "js_ratio", "irr")
#: Whether more or less of a figure is better; IJSD and AJSD are only good or bad beside each other.
BETTER = {"acc": max, "fm": min, "js_ratio": min, "irr": max}


@dataclass(frozen=True)
class Figure:
    """A mean over seeds or pairs, its standard deviation (n - 1), and a 95 % bootstrap interval over seeds."""

    value: float
    spread: float = NAN
    low: float = NAN
    high: float = NAN


@dataclass(frozen=True, eq=False)
class Forgotten:
    """Accuracy on a forgotten task right after its forget, per seed, beside chance and the counterfactual runs.

    `figure` is its mean in percent.
    """

    task: str
    request: int
    chance: float
    accuracy: Floats
    counterfactual: Floats
    figure: Figure = Figure(NAN)


@dataclass(frozen=True, eq=False)
class Row:
    """What the tables and the page say of one method in one run; accuracies in percent.

    `figures` are the paper's six by definition, `published` the four privacy figures as the authors' script has them;
    `ijsd` and `ajsd` the distances behind them; `left` is the accuracy on forgotten tasks, mean over the forgets.
    """

    run: str
    stream: str
    method: str
    seeds: int
    figures: Mapping[str, Figure]
    published: Mapping[str, Figure]
    paper: Mapping[str, float]
    ijsd: Floats
    ajsd: Floats
    backward: Figure
    forward: Figure
    forgotten: Sequence[Forgotten]
    left: Figure
    bytes: int
    seconds: float

    @property
    def label(self) -> str:
        return names.method(self.method)

    def comparable(self, key: str) -> Figure:
        """Our figure that the printed one is to be compared with: as published where the two differ."""
        return self.published.get(key, self.figures[key])

    def difference(self, key: str) -> float:
        """Ours less the paper's; NaN if the paper has none."""
        return self.comparable(key).value - self.paper.get(key, NAN)


def summarise(run: Run) -> list[Row]:
    """The rows of a run: the paper's methods in the paper's order, then the user's own."""
    known = [m for m in names.METHODS if m in run.results]
    order = known + [m for m in run.results if m not in known]
    alone = _alone(run.results[names.UPPER_BOUND]) if names.UPPER_BOUND in run.results else None
    return [_row(run, run.results[method], alone) for method in order]


def best(rows: Sequence[Row], key: str, digits: int, *, published: bool = False) -> set[str]:
    """The methods whose figure is the best as printed, ties included, as the paper marks them: without its upper bound.

    Nothing is best among fewer than two.
    """
    if key not in BETTER:
        return set()
    values = {
        row.method: round((row.published if published else row.figures)[key].value, digits)
        for row in rows
        if row.method != names.UPPER_BOUND
    }
    values = {method: value for method, value in values.items() if not math.isnan(value)}
    if len(values) < 2:
        return set()
    winner = BETTER[key](values.values())
    return {method for method, value in values.items() if value == winner}


def _row(run: Run, result: Result, alone: Floats | None) -> Row:
    # A generator for each row: its intervals do not depend on which other methods were run.
    rng = np.random.default_rng(0)
    index = {task: i for i, task in enumerate(result.tasks)}
    alive = [[index[task] for task in tasks] for tasks in result.alive]
    acc, fm = metrics.accuracy_and_forgetting(result.accuracy, alive)
    classes = run.recipe.data.classes
    figures = {"acc": _per_seed(acc, rng), "fm": _per_seed(fm, rng)}
    published: dict[str, Figure] = {}
    ijsd = ajsd = np.empty(0)
    if result.forgets:
        inner = [forget.in_group[forget.task] for forget in result.forgets]
        across = [forget.across[forget.task] for forget in result.forgets]
        ijsd, ajsd = metrics.in_group(inner), metrics.across_group(across)
        figures |= _privacy(ijsd, ajsd, metrics.bootstrap_pairs(inner, across, rng), strict=False)
        gone = [index[forget.task] for forget in result.forgets]
        inner, across = (
            metrics.as_published([[side(f)[t] for t in result.tasks] for f in result.forgets], gone, classes)
            for side in (lambda f: f.in_group, lambda f: f.across)
        )
        published = _privacy(
            metrics.in_group(inner),
            metrics.across_group(across),
            metrics.bootstrap_pairs(inner, across, rng, strict=True),
            strict=True,
        )
    forgotten = metrics.forgotten_accuracy(result.accuracy, [(f.request - 1, index[f.task]) for f in result.forgets])
    return Row(
        run=run.name,
        stream=run.recipe.stream,
        method=result.method,
        seeds=len(run.recipe.seeds),
        figures={key: figures.get(key, Figure(NAN)) for key in FIGURES},
        published={key: published.get(key, Figure(NAN)) for key in PRIVACY},
        paper=paper.tables().get((run.recipe.stream, result.method), {}),
        ijsd=ijsd,
        ajsd=ajsd,
        backward=_per_seed(metrics.backward_transfer(result.accuracy, alive), rng),
        forward=Figure(NAN)
        if alone is None
        else _per_seed(metrics.forward_transfer(result.accuracy, alive, alone), rng),
        forgotten=[
            Forgotten(
                f.task,
                f.request,
                1 / classes[index[f.task]],
                after,
                f.counterfactual_accuracy[index[f.task]],
                _per_seed(after, rng),
            )
            for f, after in zip(result.forgets, forgotten)
        ],
        left=_per_seed(np.mean(forgotten, axis=0), rng) if len(forgotten) else Figure(NAN),
        bytes=max(result.bytes, default=0),
        seconds=sum(result.seconds),
    )


def _per_seed(values: Floats, rng: np.random.Generator) -> Figure:
    percent = 100 * values
    low, high = metrics.bootstrap_mean(percent, rng)
    return Figure(float(percent.mean()), deviation(percent), low, high)


def _privacy(ijsd: Floats, ajsd: Floats, intervals: PairIntervals, *, strict: bool) -> dict[str, Figure]:
    inner = metrics.spread_as_published(ijsd) if strict else deviation(ijsd)
    return {
        "ijsd": Figure(float(ijsd.mean()) if ijsd.size else NAN, inner, *intervals.ijsd),
        "ajsd": Figure(float(ajsd.mean()), deviation(ajsd), *intervals.ajsd),
        "js_ratio": Figure(metrics.js_ratio(ijsd, ajsd), NAN, *intervals.js_ratio),
        "irr": Figure(metrics.irr(ijsd, ajsd, strict=strict), NAN, *intervals.irr),
    }


def deviation(values: Floats) -> float:
    """The standard deviation (n - 1); NaN for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else NAN


def _alone(ind: Result) -> Floats:
    """What `ind` reaches on each task right after learning it; NaN for a task that it never learned."""
    index = {task: i for i, task in enumerate(ind.tasks)}
    accuracy = np.full(len(ind.tasks), NAN)
    for t, s, began in metrics.births([[index[task] for task in tasks] for tasks in ind.alive]):
        if t == began:
            accuracy[s] = ind.accuracy[t, s].mean()
    return accuracy
