"""Seq: plain gradient descent, one task after another, on one network."""

from __future__ import annotations

from clpu.losses import cross_entropy
from clpu.methods.base import Method, register
from clpu.training import Examples


@register
class Seq(Method):
    """Nothing protects old tasks from new ones, and forgetting does nothing."""

    name = "seq"
    keeps = ()

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.main = self.fit(
            task,
            self.with_fresh_head(self.main, task, data.classes),
            self.batches(task, data),
            lambda net, batch: cross_entropy(net.logits((task, batch.x))[0], batch.y),
        )
