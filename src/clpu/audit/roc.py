"""How well scores separate two kinds of cases: area under the curve, true positives at few false ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.audit.permutation import RESAMPLES, Effect, labelings, midranks, p_value
from clpu.metrics.resampling import percentiles

Floats = NDArray[np.float64]

#: The false-positive rates at which true positives are reported: what counts in a membership attack is that the few
#: cases it is sure of are right (Carlini et al. 2022).
RATES = (0.01, 0.001)

# Numbers worked on at a time when resampling.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Roc:
    """True positives at each distinct threshold, from the strictest on: arrays that begin with (0, 0)."""

    false_positive: Floats
    true_positive: Floats

    @property
    def area(self) -> float:
        """AUC: the probability that a positive case scores higher than a negative one, ties counted half."""
        width = np.diff(self.false_positive)
        return float(np.sum(width * (self.true_positive[1:] + self.true_positive[:-1]) / 2))

    def at(self, rate: float) -> float:
        """The largest true-positive rate of a threshold with at most this false-positive rate."""
        return float(self.true_positive[np.searchsorted(self.false_positive, rate + 1e-12, side="right") - 1])


class Scores:
    """Scores of cases that belong to agents: positives[agent, case] of one group, negatives[agent, case] of the other.

    Cases of one agent are not independent, so intervals and p-values resample and relabel agents, not cases.

    >>> scores = Scores([[0.9, 0.8], [0.7, 0.2]], [[0.6, 0.1], [0.3, 0.0]])
    >>> scores.roc().area, scores.roc().at(0.01)
    (0.875, 0.75)
    """

    def __init__(self, positives: ArrayLike, negatives: ArrayLike) -> None:
        p, n = np.atleast_2d(np.asarray(positives, dtype=float)), np.atleast_2d(np.asarray(negatives, dtype=float))
        if p.shape[1] != n.shape[1] or not (np.isfinite(p).all() and np.isfinite(n).all()):
            raise ValueError(f"expected finite scores of the same cases, got {p.shape} and {n.shape}")
        self.positives, self.negatives = p, n
        values = np.concatenate([p.ravel(), n.ravel()])
        order = np.argsort(-values, kind="stable")
        self._agent = np.repeat(np.arange(len(p) + len(n)), p.shape[1])[order]
        # Cases of equal score fall on the same side of every threshold.
        self._ends = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)

    def roc(self, weights: Floats | None = None) -> Roc:
        """The curve, each agent counted as often as `weights` says."""
        count = len(self.positives)
        if weights is None:
            weights = np.ones(count + len(self.negatives))
        weight = weights[self._agent]
        positive = np.where(self._agent < count, weight, 0.0).cumsum()[self._ends]
        negative = np.where(self._agent >= count, weight, 0.0).cumsum()[self._ends]
        return Roc(np.append(0.0, negative / negative[-1]), np.append(0.0, positive / positive[-1]))

    def intervals(self, rates: Sequence[float] = RATES, seed: int = 0) -> list[tuple[float, float]]:
        """95% bootstrap intervals, over agents, of the area and of the true positives at each rate."""
        generator = np.random.default_rng(seed)
        counts = [
            generator.multinomial(len(group), np.full(len(group), 1 / len(group)), size=RESAMPLES).astype(float)
            for group in (self.positives, self.negatives)
        ]
        weights = np.concatenate(counts, axis=1)
        blocks = np.array_split(weights, max(1, weights.shape[0] * len(self._agent) // _BLOCK))
        draws = np.concatenate([self._metrics_of(block, rates) for block in blocks], axis=1)
        return [percentiles(row, 0.95) for row in draws]

    def _metrics_of(self, weights: Floats, rates: Sequence[float]) -> Floats:
        """Compute `roc(w).area` and `roc(w).at(rate)` for many weights at once: [metric, resample]."""
        weight = weights[:, self._agent]
        mine = self._agent < len(self.positives)
        positive = np.where(mine, weight, 0.0).cumsum(axis=1)[:, self._ends]
        negative = np.where(mine, 0.0, weight).cumsum(axis=1)[:, self._ends]
        positive, negative = positive / positive[:, -1:], negative / negative[:, -1:]
        both = positive.copy()
        both[:, 1:] += positive[:, :-1]
        found = [(np.diff(negative, axis=1, prepend=0.0) * both).sum(axis=1) / 2]
        for rate in rates:
            last = (negative <= rate + 1e-12).sum(axis=1) - 1
            reached = np.take_along_axis(positive, np.maximum(last, 0)[:, None], axis=1)[:, 0]
            found.append(np.where(last < 0, 0.0, reached))
        return np.array(found)

    def p(self, *, two_sided: bool) -> float:
        """The permutation test of the area, over agents: their cases keep their ranks, the labels are dealt anew."""
        pooled = midranks(np.concatenate([self.positives, self.negatives])).sum(axis=1)
        rows, _ = labelings(len(self.positives), len(self.negatives))
        sums = rows @ pooled
        middle = pooled.sum() * len(self.positives) / len(pooled)
        return p_value(np.abs(sums - middle) if two_sided else sums - middle)

    def effect(self, *, two_sided: bool, interval: tuple[float, float]) -> Effect:
        """The area as an effect: ½ for groups that are alike."""
        return Effect(self.roc().area, *interval, 0.5, self.p(two_sided=two_sided))
