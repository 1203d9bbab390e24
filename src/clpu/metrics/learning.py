"""The metrics of learning: accuracy on active tasks, transfer, and accuracy on forgotten tasks.

`accuracy[request, task, seed]` is between 0 and 1, for every task after every request. `alive[request]` contains the
indices of the tasks active after it (Φ in the paper).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def births(alive: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """Yield every pair of a request t and a task s active after it, as (t, s, τ(s)), all counted from 0.

    τ(s) is the request that learned the task that is active at t. The paper's formula takes the first request of s; the
    two differ only for a task that was forgotten and learned again. Then the latest time counts: accuracy from before
    the task was forgotten must not count, because it does not exist in the counterfactual.

    >>> list(births([[0], [0, 1], [1], [0, 1]]))
    [(0, 0, 0), (1, 0, 0), (1, 1, 1), (2, 1, 1), (3, 0, 3), (3, 1, 1)]
    """
    began: dict[int, int] = {}
    for request, tasks in enumerate(alive):
        began = {task: began.get(task, request) for task in tasks}
        for task in tasks:
            yield request, task, began[task]


def accuracy_and_forgetting(accuracy: ArrayLike, alive: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Compute ACC and FM per seed, as fractions: means over all pairs of a request t and a task s active after it.

    ACC = mean of aₛᵗ,  FM = mean of aₛ^τ(s) - aₛᵗ,  where τ(s) is the request that learned s (see `births`).

    The paper's formulas are sums; its tables contain means. Without a pair both are NaN.

    >>> learned, forgot = accuracy_and_forgetting([[[0.9], [0.1]], [[0.7], [0.8]]], alive=[[0], [0, 1]])
    >>> learned.round(3), forgot.round(3)
    (array([0.8]), array([0.067]))
    """
    a = _accuracy(accuracy)
    pairs = list(births(alive))
    if not pairs:
        return np.full(a.shape[2], np.nan), np.full(a.shape[2], np.nan)
    request, task, began = np.array(pairs).T
    now = a[request, task]
    return now.mean(axis=0), (a[began, task] - now).mean(axis=0)


def backward_transfer(accuracy: ArrayLike, alive: Sequence[Sequence[int]]) -> Floats:
    """Compute how much later requests helped (+) or hurt (-) the tasks active at the end, per seed.

    BWT = mean over s active after the last request T of aₛᵀ - aₛ^τ(s),  excluding the task that T learned
    (Lopez-Paz and Ranzato, 2017).

    >>> backward_transfer([[[0.9], [0.1]], [[0.7], [0.8]]], alive=[[0], [0, 1]]).round(3)
    array([-0.2])
    """
    a = _accuracy(accuracy)
    last = len(alive) - 1
    changes = [a[last, s] - a[began, s] for t, s, began in births(alive) if t == last != began]
    return np.mean(changes, axis=0) if changes else np.full(a.shape[2], np.nan)


def forward_transfer(accuracy: ArrayLike, alive: Sequence[Sequence[int]], alone: ArrayLike) -> Floats:
    """Compute how much better (+) or worse (-) a task is learned after other tasks than alone, per seed.

    FWT = mean over the learned tasks s except the first of aₛ^τ(s) - alone[s]

    `alone[task]` is the accuracy of a network that learned nothing else: of `ind`, right after learning.

    >>> forward_transfer([[[0.9], [0.1]], [[0.7], [0.8]]], alive=[[0], [0, 1]], alone=[0.9, 0.85]).round(3)
    array([-0.05])
    """
    a, base = _accuracy(accuracy), np.asarray(alone, dtype=float)
    gains = [a[t, s] - base[s] for t, s, began in births(alive) if t == began != 0]
    return np.mean(gains, axis=0) if gains else np.full(a.shape[2], np.nan)


def forgotten_accuracy(accuracy: ArrayLike, forgets: Sequence[tuple[int, int]]) -> Floats:
    """Return the accuracy on each forgotten task right after the forget request, as an array [forget request, seed].

    `forgets` are pairs (request, task), counted from 0. The ideal is the accuracy of the counterfactual replicas: about
    chance, 1 / classes, if the other tasks say nothing about this one.

    >>> forgotten_accuracy([[[0.9]], [[0.1]]], forgets=[(1, 0)])
    array([[0.1]])
    """
    a = _accuracy(accuracy)
    return np.array([a[request, task] for request, task in forgets]).reshape(len(forgets), a.shape[2])


def _accuracy(accuracy: ArrayLike) -> Floats:
    a = np.asarray(accuracy, dtype=float)
    if a.ndim != 3:
        raise ValueError(f"expected accuracy[request, task, seed], got an array of shape {a.shape}")
    return a
