"""ER: experience replay (Chaudhry et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clpu.losses import Loss, cross_entropy, towards_uniform
from clpu.memory import Memory, Sample
from clpu.methods.base import register
from clpu.methods.rehearsing import RehearsalSettings, Rehearsing
from clpu.networks.network import Network
from clpu.settings import setting
from clpu.training import Examples


@dataclass(frozen=True)
class ERSettings(RehearsalSettings):
    uniform: bool = setting(False, "while forgetting, also pull the forgotten task's outputs to uniform")


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

        def loss(net: Network, step: int) -> Loss:
            kept, gone = rehearsal.draw(), farewell.draw()
            outputs = net.logits(*((s.tasks, s.x) for s in [*kept, *gone]))
            terms = rehearsal.mean(self.retained(s, h) for s, h in zip(kept, outputs))
            return terms + farewell.mean(towards_uniform(h) for h in outputs[len(kept) :])

        self.main = self.fit(task, self.main, range(self.ledger[task].steps), loss, "forget")

    def retained(self, sample: Sample, outputs: Tensor) -> Loss:
        """The loss on a sample of tasks that stay, while another is forgotten."""
        return cross_entropy(outputs, sample.y)
