"""Permutation tests: could the labels "forgot" and "never learned" have been dealt at random?

Under the hypothesis that runs of the two groups do not differ, every way to assign the labels to the runs is as likely
as the real one. The p-value is the share of them whose statistic is at least as large, the real one
included, so it is never 0 and holds for any number of runs, whatever the outputs look like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.metrics.resampling import percentiles

Floats = NDArray[np.float64]

#: If there are at most this many ways to deal the labels, all are tried; otherwise `DRAWN` of them.
ENUMERATED = 20_000
DRAWN = 9_999
RESAMPLES = 1_000


@lru_cache(maxsize=8)
def labelings(first: int, second: int) -> tuple[Floats, bool]:
    """Ways to choose `first` of all runs, as rows of 0 and 1, and whether these are all there are.

    The real labels (the first ones) are among them. Drawn ones come from a separate generator, so that a test of
    the same runs always gives the same p-value.

    >>> labelings(1, 2)[0]
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    """
    runs = first + second
    if math.comb(runs, first) <= ENUMERATED:
        chosen = np.array(list(combinations(range(runs), first)))
        rows = np.zeros((len(chosen), runs))
        np.put_along_axis(rows, chosen, 1.0, axis=1)
        return rows, True
    generator = np.random.default_rng([first, second])
    drawn = generator.permuted(np.tile(np.arange(runs), (DRAWN, 1)), axis=1) < first
    real = np.arange(runs) < first
    return np.concatenate([real[None], drawn]).astype(float), False


def p_value(statistics: ArrayLike) -> float:
    """The share of statistics at least as large as the first, which is the real one.

    >>> p_value([3.0, 1.0, 2.0, 3.0])
    0.5
    """
    values = np.asarray(statistics, dtype=float)
    # Labels that deal the same runs give statistics that are equal but for rounding.
    slack = 1e-9 * max(1e-12, float(np.abs(values).max()))
    return float(np.mean(values >= values[0] - slack))


def smallest_p(first: int, second: int, *, two_sided: bool = True) -> float:
    """The smallest p-value that groups of these sizes can give.

    With two groups of equal size, a two-sided statistic is the same when all labels are swapped.

    >>> smallest_p(4, 4), smallest_p(64, 64)
    (0.02857142857142857, 0.0001)
    """
    ways = math.comb(first + second, first)
    if ways > ENUMERATED:
        return 1 / (DRAWN + 1)
    return (2 if two_sided and first == second else 1) / ways


def detectable(first: int, second: int, error_rate: float, power: float = 0.8) -> float:
    """The shift between the groups, in standard deviations of one run, that is found with probability `power`.

    d = (z(1 - α/2) + z(power)) · √(1/n + 1/m),  the normal approximation; infinite where no p-value can reach α.

    >>> round(detectable(32, 32, 0.01), 2)
    0.85
    """
    if smallest_p(first, second) > error_rate:
        return math.inf
    normal = NormalDist()
    return (normal.inv_cdf(1 - error_rate / 2) + normal.inv_cdf(power)) * math.sqrt(1 / first + 1 / second)


@dataclass(frozen=True)
class Effect:
    """The separation of two groups: a value that is `chance` where they are alike, a 95% interval, a p-value."""

    value: float
    low: float
    high: float
    chance: float
    p: float


def energy_test(distances: ArrayLike, first: int, seed: int = 0) -> Effect:
    """Test whether runs of different groups are further apart than runs of one group.

    H = (2·A - W₁ - W₂) / 2·A,  A the mean distance across the groups, W₁ and W₂ the mean within each

    This is the energy distance (Székely & Rizzo 2013), on whatever distance is given, as a share: 0 for groups that
    are alike (and as often below as above), 1 for groups of equal runs that differ. `distances` is a symmetric matrix
    over the runs of both groups, the first group's first. The interval is a bootstrap over runs.

    >>> apart = np.repeat([0.0, 1.0], 4)
    >>> energy_test(np.abs(apart[:, None] - apart), 4).value
    1.0
    """
    d = np.array(distances, dtype=float)
    runs = len(d)
    second = runs - first
    if d.shape != (runs, runs) or min(first, second) < 2:
        raise ValueError(f"expected distances of two groups of two runs or more, got {d.shape} with {first} first")
    np.fill_diagonal(d, 0.0)
    rows, _ = labelings(first, second)
    within = np.einsum("rn,rn->r", rows @ d, rows)
    toward = (rows @ d).sum(axis=1) - within
    other = d.sum() - within - 2 * toward
    statistic = 2 * toward / (first * second) - within / (first * (first - 1)) - other / (second * (second - 1))
    generator = np.random.default_rng(seed)
    left = generator.multinomial(first, np.full(first, 1 / first), size=RESAMPLES).astype(float)
    right = generator.multinomial(second, np.full(second, 1 / second), size=RESAMPLES).astype(float)
    shares = _share(
        np.einsum("ri,ij,rj->r", left, d[:first, first:], right) / (first * second),
        _mean_within(left, d[:first, :first]),
        _mean_within(right, d[first:, first:]),
    )
    low, high = percentiles(shares, 0.95)
    value = _share(
        np.array([toward[0] / (first * second)]),
        np.array([within[0] / (first * (first - 1))]),
        np.array([other[0] / (second * (second - 1))]),
    )
    return Effect(float(value[0]), low, high, 0.0, p_value(statistic))


def _share(across: Floats, first: Floats, second: Floats) -> Floats:
    """(2·A - W₁ - W₂) / 2·A; 0 where all runs are equal."""
    gap = 2 * across - first - second
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(across == 0, 0.0, gap / (2 * across))


def _mean_within(counts: Floats, d: Floats) -> Floats:
    """Mean distance within a resampled group; a run drawn twice makes no pair with itself."""
    total = np.einsum("ri,ij,rj->r", counts, d, counts)
    pairs = counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return total / pairs


def rank_test(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Effect:
    """Test whether the values of one group, one per run, are larger than those of the other.

    AUC = P(a run of the first group has the larger value), ties counted half; ½ for groups that are alike.
    Two-sided: the statistic is |AUC - ½|, the rank-sum test of Mann and Whitney. The interval is a bootstrap over runs.

    >>> rank_test([3, 4, 5, 6], [1, 2, 2, 3]).value
    0.96875
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    ranks = midranks(np.concatenate([a, b]))
    rows, _ = labelings(len(a), len(b))
    expected = len(a) * (len(a) + len(b) + 1) / 2
    p = p_value(np.abs(rows @ ranks - expected))
    wins = (a[:, None] > b).astype(float) + 0.5 * (a[:, None] == b)
    generator = np.random.default_rng(seed)
    left = generator.multinomial(len(a), np.full(len(a), 1 / len(a)), size=RESAMPLES)
    right = generator.multinomial(len(b), np.full(len(b), 1 / len(b)), size=RESAMPLES)
    low, high = percentiles(np.einsum("ri,ij,rj->r", left, wins, right) / wins.size, 0.95)
    return Effect(float(wins.mean()), low, high, 0.5, p)


def midranks(values: ArrayLike) -> Floats:
    """Ranks from 1, equal values sharing the mean of theirs.

    >>> midranks([10, 20, 20, 30])
    array([1. , 2.5, 2.5, 4. ])
    """
    v = np.asarray(values, dtype=float)
    _, place, counts = np.unique(v, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place.reshape(v.shape)]
