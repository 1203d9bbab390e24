"""Features: does the body of the network still see the world as one that learned the task would?

A fresh head hides what the body remembers from every attack on outputs. Features of two networks cannot be compared
number by number: with a different seed, the same function has its units in a different order. What can be compared is
which inputs a network treats as similar, so two runs are compared by the similarity matrices of their features (linear
CKA, Kornblith et al. 2019), which no reordering, rotation or scaling of the units changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.audit.findings import Attack
from clpu.audit.observations import Observations
from clpu.audit.permutation import energy_test


def cka_distances(features: ArrayLike) -> NDArray[np.float64]:
    """1 - CKA of every pair of runs, for features [run, image, unit].

    CKA(X, Y) = ⟨K, L⟩ / (‖K‖·‖L‖),  K = HXXᵀH, L = HYYᵀH,  H subtracts the mean over images

    >>> x = np.random.default_rng(0).normal(size=(20, 5))
    >>> bool(abs(cka_distances([x, 3 * x[:, ::-1]])[0, 1]) < 1e-12)
    True
    """
    x = np.asarray(features, dtype=float)
    x = x - x.mean(axis=1, keepdims=True)
    similar = (x @ x.transpose(0, 2, 1)).reshape(len(x), -1)
    norms = np.linalg.norm(similar, axis=1, keepdims=True)
    # A network all of whose units are dead is similar to nothing but itself.
    similar = similar / np.where(norms > 0, norms, 1.0)
    distances = np.clip(1 - similar @ similar.T, 0.0, 1.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def features(actual: Observations, counterfactual: Observations) -> Attack | None:
    """Distances across the groups against those within; `None` for a method without a network."""
    if not actual.features.shape[-1]:
        return None
    count = len(actual.features)
    distances = cka_distances(np.concatenate([actual.features, counterfactual.features]))
    within = distances[count:, count:][np.triu_indices(len(counterfactual.features), 1)]
    details = {"across": float(distances[:count, count:].mean()), "within": float(within.mean())}
    return Attack("features", energy_test(distances, count), details)
