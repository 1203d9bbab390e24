"""LwF: learning without forgetting (Li & Hoiem 2017)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.losses import cross_entropy, distillation, weighted
from clpu.methods.base import Method, register
from clpu.networks.network import Each, Network
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

    def alike(self, tasks: Sequence[str]) -> list[Each]:
        """Tasks in groups with equally many classes, whose heads are served together."""
        groups: dict[int, list[str]] = {}
        for task in tasks:
            groups.setdefault(len(self.ledger[task].labels), []).append(task)
        return [Each(group) for group in groups.values()]

    def over_past(self, groups: Sequence[Each], terms: Iterable[Tensor]) -> Tensor:
        """1/|past| Σ_τ of a loss, from its means over each of the groups."""
        total = sum(map(len, groups))
        return weighted(*((len(group) / total, term) for group, term in zip(groups, terms)))

    def distilled(self, groups: Sequence[Each], outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """weight / |past| · Σ_τ cross-entropy between softened outputs before and now, on the new inputs."""
        terms = (distillation(now, then, self.settings.temperature) for now, then in zip(outputs, targets))
        return weighted((self.settings.distill, self.over_past(groups, terms)))

    def teacher(self, groups: Sequence[Each], data: Examples) -> Callable[[Batch], list[Tensor]]:
        """The outputs of the past tasks' heads on each batch of the new task, by the network as it is now.

        Without augmentation an example's outputs are always the same: all are computed once, in advance.
        """
        before = self.main
        if self.settings.augment != "none":

            def watch(batch: Batch) -> list[Tensor]:
                with torch.no_grad():
                    return before.logits(*((group, batch.x) for group in groups))

            return watch
        # Tables with a row for each (replica, task, example).
        tables = [torch.stack([before.evaluate(before.heads[t], data.x) for t in group], 1) for group in groups]
        firsts = [
            (torch.arange(table[..., 0, 0].numel(), device="cpu") * len(data)).view(*table.shape[:2], 1)
            for table in tables
        ]

        def look_up(batch: Batch) -> list[Tensor]:
            found = []
            for table, first in zip(tables, firsts):
                rows = (batch.index.unsqueeze(1) + first).reshape(-1).to(self.device)
                found.append(table.flatten(0, 2).index_select(0, rows).view(len(batch.index), -1, table.shape[-1]))
            return found

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
        groups = self.alike(past)
        teacher = self.teacher(groups, data)

        def loss(net: Network, batch: Batch) -> Tensor:
            new, *old = net.logits((task, batch.x), *((group, batch.x) for group in groups))
            return cross_entropy(new, batch.y) + self.distilled(groups, old, teacher(batch))

        self.main = self.fit(task, self.warmed_up(task, data), self.batches(task, data), loss)
