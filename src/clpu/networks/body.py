"""Network bodies: the feature extractors of all replicas, whatever is inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clpu.errors import BadNetwork
from clpu.networks.linear import Linear

Tensors = dict[str, Tensor]


class Body(ABC):
    """Feature extractors of K replicas: (K, batch, *input) → (K, batch, features).

    A body is a value: `tensors` is all that is learned of it, each with the replica axis in front, and is never
    changed. `forward` computes with these tensors or with others of the same names, so training needs no more
    than a copy of them. How a body serves the replica axis is its own affair.
    """

    replicas: int
    features: int
    tensors: Tensors
    #: The tensors that gradient descent changes; the others are statistics.
    parameters: tuple[str, ...]
    #: Whether an example's features depend on nothing else, neither on the rest of its batch nor on chance.
    separate: ClassVar[bool] = False

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        tensors: Tensors | None = None,
        training: bool = False,
        generators: Sequence[torch.Generator] = (),
    ) -> Tensor:
        """Features of x. In training, statistics in `tensors` are updated in place and `generators` feed dropout."""

    @abstractmethod
    def with_tensors(self, tensors: Tensors) -> Body:
        """A body of the same architecture that has these tensors."""

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> Tensors:
        """Σ over examples of p(y|x)·(∂ log p(y|x) / ∂θ)², the outputs being `head`'s; x and y have no replica axis.

        One example at a time; a body that can do better does.
        """
        theta = {name: self.tensors[name].detach().requires_grad_() for name in self.parameters}
        total = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
        for some_x, some_y in zip(x, y.tolist()):
            with torch.enable_grad():
                features = self.forward(some_x.expand(self.replicas, 1, *some_x.shape), {**self.tensors, **theta})
                chosen = head(features).log_softmax(-1)[:, 0, some_y]
                found = torch.autograd.grad(chosen.sum(), list(theta.values()))
            for name, gradient in zip(theta, found):
                total[name] += chosen.detach().exp().view(-1, *[1] * (gradient.dim() - 1)) * gradient.square()
        return total

    def module(self, replica: int = 0) -> nn.Module:
        """One replica as an ordinary module: (batch, *input) → (batch, features)."""
        raise BadNetwork(f"a {type(self).__name__} cannot be written as an ordinary module")

    def private(self) -> Body:
        """The same body for one training, sharing nothing that calls may change."""
        return self

    def copied(self) -> Tensors:
        """A copy of the tensors, laid out as training likes it best."""
        return {name: tensor.clone() for name, tensor in self.tensors.items()}


class PrecomputedFeatures(Body):
    """Features given in place of inputs, for training a head on a body that stays as it is."""

    separate = True
    parameters = ()

    def __init__(self, replicas: int, features: int) -> None:
        self.replicas, self.features, self.tensors = replicas, features, {}

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x

    def with_tensors(self, tensors: Tensors) -> PrecomputedFeatures:
        return self

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> Tensors:
        return {}
