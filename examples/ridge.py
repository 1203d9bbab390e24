"""Ridge regression on the features of the untrained network, or of your own module, in float64.

Nothing is trained. A task is the sums of its features' products, ΦᵀΦ and ΦᵀY, and its outputs are φ(x)ᵀ W with
W = (ΦᵀΦ + λ1)⁻¹ ΦᵀY. No task has anything in common with another, so every task can be forgotten exactly.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from clpu.methods import Method, inputs_of, register
from clpu.settings import setting
from clpu.state import Leaf, Spec


@dataclass(frozen=True)
class RidgeSettings:  # not Training: there are no epochs and there is no learning rate
    ridge: float = setting(1e-3, "penalty on the weights, relative to the mean square of the features", above=0)


@register
class Ridge(Method):
    """Ridge regression in float64 on fixed random features; every task has its own sums."""

    name, label = "ridge-head", "Ridge"
    forgets = "tasks"
    costs = (0.1, 0, 0)
    Settings = RidgeSettings

    def features(self, x):
        """φ(x) with a constant 1 at the end, (replicas, n, features + 1)."""
        return F.pad(self.fresh_network(inputs_of(x), None).features(x).double(), (0, 1), value=1.0)

    def learn(self, state, task, data, temporary):
        phi, y = self.features(data.x), F.one_hot(data.y, data.classes).double()
        own = Leaf({"gram": phi.mT @ phi, "moments": phi.mT @ y})
        return state.with_task(task, self.entry(data, temporary, own))

    def logits(self, state, task, x, classes=None):
        if task not in state.tasks:  # without data all weights are zero
            return torch.zeros(len(self.seeds), len(x), classes)
        own = state.tasks[task].own
        weights = own.derived("weights", lambda: self.solve(**own.tensors))  # a cache, not state
        return (self.features(x) @ weights).float()

    def solve(self, gram, moments):
        squares = gram.diagonal(dim1=-2, dim2=-1)
        penalty = self.settings.ridge * squares[:, :-1].mean(-1, keepdim=True).expand_as(squares)
        return torch.linalg.solve(gram + penalty.diag_embed(), moments)

    def task_schema(self, state, task):
        replicas, size = len(self.seeds), self.feature_count(inputs_of(task)) + 1
        shapes = {"gram": (replicas, size, size), "moments": (replicas, size, len(task.labels))}
        return {name: Spec("F64", shape) for name, shape in shapes.items()}
