"""Compute the metrics of a run from its results: one `Row` per method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clpu import metrics
from clpu.metrics import PairIntervals
from clpu.metrics.learning import Floats
from clpu.report import paper
from clpu.results import Result, Run
from clpu.runs.recipe import MethodAbout

NAN = float("nan")
METRIC_KEYS = ("acc", "fm", "ijsd", "ajsd", "js_ratio", "irr")
#: Accuracy after the last request on the tasks that are active then, when nobody names the task.
CLASS_INCREMENTAL = "class_incremental_acc"
PRIVACY = ("ijsd", "ajsd", "js_ratio", "irr")
#: Whether more or less of a metric is better; IJSD and AJSD mean something only in comparison with each other.
BETTER = {"acc": max, CLASS_INCREMENTAL: max, "fm": min, "js_ratio": min, "irr": max}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds or pairs, its standard deviation (n - 1), and a 95% bootstrap interval over seeds."""

    value: float
    spread: float = NAN
    low: float = NAN
    high: float = NAN


@dataclass(frozen=True, eq=False)
class ForgottenAccuracy:
    """Accuracy per seed on a forgotten task right after the forget request, with chance and the counterfactual's.

    `estimate` is its mean in percent.
    """

    task: str
    request: int
    chance: float
    accuracy: Floats
    counterfactual: Floats
    estimate: Estimate = Estimate(NAN)


@dataclass(frozen=True, eq=False)
class Row:
    """One method in one run, as the tables and the page show it; accuracies in percent.

    `metrics` are the paper's six as it defines them and class-incremental accuracy, `published` the four privacy
    metrics as the authors' script computes them; `ijsd` and `ajsd` are the underlying distances; `left` is the accuracy
    on forgotten tasks, averaged over forget requests.
    """

    run: str
    benchmark: str
    method: str
    about: MethodAbout
    seeds: int
    metrics: Mapping[str, Estimate]
    published: Mapping[str, Estimate]
    paper: Mapping[str, float]
    ijsd: Floats
    ajsd: Floats
    backward: Estimate
    forward: Estimate
    forgotten: Sequence[ForgottenAccuracy]
    left: Estimate
    bytes: int
    seconds: float

    @property
    def label(self) -> str:
        """The name that tables show."""
        return self.about.label

    def comparable(self, key: str) -> Estimate:
        """Return our value to compare with the printed one: that of the authors' script where the two differ."""
        return self.published.get(key, self.metrics[key])

    def difference(self, key: str) -> float:
        """Return ours − paper; NaN if the paper has no value."""
        return self.comparable(key).value - self.paper.get(key, NAN)


def summarise(run: Run) -> list[Row]:
    """Return the rows of a run in the order of its recipe's `in_order`."""
    order = run.recipe.in_order(run.results)
    upper_bound = next((method for method in order if run.recipe.about(method).upper_bound), None)
    alone = None if upper_bound is None else _alone(run.results[upper_bound])
    return [_row(run, run.results[method], alone) for method in order]


def shown_metrics(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the metrics of a run's tables: the paper's, and class-incremental accuracy where it makes sense.

    That is where tasks have different labels: in the others (`perm-`, `rot-`) a class is an image's label and how the
    image was changed, and the question is rather what was done to it.
    """
    split = [row.metrics[CLASS_INCREMENTAL].value for row in rows if row.benchmark.startswith("split-")]
    measured = any(not math.isnan(value) for value in split)
    return ("acc", CLASS_INCREMENTAL, *METRIC_KEYS[1:]) if measured else METRIC_KEYS


def best(rows: Sequence[Row], key: str, digits: int, *, published: bool = False) -> set[str]:
    """Return the methods to print in bold: the best as printed, and those whose intervals overlap the interval of one.

    The upper bound is excluded, as in the paper. Nothing is best among fewer than two.
    """
    if key not in BETTER:
        return set()
    found = {
        row.method: (row.published if published else row.metrics)[key] for row in rows if not row.about.upper_bound
    }
    values = {method: round(one.value, digits) for method, one in found.items() if not math.isnan(one.value)}
    if len(values) < 2:
        return set()
    best_value = BETTER[key](values.values())
    leaders = {method for method, value in values.items() if value == best_value}
    return leaders | {method for method in values for leader in leaders if _overlap(found[method], found[leader])}


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Return whether two intervals overlap; False if one does not exist."""
    return one.low <= other.high and other.low <= one.high


def paired_differences(first: Run, second: Run) -> dict[str, Floats]:
    """Return second − first in ACC, in points per seed, for methods in both runs; empty if nothing can be paired.

    Seeds can be paired if both runs have the same benchmark, requests and seeds: the same seed means the same start and
    the same batches, so most of the spread over seeds cancels out.
    """
    if any(getattr(first.recipe, name) != getattr(second.recipe, name) for name in ("benchmark", "requests", "seeds")):
        return {}
    both = [method for method in first.results if method in second.results]
    return {m: 100 * (_accuracy(second.results[m])[0] - _accuracy(first.results[m])[0]) for m in both}


def _accuracy(result: Result) -> tuple[Floats, Floats]:
    """Return ACC and FM per seed."""
    index = {task: i for i, task in enumerate(result.tasks)}
    return metrics.accuracy_and_forgetting(result.accuracy, [[index[t] for t in tasks] for tasks in result.alive])


def _row(run: Run, result: Result, alone: Floats | None) -> Row:
    # One generator per row: its intervals do not depend on which other methods were run.
    rng = np.random.default_rng(0)
    index = {task: i for i, task in enumerate(result.tasks)}
    alive = [[index[task] for task in tasks] for tasks in result.alive]
    acc, fm = _accuracy(result)
    classes = run.recipe.data.classes
    values = {"acc": _per_seed(acc, rng), "fm": _per_seed(fm, rng)}
    published: dict[str, Estimate] = {}
    ijsd = ajsd = np.empty(0)
    if result.forgets:
        inner = [forget.in_group[forget.task] for forget in result.forgets]
        across = [forget.across[forget.task] for forget in result.forgets]
        ijsd, ajsd = metrics.in_group(inner), metrics.across_group(across)
        values |= _privacy(ijsd, ajsd, metrics.bootstrap_pairs(inner, across, rng), strict=False)
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
    if result.class_incremental:
        values[CLASS_INCREMENTAL] = _per_seed(np.array(result.class_incremental), np.random.default_rng(0))
    forgotten = metrics.forgotten_accuracy(result.accuracy, [(f.request - 1, index[f.task]) for f in result.forgets])
    return Row(
        run=run.name,
        benchmark=run.recipe.benchmark,
        method=result.method,
        about=run.recipe.about(result.method),
        seeds=len(run.recipe.seeds),
        metrics={key: values.get(key, Estimate(NAN)) for key in (*METRIC_KEYS, CLASS_INCREMENTAL)},
        published={key: published.get(key, Estimate(NAN)) for key in PRIVACY},
        paper=paper.tables().get((run.recipe.benchmark, result.method), {}),
        ijsd=ijsd,
        ajsd=ajsd,
        backward=_per_seed(metrics.backward_transfer(result.accuracy, alive), rng),
        forward=Estimate(NAN)
        if alone is None
        else _per_seed(metrics.forward_transfer(result.accuracy, alive, alone), rng),
        forgotten=[
            ForgottenAccuracy(
                f.task,
                f.request,
                1 / classes[index[f.task]],
                after,
                f.counterfactual_accuracy[index[f.task]],
                _per_seed(after, rng),
            )
            for f, after in zip(result.forgets, forgotten)
        ],
        left=_per_seed(np.mean(forgotten, axis=0), rng) if len(forgotten) else Estimate(NAN),
        bytes=max(result.bytes, default=0),
        seconds=sum(result.seconds),
    )


def _per_seed(values: Floats, rng: np.random.Generator) -> Estimate:
    percent = 100 * values
    low, high = metrics.bootstrap_mean(percent, rng)
    return Estimate(float(percent.mean()), deviation(percent), low, high)


def _privacy(ijsd: Floats, ajsd: Floats, intervals: PairIntervals, *, strict: bool) -> dict[str, Estimate]:
    inner = metrics.spread_as_published(ijsd) if strict else deviation(ijsd)
    rate = metrics.irr(ijsd, ajsd, strict=strict)
    return {
        "ijsd": Estimate(float(ijsd.mean()) if ijsd.size else NAN, inner, *intervals.ijsd),
        "ajsd": Estimate(float(ajsd.mean()), deviation(ajsd), *intervals.ajsd),
        "js_ratio": Estimate(metrics.js_ratio(ijsd, ajsd), NAN, *intervals.js_ratio),
        "irr": Estimate(rate, NAN, *intervals.irr) if not math.isnan(rate) else Estimate(NAN),
    }


def deviation(values: Floats) -> float:
    """Compute the standard deviation (n - 1); NaN for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else NAN


def _alone(separate: Result) -> Floats:
    """Return the accuracy of separate learning on each task right after learning it; NaN for a task never learned."""
    index = {task: i for i, task in enumerate(separate.tasks)}
    accuracy = np.full(len(separate.tasks), NAN)
    for t, s, began in metrics.births([[index[task] for task in tasks] for tasks in separate.alive]):
        if t == began:
            accuracy[s] = separate.accuracy[t, s].mean()
    return accuracy
