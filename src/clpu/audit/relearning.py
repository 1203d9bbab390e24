"""Relearning and relapse: is a forgotten task learned again faster than a new one, and does it reappear by itself?

The fair control is an agent that never saw the task and learns the very same one: same data, same steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.audit.findings import Attack
from clpu.audit.observations import Observations
from clpu.audit.permutation import rank_test

#: "Learned" means this share of the way from the lowest to the highest mean accuracy of both groups together.
LEARNED = 0.8


def relearning(actual: Observations, counterfactual: Observations, marks: Sequence[int]) -> Attack | None:
    """Runs that forgot against runs that never learned, by their mean accuracy while learning the task.

    `None` for a method without a network.

    The mean over the curve has a value for every run, also for one that is never done; the steps to a fixed accuracy
    are reported as well.
    """
    if not actual.relearning.shape[1]:
        return None
    curves = np.concatenate([actual.relearning, counterfactual.relearning]).astype(float)
    means = [group.relearning.astype(float).mean(axis=0) for group in (actual, counterfactual)]
    low, high = np.min(means), np.max(means)
    goal = float(low + LEARNED * (high - low))
    steps = steps_to(curves, marks, goal)
    count = len(actual.relearning)
    details = {
        "marks": list(marks),
        "curve": means[0].tolist(),
        "curve_counterfactual": means[1].tolist(),
        "goal": goal,
        "steps": float(steps[:count].mean()),
        "steps_counterfactual": float(steps[count:].mean()),
        "unfinished": [float((s >= marks[-1]).mean()) for s in (steps[:count], steps[count:])],
    }
    area = curves.mean(axis=1)
    return Attack("relearning", rank_test(area[:count], area[count:]), details)


def steps_to(curves: ArrayLike, marks: Sequence[int], goal: float) -> NDArray[np.float64]:
    """Steps until each curve [run, mark] first reaches a goal, interpolated; the last mark if it never does.

    >>> steps_to([[0.0, 0.5, 1.0], [0.9, 1.0, 1.0], [0.0, 0.0, 0.1]], [0, 10, 20], 0.75)
    array([15.,  0., 20.])
    """
    c = np.asarray(curves, dtype=float)
    reached = c >= goal
    first = np.where(reached.any(axis=1), reached.argmax(axis=1), len(marks) - 1)
    steps = np.asarray(marks, dtype=float)[first]
    for run, at in enumerate(first):
        if at and reached[run, at]:
            before, after = c[run, at - 1], c[run, at]
            steps[run] -= (after - goal) / (after - before) * (marks[at] - marks[at - 1])
    return steps


def relapse(actual: Observations, counterfactual: Observations) -> Attack:
    """Accuracy on the forgotten task after one more task was learned, against runs that never learned the first."""
    details = {
        "accuracy": float(actual.relapse.mean()),
        "accuracy_counterfactual": float(counterfactual.relapse.mean()),
        "before": float(actual.accuracy.mean()),
        "before_counterfactual": float(counterfactual.accuracy.mean()),
    }
    return Attack("relapse", rank_test(actual.relapse, counterfactual.relapse), details)
