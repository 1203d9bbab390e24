"""LwF: learning without forgetting (Li & Hoiem 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.losses import cross_entropy, distillation, mean
from clpu.methods.base import Method, register
from clpu.networks.network import Network
from clpu.settings import Training, setting
from clpu.training import Batch, Examples


@dataclass(frozen=True)
class LwFSettings(Training):
    distill: float = setting(1.0, "weight of the distillation, divided by the number of past tasks", at_least=0)
    temperature: float = setting(2.0, "temperature that softens the outputs", above=0)


class Distilling(Method):
    """Keeps the earlier heads' outputs on the new task's inputs what they were before the task."""

    def warmed_up(self, task: str, data: Examples) -> Network:
        """The main network with a head for the task; from the second task on, that head alone is trained first."""
        network = self.with_fresh_head(self.main, task, data.classes)
        if not self.ledger:
            return network
        return self.fit(
            task,
            network,
            self.batches(task, data, "warm-up order"),
            lambda net, batch: cross_entropy(net.logits((task, batch.x))[0], batch.y),
            purpose="warm-up",
            head_only=True,
        )

    def distilled(self, before: Network, past: Sequence[str], x: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """weight / |past| · Σ_τ cross-entropy between softened outputs before and now, on the new inputs."""
        with torch.no_grad():
            targets = before.logits(*((t, x) for t in past))
        terms = [distillation(now, then, self.settings.temperature) for now, then in zip(outputs, targets)]
        return mean(terms) * self.settings.distill


@register
class LwF(Distilling):
    """Cross-entropy on the new task plus distillation; forgetting leaves the task out of what is distilled."""

    name = "lwf"
    Settings = LwFSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        before, past = self.main, list(self.ledger)

        def loss(net: Network, batch: Batch) -> Tensor:
            new, *old = net.logits((task, batch.x), *((t, batch.x) for t in past))
            term = cross_entropy(new, batch.y)
            return term + self.distilled(before, past, batch.x, old) if past else term

        self.main = self.fit(task, self.warmed_up(task, data), self.batches(task, data), loss)
