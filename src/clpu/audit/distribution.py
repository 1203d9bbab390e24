"""Outputs: can runs that forgot be told from runs that never learned, by what they answer?"""

from __future__ import annotations

import numpy as np

from clpu.audit.findings import Attack
from clpu.audit.observed import Observed
from clpu.audit.permutation import energy_test
from clpu.metrics import bootstrap_pairs, jsd_matrix


def outputs(actual: Observed, never: Observed) -> Attack:
    """The answers for the forgotten task itself: IJSD and AJSD of the paper, and the test on all distances.

    The distance of two runs is the mean Jensen-Shannon divergence of their outputs on the task's test images.
    """
    count = len(actual.outputs)
    distances = jsd_matrix(np.concatenate([actual.outputs, never.outputs]))
    within, across = distances[count:, count:], distances[:count, count:]
    intervals = bootstrap_pairs([within], [across], np.random.default_rng(0))
    figures = {
        "ijsd": float(within[np.triu_indices(len(within), 1)].mean()),
        "ijsd_interval": list(intervals.ijsd),
        "ajsd": float(across.mean()),
        "ajsd_interval": list(intervals.ajsd),
        "accuracy": float(actual.accuracy.mean()),
        "accuracy_never": float(never.accuracy.mean()),
    }
    return Attack("outputs", energy_test(distances, count), figures)


def side_effects(actual: Observed, never: Observed) -> Attack | None:
    """The answers of the tasks that are alive, on the forgotten task's images; `None` if none is alive.

    A forgotten task's own head may be fresh, and tell nothing, while the others' answers still bear its mark. The
    distance of two runs is the mean total variation ½ Σ |p - q|, summed over the heads of the tasks alive.
    """
    if not actual.others.shape[-1]:
        return None
    pooled = np.exp(np.concatenate([actual.others, never.others]).astype(np.float64))
    distances = np.stack([np.abs(pooled - run).sum(-1).mean(-1) / 2 for run in pooled])
    return Attack("side effects", energy_test(distances, len(actual.others)))
