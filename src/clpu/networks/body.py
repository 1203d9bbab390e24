"""What a network body is: the feature extractors of all replicas, whatever lies inside."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from clpu.networks.descent import Descent, Linear


class Body(ABC):
    """Feature extractors of K replicas: (K, batch, *input) → (K, batch, features).

    How it serves the replica axis is its own affair: the MLP by batched GEMM, everything else by a loop.
    A body that is not being trained is never changed, so copies of an agent share it.
    """

    replicas: int
    features: int

    @abstractmethod
    def forward(self, x: Tensor, descent: Descent | None = None, scale: float = 1.0) -> Tensor:
        """Features of scale·x; with a descent, in training mode and kept in mind for `descend`."""

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
