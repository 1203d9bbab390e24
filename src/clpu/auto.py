"""The values behind the setting "auto": a rule that looks at the numbers of examples and inputs, and at the network.

| setting | MLP | any other network |
|---|---|---|
| `batch_size` | 32 | 32 |
| `epochs` | 40, but at least 1,000 and at most 20,000 steps | 10, but at least 300 and at most 10,000 steps |
| `weight_decay` | 0.02 · inputs / examples, but at least 0.0005 and at most 0.02 | 0.0005 |
| `lr` | 0.1; with momentum 0.01; with adam and adamw 0.001 | half of it |

If training diverges, a learning rate that was "auto" is divided by four, at most three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BATCH_SIZE = 32
#: Passes over the data, and the fewest and the most steps; for the MLP and for other networks.
PASSES, STEPS = (40, 10), ((1_000, 20_000), (300, 10_000))
RATES = {"sgd": 0.1, "momentum": 0.01, "adam": 0.001, "adamw": 0.001}
#: The least and the most weight decay: few examples of many numbers need more.
DECAY = (0.0005, 0.02)
#: The divisor of a learning rate that diverges, and the number of attempts.
SLOWER, ATTEMPTS = 4, 4


def resolved(settings: Mapping[str, Any], examples: int, inputs: int, network: str) -> dict[str, Any]:
    """The values of those settings that are "auto", for a task with these numbers of examples and inputs.

    >>> resolved({"epochs": "auto", "batch_size": "auto", "lr": "auto"}, 105, 4, "mlp")
    {'batch_size': 32, 'epochs': 250, 'lr': 0.1}
    >>> resolved({"epochs": "auto", "batch_size": 64, "lr": 0.05}, 60_000, 784, "resnet18")
    {'epochs': 10}
    """
    other = network != "mlp"
    found: dict[str, Any] = {}
    if settings.get("batch_size") == "auto":
        found["batch_size"] = BATCH_SIZE
    if settings.get("epochs") == "auto":
        size = found.get("batch_size") or settings.get("batch_size") or BATCH_SIZE
        per_pass = -(-examples // size)
        fewest, most = STEPS[other]
        found["epochs"] = max(1, round(min(max(PASSES[other] * per_pass, fewest), most) / per_pass))
    if settings.get("lr") == "auto":
        found["lr"] = RATES[settings.get("optimizer") or "sgd"] / (2 if other else 1)
    if settings.get("weight_decay") == "auto":
        low, high = DECAY
        found["weight_decay"] = low if other else min(max(high * inputs / examples, low), high)
    return found
