"""The common part of LwF and LSF: the new head first, then all of it with the earlier heads' outputs preserved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clpu.learning.batches import Batch, Examples
from clpu.learning.losses import Loss, cross_entropy, distillation, softened, weighted
from clpu.methods.networks import NetworkMethod
from clpu.networks.body import PrecomputedFeatures
from clpu.networks.network import Network
from clpu.networks.parts import Each, Pixels
from clpu.settings import Training, setting
from clpu.state import State


@dataclass(frozen=True)
class DistillationSettings(Training):
    distill: float = setting(1.0, "weight of the distillation, divided by the number of past tasks", at_least=0)
    temperature: float = setting(2.0, "temperature that softens the outputs", above=0)


class DistillationMethod(NetworkMethod):
    """Keeps the earlier heads' outputs on the new task's inputs what they were before the task."""

    Settings: ClassVar[type] = DistillationSettings

    def warm_up_head(self, state: State, network: Network, task: str, data: Examples) -> Network:
        """The network with a head for the task; from the second task on, that head alone is trained first."""
        network = self.with_fresh_head(network, task, data.classes)
        if not state.tasks:
            return network
        start, given, inputs = network, data, lambda batch: batch.x
        if network.body.separate and self.settings.augment == "none":
            # The body does not change, so an example's features are always the same.
            inputs = look_up(network.features(data.x).unsqueeze(1), self.device)
            given = replace(data, x=torch.arange(len(data), device=self.device))
            body = PrecomputedFeatures(network.body.replicas, network.body.features)
            start = Network(body, {task: network.heads[task]}, Pixels())
        trained = self.fit(
            task,
            start,
            self.batches(task, given, "warm-up order"),
            lambda net, batch: cross_entropy(net.logits((task, inputs(batch)))[0], batch.y),
            "warm-up",
            only=[f"head {task}.weight", f"head {task}.bias"],
        )
        return trained if start is network else network.with_head(task, trained.heads[task])

    def group_by_class_count(self, state: State, tasks: Sequence[str]) -> list[Each]:
        """Tasks in groups with equally many classes, whose heads are served together."""
        groups: dict[int, list[str]] = {}
        for task in tasks:
            groups.setdefault(len(state.tasks[task].labels), []).append(task)
        return [Each(group) for group in groups.values()]

    def mean_over_past(self, groups: Sequence[Each], terms: Iterable[Loss]) -> Loss:
        """1/|past| Σ_τ of a loss, from its means over each of the groups."""
        total = sum(map(len, groups))
        return weighted(*((len(group) / total, term) for group, term in zip(groups, terms)))

    def distillation_loss(self, groups: Sequence[Each], outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Loss:
        """weight / |past| · Σ_τ cross-entropy between softened outputs before and now, on the new inputs."""
        terms = (distillation(now, then, temperature=self.settings.temperature) for now, then in zip(outputs, targets))
        return weighted((self.settings.distill, self.mean_over_past(groups, terms)))

    def teacher(self, before: Network, groups: Sequence[Each], data: Examples) -> Callable[[Batch], list[Tensor]]:
        """The softened outputs of the past tasks' heads on each batch of the new task, by the network before it.

        Without augmentation an example's outputs are always the same: all are computed once, in advance.
        """
        temperature = self.settings.temperature
        if self.settings.augment != "none":
            return lambda batch: [
                softened(h, temperature) for h in before.logits(*((group, batch.x) for group in groups))
            ]
        tables = [torch.stack([before.evaluate(before.heads[t], data.x) for t in group], 1) for group in groups]
        lookers = [look_up(softened(table, temperature), self.device) for table in tables]
        return lambda batch: [look(batch) for look in lookers]


def look_up(table: Tensor, device: torch.device) -> Callable[[Batch], Tensor]:
    """From a table (replicas, tasks, examples, numbers), those of a batch: (replicas, tasks · batch, numbers)."""
    replicas, tasks, examples, numbers = table.shape
    first = (torch.arange(replicas * tasks, device="cpu") * examples).view(replicas, tasks, 1)
    rows_of = table.reshape(-1, numbers)

    def look(batch: Batch) -> Tensor:
        rows = (batch.index.unsqueeze(1) + first).reshape(-1).to(device)
        return rows_of.index_select(0, rows).view(replicas, -1, numbers)

    return look
