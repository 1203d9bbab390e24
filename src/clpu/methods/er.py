"""ER: experience replay (Chaudhry et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clpu.losses import cross_entropy, towards_uniform
from clpu.memory import Memory, Sample
from clpu.methods.base import Method, register
from clpu.networks.network import Network
from clpu.settings import Training, setting
from clpu.training import Batch, Examples


@dataclass(frozen=True)
class RehearsalSettings(Training):
    memory: int = setting(200, "examples kept of each task", at_least=1)
    rehearsed: int = setting(32, "rehearsed examples a step, divided over the past tasks", at_least=1)


@dataclass(frozen=True)
class ERSettings(RehearsalSettings):
    uniform: bool = setting(False, "while forgetting, also pull the forgotten task's outputs to uniform")


class Rehearsing(Method):
    """Learns a new task together with samples of past tasks' memories, and keeps a memory of it."""

    keeps: ClassVar[tuple[str, ...] | None] = ("memory",)

    def replayed(self, sample: Sample, outputs: Tensor) -> Tensor:
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
        batches = self.batches(task, data)
        reservoir = self.reservoir(task, batches)
        rehearsal = self.rehearsal(past, task, "rehearsal")

        def loss(net: Network, batch: Batch) -> Tensor:
            samples = rehearsal.draw()
            new, *old = net.logits((task, batch.x), *((s.tasks, s.x) for s in samples))
            reservoir.see(batch, new)
            return cross_entropy(new, batch.y) + rehearsal.mean(self.replayed(s, h) for s, h in zip(samples, old))

        network = self.fit(task, self.with_fresh_head(network, task, data.classes), batches, loss)
        return network, reservoir.memory()


@register
class ER(Rehearsing):
    """Cross-entropy on the new task and on samples of the past.

    Forgetting drops the task's memory and goes on rehearsing the others, for as many steps as the task
    took to learn. The task's head stays in the network, as in the paper's experiment.
    """

    name = "er"
    Settings = ERSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.main, memory = self.learned(task, data, self.main, self.memories)
        self.memories[task] = Memory(memory.x, memory.y)

    def forget(self, task: str) -> None:
        memory = self.memories.pop(task)
        forgotten = {task: memory} if self.settings.uniform else {}
        if not self.memories and not forgotten:
            return
        rehearsal = self.rehearsal(self.memories, task, "forget")
        farewell = self.rehearsal(forgotten, task, "forget uniformly")

        def loss(net: Network, step: int) -> Tensor:
            kept, gone = rehearsal.draw(), farewell.draw()
            outputs = net.logits(*((s.tasks, s.x) for s in [*kept, *gone]))
            terms = rehearsal.mean(self.retained(s, h) for s, h in zip(kept, outputs))
            return terms + farewell.mean(towards_uniform(h) for h in outputs[len(kept) :])

        self.main = self.fit(task, self.main, range(self.ledger[task].steps), loss, "forget")

    def retained(self, sample: Sample, outputs: Tensor) -> Tensor:
        """The loss on a sample of tasks that stay, while another is forgotten."""
        return cross_entropy(outputs, sample.y)
