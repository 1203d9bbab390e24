"""Membership: does an agent's confidence on a training example show that it once learned it?

U-LiRA, the likelihood-ratio attack on unlearning (Carlini et al. 2022; Hayes et al. 2024). The adversary trains shadow
agents of two kinds, some that learned and forgot the task and some that never saw it, and fits for each example two
normal distributions to the confidences. A target agent's confidence on that example is then scored by

    Λ = log N(φ; μ_forgot, σ_forgot) - log N(φ; μ_never, σ_never),    φ = log p/(1-p) of the right class

Targets are agents that were not shadows, half of them of each kind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.audit.findings import Attack
from clpu.audit.observations import Observations
from clpu.audit.roc import RATES, Scores

Floats = NDArray[np.float64]

#: With fewer shadows than this, one variance for all examples is better than one for each.
ENOUGH_SHADOWS = 16
#: Curves are kept at these false-positive rates.
GRID = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def likelihood_ratios(forgot: ArrayLike, never: ArrayLike, targets: ArrayLike) -> Floats:
    """Λ for confidences targets[agent, example], from those of shadow agents that forgot and that never learned.

    >>> likelihood_ratios([[1.0], [3.0]], [[-1.0], [-3.0]], [[0.0], [2.0]]).round(2)
    array([[0.],
           [4.]])
    """
    x = np.asarray(targets, dtype=float)
    return _log_normal(x, forgot) - _log_normal(x, never)


def _log_normal(x: Floats, shadows: ArrayLike) -> Floats:
    """log N(x; μ, σ) with μ and σ of each example from the shadows, but for the constant."""
    s = np.asarray(shadows, dtype=float)
    mean, variance = s.mean(axis=0), s.var(axis=0, ddof=1)
    if len(s) < ENOUGH_SHADOWS:
        variance = np.full_like(variance, variance.mean())
    variance = np.maximum(variance, 1e-6)  # shadows that agree exactly, as copies would
    return -((x - mean) ** 2) / (2 * variance) - np.log(variance) / 2


def attacks(actual: Observations, counterfactual: Observations) -> list[Attack]:
    """The per-example attack, and the one with a single threshold for all examples."""
    forgot, unaware = _bounded(actual.confidence), _bounded(counterfactual.confidence)
    half = min(len(forgot), len(unaware)) // 2
    shadows, targets = (forgot[:half], unaware[:half]), (forgot[half:], unaware[half:])
    ratios = Scores(*(likelihood_ratios(*shadows, group) for group in targets))
    return [
        _attack("membership", ratios, two_sided=False, shadows=half),
        _attack("threshold", Scores(*targets), two_sided=True, shadows=0),
    ]


def _attack(name: str, scores: Scores, *, two_sided: bool, shadows: int) -> Attack:
    roc, intervals = scores.roc(), scores.intervals()
    details: dict[str, object] = {
        "shadows": shadows,
        "targets": [len(scores.positives), len(scores.negatives)],
        "examples": scores.positives.shape[1],
        "curve": [[rate, roc.at(rate)] for rate in GRID],
    }
    for rate, interval in zip(RATES, intervals[1:]):
        details[f"tpr_at_{rate:g}"] = roc.at(rate)
        details[f"tpr_at_{rate:g}_interval"] = list(interval)
    return Attack(name, scores.effect(two_sided=two_sided, interval=intervals[0]), details)


def _bounded(confidence: ArrayLike) -> Floats:
    """Saturated outputs (p = 1 in float32) have infinite log-odds: bring them to the edge of float32's precision."""
    return np.clip(np.nan_to_num(np.asarray(confidence, dtype=float), posinf=100, neginf=-100), -100, 100)
