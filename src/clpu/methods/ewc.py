"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clpu.methods.base import Method, register
from clpu.networks.descent import Pull
from clpu.networks.network import Network
from clpu.settings import Training, setting
from clpu.training import Examples


@dataclass(frozen=True)
class EWCSettings(Training):
    strength: float = setting(100.0, "weight λ of the penalty (CIFAR-10: 500, CIFAR-100: 1000)", at_least=0)
    fisher: int = setting(0, "examples that F is estimated from, evenly spread over the task's; 0: all", at_least=0)


class Consolidating(Method):
    """Keeps each task's Fisher information F and parameters θ*, and pulls later parameters towards them.

    The parameters are the body's. `heads` adds the task's own head, for a method whose later losses reach it.
    """

    keeps = ()
    heads: ClassVar[bool] = False

    def consolidate(self, task: str, network: Network, data: Examples) -> None:
        """Store F = mean of p(y|x)·(∂ log p(y|x) / ∂θ)² and θ* = θ for a task just learned."""
        kept = self.extras.setdefault(task, {})
        x, y = self._some(data)
        kept |= {f"fisher/{name}": value for name, value in network.fisher(task, x, y).items()}
        kept |= {f"anchor/{name}": value for name, value in network.body.parameters().items()}
        if self.heads:
            head = network.heads[task]
            kept |= {f"fisher/head.{n}": value for n, value in network.head_fisher(task, x, y).items()}
            kept |= {"anchor/head.weight": head.weight, "anchor/head.bias": head.bias}

    def _some(self, data: Examples) -> tuple[Tensor, Tensor]:
        """The examples that F is estimated from."""
        wanted = self.settings.fisher
        if not 0 < wanted < len(data):
            return data.x, data.y
        rows = torch.linspace(0, len(data) - 1, wanted, dtype=torch.float64, device="cpu").round().long()
        return data.x[rows.to(data.x.device)], data.y[rows.to(data.y.device)]

    def pull(self, tasks: list[str]) -> Pull | None:
        """strength · Σ_τ Σ F_τ (θ − θ*_τ)², one term a past task."""
        terms = [(self._named(t, "fisher/"), self._named(t, "anchor/")) for t in tasks]
        return Pull.towards(self.settings.strength, terms)

    def _named(self, task: str, kind: str) -> dict[str, Tensor]:
        named = {n.removeprefix(kind): value for n, value in self.extras[task].items() if n.startswith(kind)}
        return {n.replace("head.", f"head {task}.") if n.startswith("head.") else n: v for n, v in named.items()}

    def extra_shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        assert self.state.inputs is not None
        shapes = {n: shape for n, (_, shape) in self.blueprint.shapes(self.state.inputs, trained=True).items()}
        if self.heads:
            features = self.blueprint.features(self.state.inputs)
            shapes |= {"head.weight": (features, classes), "head.bias": (1, classes)}
        return {f"{kind}/{n}": shape for kind in ("fisher", "anchor") for n, shape in shapes.items()}


@register
class EWC(Consolidating):
    """Cross-entropy on the new task plus the penalty; forgetting drops the task's F and θ*.

    Only the body is pulled: no later loss has a gradient with respect to an earlier task's head.
    """

    name = "ewc"
    Settings = EWCSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.main, _ = self.learned_alone(task, data, self.main, self.pull(list(self.ledger)))
        self.consolidate(task, self.main, data)
