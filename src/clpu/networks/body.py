"""What a network body is: the feature extractors of all replicas, whatever lies inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from clpu.networks.descent import Descent, Linear


class Body(ABC):
    """Feature extractors of K replicas: (K, batch, *input) → (K, batch, features).

    How it serves the replica axis is its own affair: the MLP by batched GEMM, everything else by a loop.
    A body that is not being trained is never changed, so copies of an agent share it.
    """

    replicas: int
    features: int
    #: Whether an example's features depend on nothing else, neither on the others of its batch nor on chance.
    separate: ClassVar[bool] = False

    @abstractmethod
    def forward(
        self, x: Tensor, descent: Descent | None = None, scale: float = 1.0, blend: Tensor | None = None
    ) -> Tensor:
        """Features of scale·x, or of scale·blend·x; with a descent, in training mode and kept in mind for `descend`.

        `blend` is a matrix (K, rows out, rows in). With a descent that is for heads only, nothing is kept in mind.
        """

    @abstractmethod
    def descend(self, grad: Tensor, descent: Descent) -> None:
        """One step, given the gradient of the loss by the features that `forward` gave last."""

    @abstractmethod
    def trainable(self) -> Body:
        """A copy that may be trained."""

    @abstractmethod
    def settled(self) -> Body:
        """The body, no longer to be trained."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that is learned, parameters and statistics, each with the replica axis in front."""

    @abstractmethod
    def with_tensors(self, tensors: dict[str, Tensor]) -> Body:
        """A body of the same architecture that holds these tensors."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """What gradient descent changes, each with the replica axis in front."""

    @abstractmethod
    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> dict[str, Tensor]:
        """Σ over examples of p(y|x)·(∂ log p(y|x) / ∂θ)², the outputs being `head`'s; x and y have no replica axis."""


class Given(Body):
    """Features that are handed in instead of inputs: for training a head on top of a body that stays as it is."""

    separate = True

    def __init__(self, replicas: int, features: int) -> None:
        self.replicas, self.features = replicas, features

    def forward(
        self, x: Tensor, descent: Descent | None = None, scale: float = 1.0, blend: Tensor | None = None
    ) -> Tensor:
        return x

    def descend(self, grad: Tensor, descent: Descent) -> None:
        raise NotImplementedError("there is nothing to train below features that are given")

    def trainable(self) -> Given:
        return self

    def settled(self) -> Given:
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Given:
        return self

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> dict[str, Tensor]:
        return {}
