"""Seq: plain gradient descent, one task after another, on one network."""

from __future__ import annotations

from clpu.learning.batches import Examples
from clpu.methods.base import inputs_of, register
from clpu.methods.networks import NetworkMethod
from clpu.state import State


@register
class Seq(NetworkMethod):
    """Nothing protects old tasks from new ones, and forgetting does nothing."""

    name, label = "seq", "Seq"
    costs = (1, 0, 0)

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        known = self.read(state, inputs=inputs_of(data))
        known.main, _ = self.train_plain(task, data, known.main)
        return self.learned(state, task, data, temporary, known)

    def forget(self, state: State, task: str) -> State:
        return self.without_training(state, task)
