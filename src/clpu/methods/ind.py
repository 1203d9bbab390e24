"""Ind: an independent network per task, the upper bound for privacy."""

from __future__ import annotations

from clpu.learning.batches import Examples
from clpu.methods.base import inputs_of, register
from clpu.methods.networks import NetworkMethod
from clpu.networks.blueprint import Inputs
from clpu.networks.network import Network
from clpu.state import State


@register
class Ind(NetworkMethod):
    """A new network for each task; forgetting removes it. Nothing is shared, so nothing is transferred either."""

    name, label = "ind", "Ind"
    forgets = "tasks"
    upper_bound = True
    costs = (1, 0, 0)

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        known = self.read(state, [], inputs_of(data))
        known.isolated[task], _ = self.train_plain(task, data, self.fresh_network(known.inputs, task))
        return self.learned(state, task, data, temporary, known, main=False)

    def network(self, state: State, task: str, inputs: Inputs | None = None) -> Network:
        known = self.read(state, [task], inputs)
        return known.isolated[task] if task in known.isolated else self.fresh_network(known.inputs, task)
