"""The metrics, as pure functions of arrays, each with its formula; none of them needs torch.

`learning` is about active tasks, `forgetting` about forgotten ones, `resampling` about intervals over seeds.
"""

from clpu.metrics.forgetting import (
    IrrResolution,
    across_group,
    as_published,
    as_published_tasks,
    in_group,
    irr,
    irr_resolution,
    js_ratio,
    jsd,
    jsd_matrix,
    spread_as_published,
)
from clpu.metrics.learning import (
    accuracy_and_forgetting,
    backward_transfer,
    births,
    forgotten_accuracy,
    forward_transfer,
)
from clpu.metrics.resampling import PairIntervals, bootstrap_mean, bootstrap_pairs

__all__ = [
    "IrrResolution",
    "PairIntervals",
    "accuracy_and_forgetting",
    "across_group",
    "as_published",
    "as_published_tasks",
    "backward_transfer",
    "births",
    "bootstrap_mean",
    "bootstrap_pairs",
    "forgotten_accuracy",
    "forward_transfer",
    "in_group",
    "irr",
    "irr_resolution",
    "js_ratio",
    "jsd",
    "jsd_matrix",
    "spread_as_published",
]
