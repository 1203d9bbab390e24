"""DER++: dark experience replay (Buzzega et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from clpu.learning.batches import Examples
from clpu.learning.losses import Loss, cross_entropy, squared_error, weighted
from clpu.learning.memory import Memory, Sample
from clpu.methods.base import inputs_of, register
from clpu.methods.er import ER, ERSettings
from clpu.methods.replay import ReplayMethod, ReplaySettings
from clpu.networks.network import Network
from clpu.settings import setting
from clpu.state import State


@dataclass(frozen=True)
class DarkSettings(ReplaySettings):
    alpha: float = setting(0.5, "weight of the squared error to the logits in the memory", at_least=0)
    beta: float = setting(1.0, "weight of the cross-entropy on the memory (CIFAR-10: 0.5)", at_least=0)
    logits: str = setting(
        "online",
        "the logits in the memory: as each example was seen, or of the final network",
        choices=("online", "final"),
    )


class DarkReplay(ReplayMethod):
    """Replay that also keeps the outputs that the network gave: α·(f(x) − h)² + β·ℓ(x, y, f)."""

    stores = ("memory", "logits")
    Settings: ClassVar[type] = DarkSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {"beta": 0.5}}

    def replay_loss(self, sample: Sample, outputs: Tensor) -> Loss:
        assert sample.logits is not None
        mse, ce = squared_error(outputs, sample.logits), cross_entropy(outputs, sample.y)
        return weighted((self.settings.alpha, mse), (self.settings.beta, ce))

    def train_with_replay(
        self, state: State, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> tuple[Network, Memory]:
        network, memory = super().train_with_replay(state, task, data, network, past)
        if self.settings.logits == "final":
            memory = replace(memory, logits=network.logits((task, memory.x))[0])
        return network, memory


@dataclass(frozen=True)
class DERppSettings(DarkSettings, ERSettings):
    pass


@register
class DERpp(DarkReplay, ER):
    """ER with logits. While a task is forgotten, the others are replayed with weights 1 and 1."""

    name, label = "der++", "DER++"
    Settings = DERppSettings

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        known = self.read(state, inputs=inputs_of(data))
        known.main, known.memories[task] = self.train_with_replay(state, task, data, known.main, known.memories)
        return self.learned(state, task, data, temporary, known)

    def retention_loss(self, sample: Sample, outputs: Tensor) -> Loss:
        assert sample.logits is not None
        return squared_error(outputs, sample.logits) + cross_entropy(outputs, sample.y)
