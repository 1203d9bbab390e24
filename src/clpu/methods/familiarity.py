"""How familiar an input looks to a task: a baseline for inputs whose task is not given.

The energy of an input is E(x) = log Σ_c exp f_c(x) (Liu et al. 2020); networks give more of it to what they know. Heads
are not comparable as they are, so each is calibrated on its own training data when the task is learned: with the
median m and the 5% quantile l of the energy there,

    familiarity = (E(x) − m) / (m − l)

is 0 for a typical input of the task and −1 for one that is less familiar than 95% of them. Where the agent scales
inputs, far-away ones are recognised by their size too: z² averaged over columns, calibrated in the same way with the
95% quantile; the smaller of the two numbers counts.

The weight of a task is exp(3 · familiarity), that of "none of these" exp(3 · −1): none of these is the answer when
every task finds the input less familiar than 95% of its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SHARPNESS, NONE_OF_THESE = 3.0, -1.0
#: How many examples calibrate a head.
EXAMPLES = 1000


def sample(x: Tensor) -> Tensor:
    """The inputs that calibrate a head: all, or evenly spaced ones."""
    step = -(-len(x) // EXAMPLES)
    return x[::step]


def calibration(x: Tensor, logits: Tensor, scaled: bool) -> dict[str, Any]:
    """Median and 5% quantile of the energy for each replica and, of scaled inputs, of the negative size: JSON."""
    measured = {"energy": _energy(logits), **({"size": -_size(x)} if scaled else {})}
    levels = torch.tensor([0.5, 0.05], dtype=torch.float64, device="cpu")
    return {name: torch.quantile(values.cpu(), levels, dim=-1).T.tolist() for name, values in measured.items()}


def familiarity(facts: Mapping[str, Any], x: Tensor, logits: Tensor) -> Tensor:
    """Return how familiar inputs are to a task with these facts, (replicas, n); 0 without a calibration."""
    known = facts.get("familiar", {})
    found = torch.zeros(logits.shape[:2], dtype=torch.float64, device=logits.device)
    if "energy" in known:
        found = _calibrated(_energy(logits), known["energy"])
    if "size" in known:
        found = torch.minimum(found, _calibrated(-_size(x), known["size"]))
    return found


def log_weights(facts: Mapping[str, Any], x: Tensor, logits: Tensor) -> Tensor:
    """3 · familiarity + log p(label | task) for each label of a task, (replicas, n, classes)."""
    return SHARPNESS * familiarity(facts, x, logits).unsqueeze(-1) + logits.double().log_softmax(-1)


def _energy(logits: Tensor) -> Tensor:
    return logits.double().logsumexp(-1)


def _size(x: Tensor) -> Tensor:
    return x.flatten(1).double().square().mean(1).unsqueeze(0)


def _calibrated(values: Tensor, quantiles: list[Any]) -> Tensor:
    middle, low = torch.tensor(quantiles, dtype=torch.float64, device=values.device).unbind(-1)
    spread = (middle - low).clamp_min(1e-9)
    return (values - middle.unsqueeze(-1)) / spread.unsqueeze(-1)
