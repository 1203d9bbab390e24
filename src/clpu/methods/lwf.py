"""LwF: learning without forgetting (Li & Hoiem 2017)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.losses import cross_entropy, distillation, mean, weighted
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

    keeps = ()

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

    def distilled(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """weight / |past| · Σ_τ cross-entropy between softened outputs before and now, on the new inputs."""
        terms = [distillation(now, then, self.settings.temperature) for now, then in zip(outputs, targets)]
        return weighted((self.settings.distill, mean(terms)))

    def teacher(self, past: Sequence[str], data: Examples) -> Callable[[Batch], list[Tensor]]:
        """The outputs of the past tasks' heads on each batch of the new task, by the network as it is now.

        Without augmentation an example's outputs are always the same: all are computed once, in advance.
        """
        before = self.main
        if self.settings.augment != "none":

            def watch(batch: Batch) -> list[Tensor]:
                with torch.no_grad():
                    return before.logits(*((t, batch.x) for t in past))

            return watch
        tables = [before.evaluate(before.heads[t], data.x) for t in past]
        first = torch.arange(len(self.seeds), device="cpu").unsqueeze(1) * len(data)

        def look_up(batch: Batch) -> list[Tensor]:
            rows = (batch.index + first).reshape(-1).to(self.device)
            return [t.flatten(0, 1).index_select(0, rows).view(*batch.index.shape, -1) for t in tables]

        return look_up


@register
class LwF(Distilling):
    """Cross-entropy on the new task plus distillation; forgetting leaves the task out of what is distilled."""

    name = "lwf"
    Settings = LwFSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        past = list(self.ledger)
        if not past:
            self.main, _ = self.learned_alone(task, data, self.main)
            return
        teacher = self.teacher(past, data)

        def loss(net: Network, batch: Batch) -> Tensor:
            new, *old = net.logits((task, batch.x), *((t, batch.x) for t in past))
            return cross_entropy(new, batch.y) + self.distilled(old, teacher(batch))

        self.main = self.fit(task, self.warmed_up(task, data), self.batches(task, data), loss)
