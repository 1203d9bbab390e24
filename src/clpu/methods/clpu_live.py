"""CLPU-Live: CLPU whose teachers are asked while they still exist. Ours, not the paper's.

CLPU-DER++ keeps what the networks knew as the answers that they gave for 200 examples. But whenever a task is merged
or learned permanently, the networks that know are still there, and can be asked about inputs near the data, without
end: blends of two examples in the memory, with a little noise. The examples are also replayed with their labels.

Teachers answer as they do for users (BatchNorm with its running statistics). All that is used comes from the state, so
forgetting is as exact as CLPU-DER++'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clpu.learning.batches import Batch, Examples
from clpu.learning.blends import Blends
from clpu.learning.losses import Loss, cross_entropy, squared_error
from clpu.learning.memory import Memory, Rehearsal
from clpu.methods.base import register
from clpu.methods.clpu_derpp import CLPU
from clpu.methods.replay import ReplaySettings
from clpu.networks.learner import Trainee
from clpu.networks.network import Network
from clpu.networks.parts import Part
from clpu.settings import setting
from clpu.state import State

#: The squared error has its full weight up to lr = classes / STEEPEST.
STEEPEST = 400


@dataclass(frozen=True)
class LiveSettings(ReplaySettings):
    blends: int = setting(32, "blends per step, split across past tasks", at_least=1)
    noise: float = setting(0.05, "share of a blend's values that is replaced by noise", at_least=0, at_most=1)


class Lessons:
    """The loss towards a teacher g on some tasks: 1/n Σ_τ (w·(f_τ − g_τ)² on blends of B_τ + ℓ on examples of B_τ)."""

    def __init__(self, teacher: Network, blends: Blends, examples: Rehearsal, lr: float) -> None:
        self.teacher, self.blends, self.examples, self.lr = teacher, blends, examples, lr

    def draw(self) -> list[Part]:
        """One step's inputs."""
        self.asked, self.replayed = self.blends.draw(), self.examples.draw()
        return [*self.asked, *((sample.tasks, sample.x) for sample in self.replayed)]

    def loss(self, outputs: Sequence[Tensor]) -> Loss:
        """The loss of the outputs for these inputs."""
        answers = self.teacher.logits(*self.asked)
        errors = (self.weight(f) * squared_error(f, g) for f, g in zip(outputs, answers))
        right = (cross_entropy(f, sample.y) for f, sample in zip(outputs[len(answers) :], self.replayed))
        return self.blends.mean(errors) + self.examples.mean(right)

    def weight(self, outputs: Tensor) -> float:
        """w = min(1, classes / (400·lr)).

        The squared error is the steeper the fewer classes its mean is over: 2·|features|² / classes along the features.
        Where lr is too large for that, descent would end in noise.
        """
        return min(1.0, outputs.shape[-1] / (STEEPEST * self.lr))


@register
class CLPULive(CLPU):
    """As CLPU-DER++, but networks answer for blends of examples, instead of stored logits for the examples."""

    name, label = "clpu-live", "CLPU-Live"
    costs = (1.4, 3, 0)
    Settings: ClassVar[type] = LiveSettings

    def train_with_replay(
        self, state: State, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> tuple[Network, Memory]:
        """Cases I and II: ℓ(new task) + the lessons of the network before the task about the past ones."""
        if not past:
            trained, memory = self.train_plain(task, data, network)
            assert memory is not None
            return trained, Memory(memory.x, memory.y)
        batches = self.batches(task, data)
        reservoir = self.reservoir(task, batches)
        lessons = self.lessons(state, network, past, task, "rehearsal")

        def loss(net: Trainee, batch: Batch) -> Loss:
            new, *old = net.logits((task, batch.x), *lessons.draw())
            reservoir.see(batch)
            return cross_entropy(new, batch.y) + lessons.loss(old)

        start = self.with_fresh_head(network, task, data.classes)
        return self.fit(task, start, batches, loss), reservoir.memory()

    def keep(self, state: State, task: str) -> State:
        """Case III: the lessons of θ̂ about its task + those of θ_main before the merge about the remembered ones.

        The merge starts from θ_main with the head of θ̂, and takes as many steps as the task was learned with.
        """
        known = self.read(state, [*state.remembered, task])
        isolated = known.isolated.pop(task)
        if not state.remembered:  # θ_main knows nothing, so θ̂ takes its place
            known.main = isolated
            return self.write(state, known)
        mine = self.lessons(state, isolated, {task: known.memories[task]}, task, "merge")
        past = {t: known.memories[t] for t in state.remembered}
        others = self.lessons(state, known.main, past, task, "merge rehearsal")

        def loss(net: Trainee, step: int) -> Loss:
            own, rest = mine.draw(), others.draw()
            outputs = net.logits(*own, *rest)
            return mine.loss(outputs[: len(own)]) + others.loss(outputs[len(own) :])

        start = known.main.with_head(task, isolated.heads[task])
        known.main = self.fit(task, start, range(state.tasks[task].facts["steps"]), loss, "merge")
        return self.write(state, known)

    def lessons(
        self, state: State, teacher: Network, memories: Mapping[str, Memory], task: str, purpose: str
    ) -> Lessons:
        """The loss towards a teacher on tasks, at inputs near their memories."""
        classes = {t: len(state.tasks[t].labels) for t in memories}
        blends = Blends(
            memories,
            classes,
            self.settings.blends,
            self.settings.noise,
            self.generators(task, purpose),
            self.blueprint.pixels,
            self.augmentation(task, purpose),
        )
        examples = self.rehearsal(state, memories, task, f"labelled {purpose}")
        return Lessons(teacher, blends, examples, self.settings.lr)
