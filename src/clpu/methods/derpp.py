"""DER++: dark experience replay (Buzzega et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clpu.losses import Loss, cross_entropy, squared_error, weighted
from clpu.memory import Memory, Sample
from clpu.methods.base import register
from clpu.methods.er import ER, ERSettings
from clpu.methods.rehearsing import RehearsalSettings, Rehearsing
from clpu.networks.network import Network
from clpu.settings import setting
from clpu.training import Examples


@dataclass(frozen=True)
class DarkSettings(RehearsalSettings):
    alpha: float = setting(0.5, "weight of the squared error to the logits in the memory", at_least=0)
    beta: float = setting(1.0, "weight of the cross-entropy on the memory (CIFAR-10: 0.5)", at_least=0)
    logits: str = setting(
        "online",
        "the logits in the memory: as each example was seen, or of the final network",
        choices=("online", "final"),
    )


class Dark(Rehearsing):
    """Rehearsal that also keeps the outputs that the network gave: α·(f(x) − h)² + β·ℓ(x, y, f)."""

    keeps = ("memory", "logits")

    def replayed(self, sample: Sample, outputs: Tensor) -> Loss:
        assert sample.logits is not None
        mse, ce = squared_error(outputs, sample.logits), cross_entropy(outputs, sample.y)
        return weighted((self.settings.alpha, mse), (self.settings.beta, ce))

    def learned(
        self, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> tuple[Network, Memory]:
        network, memory = super().learned(task, data, network, past)
        if self.settings.logits == "final":
            with torch.no_grad():
                memory = replace(memory, logits=network.logits((task, memory.x))[0])
        return network, memory


@dataclass(frozen=True)
class DERppSettings(DarkSettings, ERSettings):
    pass


@register
class DERpp(Dark, ER):
    """ER with logits. While a task is forgotten, the others are rehearsed with weights 1 and 1."""

    name = "der++"
    Settings = DERppSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.main, self.memories[task] = self.learned(task, data, self.main, self.memories)

    def retained(self, sample: Sample, outputs: Tensor) -> Loss:
        assert sample.logits is not None
        return squared_error(outputs, sample.logits) + cross_entropy(outputs, sample.y)
