"""What ER, DER++ and CLPU-DER++ have in common: past tasks' memories are rehearsed while a new one is learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clpu.losses import Loss, cross_entropy
from clpu.memory import Memory, Sample
from clpu.methods.base import METHODS, Method
from clpu.networks.network import Network
from clpu.settings import Training, setting
from clpu.training import Batch, Examples


@dataclass(frozen=True)
class RehearsalSettings(Training):
    memory: int = setting(200, "examples kept of each task", at_least=1)
    rehearsed: int = setting(32, "rehearsed examples a step, divided over the past tasks", at_least=1)


class Rehearsing(Method):
    """Learns a new task together with samples of past tasks' memories, and keeps a memory of it."""

    keeps: ClassVar[tuple[str, ...] | None] = ("memory",)
    #: Names of methods that learn a second task together with the first in the very same way.
    twins: ClassVar[tuple[str, ...]] = ()

    def replayed(self, sample: Sample, outputs: Tensor) -> Loss:
        """The loss on a sample of past tasks' memories."""
        return cross_entropy(outputs, sample.y)

    def learned(
        self, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> tuple[Network, Memory]:
        """The network after ℓ(new task) + 1/|past| Σ_τ replayed(B_τ), and the new task's memory."""
        if not past:
            network, memory = self.learned_alone(task, data, network)
            assert memory is not None
            return network, memory
        start = self.with_fresh_head(network, task, data.classes)

        def learn() -> tuple[Network, Memory]:
            batches = self.batches(task, data)
            reservoir = self.reservoir(task, batches)
            rehearsal = self.rehearsal(past, task, "rehearsal")

            def loss(net: Network, batch: Batch) -> Loss:
                samples = rehearsal.draw()
                new, *old = net.logits((task, batch.x), *((s.tasks, s.x) for s in samples))
                reservoir.see(batch, new)
                return cross_entropy(new, batch.y) + rehearsal.mean(self.replayed(s, h) for s, h in zip(samples, old))

            return self.fit(task, start, batches, loss), reservoir.memory()

        twin = METHODS.get(self.name) is type(self) and self.name in self.twins
        if not twin or len(past) > 1:  # after a third task not even twins are alike
            return learn()
        network, memory = self._learned_once(task, data, start, learn, ["rehearsing", self.twins, self.settings], past)
        assert memory is not None
        return network, memory
