"""Bootstrap confidence intervals over seeds: the range of results that different seeds might give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clpu.metrics.forgetting import mean_over_forgets, ratio
from clpu.metrics.learning import Floats


def bootstrap_mean(
    values: ArrayLike, generator: np.random.Generator, *, resamples: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Compute a percentile bootstrap interval for the mean of one value per seed; NaN for fewer than two seeds.

    >>> low, high = bootstrap_mean([0.91, 0.93, 0.92, 0.95, 0.94], np.random.default_rng(0))
    >>> bool(0.91 < low < 0.93 < high < 0.95)
    True
    """
    v = np.asarray(values, dtype=float)
    if v.ndim != 1:
        raise ValueError(f"expected one value per seed, got an array of shape {v.shape}")
    if len(v) < 2 or not np.isfinite(v).all():
        return float("nan"), float("nan")
    means = v[generator.integers(0, len(v), size=(resamples, len(v)))].mean(axis=1)
    return percentiles(means, level)


def percentiles(draws: Floats, level: float) -> tuple[float, float]:
    """Compute the central `level` interval of some draws; NaN draws are ignored."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return float("nan"), float("nan")
    # "nearest" returns values that occurred, so that an infinite ratio gives inf and not inf - inf.
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    return float(low), float(high)


@dataclass(frozen=True)
class PairIntervals:
    """Bootstrap intervals (low, high) of the four metrics that are computed from pairs of replicas."""

    ijsd: tuple[float, float]
    ajsd: tuple[float, float]
    js_ratio: tuple[float, float]
    irr: tuple[float, float]


def bootstrap_pairs(
    inner: Sequence[ArrayLike],
    across: Sequence[ArrayLike],
    generator: np.random.Generator,
    *,
    strict: bool = False,
    resamples: int = 2000,
    level: float = 0.95,
) -> PairIntervals:
    """Compute percentile bootstrap intervals of mean IJSD, mean AJSD, JS-ratio and IRR.

    Takes the same matrices as `in_group` and `across_group`. Pairs that share a replica are not independent, so
    replicas are drawn with replacement, with all their pairs; a replica drawn twice makes no pair with itself. The
    largest in-group distance can only shrink in a resample, so the interval of IRR leans downwards. NaN for fewer than
    two replicas per group.

    >>> groups = [[[0, 0.1, 0.2], [0.1, 0, 0.1], [0.2, 0.1, 0]]]
    >>> bootstrap_pairs(groups, groups, np.random.default_rng(0)).ijsd
    (0.1, 0.2)
    """
    within, between = mean_over_forgets(inner), mean_over_forgets(across)
    actual, counterfactual = between.shape
    if within.shape != (counterfactual, counterfactual):
        raise ValueError(
            f"in-group matrices of shape {within.shape} do not match across-group matrices of shape {between.shape}"
        )
    if min(actual, counterfactual) < 2:
        nothing = (float("nan"), float("nan"))
        return PairIntervals(nothing, nothing, nothing, nothing)
    # How often each replica was drawn: [resample, replica].
    rows = generator.multinomial(actual, np.full(actual, 1 / actual), size=resamples).astype(float)
    columns = generator.multinomial(counterfactual, np.full(counterfactual, 1 / counterfactual), size=resamples)
    left, right = np.triu_indices(counterfactual, 1)
    weight = (columns[:, left] * columns[:, right]).astype(float)
    distances = within[left, right]
    with np.errstate(invalid="ignore"):  # if all draws are the same replica, there is no pair: 0 / 0
        ijsd = weight @ distances / weight.sum(axis=1)
    largest = np.where(weight > 0, distances, -np.inf).max(axis=1)
    cells = rows[:, :, None] * columns[:, None, :] / (actual * counterfactual)
    ajsd = (cells * between).sum(axis=(1, 2))
    limit = largest[:, None, None]
    inside = between < limit if strict else between <= limit
    rate = np.where(np.isnan(ijsd), np.nan, (cells * inside).sum(axis=(1, 2)))
    return PairIntervals(
        percentiles(ijsd, level),
        percentiles(ajsd, level),
        percentiles(ratio(ijsd, ajsd), level),
        percentiles(rate, level),
    )
