"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from clpu.losses import cross_entropy
from clpu.methods.base import Method, register
from clpu.networks.descent import Pull
from clpu.networks.network import Network
from clpu.settings import Training, setting
from clpu.training import Examples


@dataclass(frozen=True)
class EWCSettings(Training):
    strength: float = setting(100.0, "weight λ of the penalty (CIFAR-10: 500, CIFAR-100: 1000)", at_least=0)


class Consolidating(Method):
    """Keeps each task's Fisher information F and parameters θ*, and pulls later parameters towards them.

    Only the body is pulled: no later loss has a gradient with respect to an earlier task's head.
    """

    def consolidate(self, task: str, network: Network, data: Examples) -> None:
        """Store F = mean of p(y|x)·(∂ log p(y|x) / ∂θ)² and θ* = θ for a task just learned."""
        fisher = network.fisher(task, data.x, data.y)
        anchor = network.body.parameters()
        self.extras[task] = {
            **self.extras.get(task, {}),
            **{f"fisher/{name}": value for name, value in fisher.items()},
            **{f"anchor/{name}": value for name, value in anchor.items()},
        }

    def pull(self, tasks: list[str]) -> Pull | None:
        """strength · Σ_τ Σ F_τ (θ − θ*_τ)², one term a past task."""
        terms = [(_part(self.extras[t], "fisher/"), _part(self.extras[t], "anchor/")) for t in tasks]
        return Pull.towards(self.settings.strength, terms)


def _part(extras: dict, prefix: str) -> dict:  # type: ignore[type-arg]
    return {name.removeprefix(prefix): value for name, value in extras.items() if name.startswith(prefix)}


@register
class EWC(Consolidating):
    """Cross-entropy on the new task plus the penalty; forgetting drops the task's F and θ*."""

    name = "ewc"
    Settings = EWCSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.main = self.fit(
            task,
            self.with_fresh_head(self.main, task, data.classes),
            self.batches(task, data),
            lambda net, batch: cross_entropy(net.logits((task, batch.x))[0], batch.y),
            pull=self.pull(list(self.ledger)),
        )
        self.consolidate(task, self.main, data)

    def forget(self, task: str) -> None:
        del self.extras[task]
