"""Outputs: do the answers of runs that forgot differ from those of runs that never learned?"""

from __future__ import annotations

import numpy as np

from clpu.audit.findings import Attack
from clpu.audit.observations import Observations
from clpu.audit.permutation import energy_test
from clpu.metrics import bootstrap_pairs, jsd_matrix


def outputs(actual: Observations, counterfactual: Observations) -> Attack:
    """The answers for the forgotten task itself: IJSD and AJSD of the paper, and the test on all distances.

    The distance of two runs is the mean Jensen-Shannon divergence of their outputs on the task's test images.
    """
    count = len(actual.outputs)
    distances = jsd_matrix(np.concatenate([actual.outputs, counterfactual.outputs]))
    within, across = distances[count:, count:], distances[:count, count:]
    intervals = bootstrap_pairs([within], [across], np.random.default_rng(0))
    details = {
        "ijsd": float(within[np.triu_indices(len(within), 1)].mean()),
        "ijsd_interval": list(intervals.ijsd),
        "ajsd": float(across.mean()),
        "ajsd_interval": list(intervals.ajsd),
        "accuracy": float(actual.accuracy.mean()),
        "accuracy_counterfactual": float(counterfactual.accuracy.mean()),
    }
    return Attack("outputs", energy_test(distances, count), details)


def side_effects(actual: Observations, counterfactual: Observations) -> Attack | None:
    """The answers for the active tasks, on the forgotten task's images; `None` if none is active.

    A forgotten task's own head may be fresh, and show nothing, while it still affects the other answers. The distance
    of two runs is the mean total variation ½ Σ |p - q|, summed over the heads of the active tasks.
    """
    if not actual.others.shape[-1]:
        return None
    pooled = np.exp(np.concatenate([actual.others, counterfactual.others]).astype(np.float64))
    distances = np.stack([np.abs(pooled - run).sum(-1).mean(-1) / 2 for run in pooled])
    return Attack("side effects", energy_test(distances, len(actual.others)))
