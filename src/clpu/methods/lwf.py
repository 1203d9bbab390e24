"""LwF: learning without forgetting (Li & Hoiem 2017)."""

from __future__ import annotations

from clpu.losses import Loss, cross_entropy
from clpu.methods.base import register
from clpu.methods.distilling import Distilling, DistillingSettings
from clpu.networks.network import Network
from clpu.training import Batch, Examples


@register
class LwF(Distilling):
    """Cross-entropy on the new task plus distillation; forgetting leaves the task out of what is distilled."""

    name = "lwf"
    Settings = DistillingSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        past = list(self.ledger)
        if not past:
            self.main, _ = self.learned_alone(task, data, self.main)
            return
        groups = self.alike(past)
        teacher = self.teacher(groups, data)

        def loss(net: Network, batch: Batch) -> Loss:
            new, *old = net.logits((task, batch.x), *((group, batch.x) for group in groups))
            return cross_entropy(new, batch.y) + self.distilled(groups, old, teacher(batch))

        self.main = self.fit(task, self.warmed_up(task, data), self.batches(task, data), loss)
