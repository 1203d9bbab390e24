"""The common part of ER, DER++ and CLPU-DER++: past tasks' memories are replayed while a new one is learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clpu.learning.batches import Batch, Examples
from clpu.learning.losses import Loss, cross_entropy
from clpu.learning.memory import Memory, Sample
from clpu.methods.networks import NetworkMethod
from clpu.networks.learner import Trainee
from clpu.networks.network import Network
from clpu.settings import Training, setting
from clpu.state import State


@dataclass(frozen=True)
class ReplaySettings(Training):
    memory: int = setting(200, "examples kept of each task", at_least=1)
    replay_batch_size: int = setting(32, "replayed examples per step, split across past tasks", at_least=1)


class ReplayMethod(NetworkMethod):
    """Learns a new task together with samples of past tasks' memories, and keeps a memory of it."""

    stores: ClassVar[tuple[str, ...]] = ("memory",)
    Settings: ClassVar[type] = ReplaySettings

    def replay_loss(self, sample: Sample, outputs: Tensor) -> Loss:
        """The loss on a sample of past tasks' memories."""
        return cross_entropy(outputs, sample.y)

    def train_with_replay(
        self, state: State, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> tuple[Network, Memory]:
        """The network after ℓ(new task) + 1/|past| Σ_τ replay_loss(B_τ), and the new task's memory."""
        if not past:
            network, first = self.train_plain(task, data, network)
            assert first is not None
            return network, first
        start = self.with_fresh_head(network, task, data.classes)
        batches = self.batches(task, data)
        reservoir = self.reservoir(task, batches)
        rehearsal = self.rehearsal(state, past, task, "rehearsal")

        def loss(net: Trainee, batch: Batch) -> Loss:
            samples = rehearsal.draw()
            new, *old = net.logits((task, batch.x), *((s.tasks, s.x) for s in samples))
            reservoir.see(batch, new)
            return cross_entropy(new, batch.y) + rehearsal.mean(self.replay_loss(s, h) for s, h in zip(samples, old))

        return self.fit(task, start, batches, loss), reservoir.memory()
