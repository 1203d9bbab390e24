"""Ind: an independent network a task, the upper bound for privacy."""

from __future__ import annotations

from clpu.methods.base import Method, register
from clpu.networks.network import Network
from clpu.training import Examples


@register
class Ind(Method):
    """A new network for each task; forgetting removes it. Nothing is shared, so nothing is transferred either."""

    name = "ind"
    exact = True
    keeps = ()

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        self.isolated[task], _ = self.learned_alone(task, data, self.fresh_network(task))

    def network_of(self, task: str) -> Network:
        return self.isolated[task] if task in self.isolated else self.fresh_network(task)
