"""Seq: plain gradient descent, one task after another, on one network."""

from __future__ import annotations

from clpu.methods.base import Method, register
from clpu.training import Examples


@register
class Seq(Method):
    """Nothing protects old tasks from new ones, and forgetting does nothing."""

    name = "seq"
    keeps = ()

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.main, _ = self.learned_alone(task, data, self.main)
