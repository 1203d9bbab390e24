"""ER: experience replay (Chaudhry et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clpu.learning.batches import Examples
from clpu.learning.losses import Loss, cross_entropy, towards_uniform
from clpu.learning.memory import Memory, Sample
from clpu.methods.base import inputs_of, register
from clpu.methods.replay import ReplayMethod, ReplaySettings
from clpu.networks.learner import Trainee
from clpu.settings import setting
from clpu.state import State


@dataclass(frozen=True)
class ERSettings(ReplaySettings):
    uniform_loss: bool = setting(False, "while forgetting, also train the forgotten task's outputs to be uniform")


@register
class ER(ReplayMethod):
    """Cross-entropy on the new task and on samples of the past.

    Forgetting drops the task's memory and replays the others, for as many steps as the task took to learn. The
    task's head stays in the network, as in the paper's experiment.
    """

    name, label = "er", "ER"
    costs = (1.8, 0, 1)
    Settings = ERSettings

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        known = self.read(state, inputs=inputs_of(data))
        known.main, memory = self.train_with_replay(state, task, data, known.main, known.memories)
        known.memories[task] = Memory(memory.x, memory.y)
        return self.learned(state, task, data, temporary, known)

    def forget(self, state: State, task: str) -> State:
        known = self.read(state)
        gone = {task: known.memories.pop(task)} if self.settings.uniform_loss else {}
        known.memories.pop(task, None)
        if known.memories or gone:
            rehearsal = self.rehearsal(state, known.memories, task, "forget")
            uniform_draws = self.rehearsal(state, gone, task, "forget uniformly")

            def loss(net: Trainee, step: int) -> Loss:
                kept, forgotten = rehearsal.draw(), uniform_draws.draw()
                outputs = net.logits(*((s.tasks, s.x) for s in [*kept, *forgotten]))
                terms = rehearsal.mean(self.retention_loss(s, h) for s, h in zip(kept, outputs))
                return terms + uniform_draws.mean(towards_uniform(h) for h in outputs[len(kept) :])

            known.main = self.fit(task, known.main, range(state.tasks[task].facts["steps"]), loss, "forget")
        return self.write(state.without(task), known)

    def retention_loss(self, sample: Sample, outputs: Tensor) -> Loss:
        """The loss on a sample of tasks that stay, while a different one is forgotten."""
        return cross_entropy(outputs, sample.y)
