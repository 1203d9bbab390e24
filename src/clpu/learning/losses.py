"""The terms that methods put together, for a population.

Outputs have shape (replicas, batch, classes). Each term is an ordinary mean, over the batch and over the
replicas; a step descends on as many times the mean as there are replicas, so that every replica receives the
gradient it would receive alone.

A term comes with its derivative by the outputs, because autograd's bookkeeping for a few small tensors takes as long
as a layer of the network. Tests hold each derivative to what autograd makes of the term's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Term:
    """weight · value(outputs), and its derivative by the outputs: gradient(outputs, weight)."""

    outputs: Tensor
    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, float], Tensor]
    weight: float = 1.0


class Loss:
    """A sum of terms. It can be added to others, to numbers and to scalar tensors, and multiplied by the latter two.

    >>> loss = 2 * cross_entropy(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.long)) + torch.tensor(1.0)
    >>> round(float(loss), 4)
    3.7726
    """

    def __init__(self, terms: Sequence[Term] = ()) -> None:
        self.terms = tuple(terms)

    @classmethod
    def of(cls, loss: Loss | Tensor | float) -> Loss:
        """A loss, from a scalar tensor or a number too (`sum` begins with 0)."""
        if isinstance(loss, Loss):
            return loss
        if not isinstance(loss, Tensor):
            return cls() if loss == 0 else cls.of(torch.tensor(float(loss), device="cpu"))
        if loss.dim():
            raise ValueError(f"a loss is one number, got a tensor of shape {tuple(loss.shape)}; take its mean")
        return cls([Term(loss, lambda value: value, torch.full_like)])

    @property
    def value(self) -> Tensor:
        """The loss as a scalar tensor, which autograd can differentiate."""
        values = [t.weight * t.value(t.outputs) for t in self.terms]
        return sum(values[1:], start=values[0]) if values else torch.zeros((), dtype=torch.float32, device="cpu")

    def __float__(self) -> float:
        return float(self.value)

    def __add__(self, other: Loss | Tensor | float) -> Loss:
        return Loss(self.terms + Loss.of(other).terms)

    __radd__ = __add__

    def __mul__(self, factor: float | Tensor | Loss) -> Loss:
        if isinstance(factor, Loss):
            raise TypeError("losses can be added, not multiplied; multiply their .value")
        if isinstance(factor, Tensor):  # which may depend on the outputs too: autograd does it
            return Loss.of(self.value * factor)
        return Loss([Term(t.outputs, t.value, t.gradient, t.weight * factor) for t in self.terms])

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> Loss:
        return self * (1 / divisor)

    def __neg__(self) -> Loss:
        return self * -1.0

    def __sub__(self, other: Loss | Tensor | float) -> Loss:
        return self + -Loss.of(other)

    def __rsub__(self, other: Loss | Tensor | float) -> Loss:
        return -self + other


def cross_entropy(logits: Tensor, y: Tensor) -> Loss:
    """ℓ(x, y, f) = log Σ exp f(x) − f(x)[y]; its derivative is softmax f(x) − 1[y]."""

    def gradient(outputs: Tensor, weight: float) -> Tensor:
        p = softmax(outputs)
        p.scatter_(-1, y.unsqueeze(-1), -1.0, reduce="add")
        return p.mul_(weight / y.numel())

    return Loss([Term(logits, lambda outputs: F.cross_entropy(outputs.flatten(0, 1), y.flatten()), gradient)])


def squared_error(logits: Tensor, target: Tensor) -> Loss:
    """(f(x) − h)², averaged over the classes too: the distance to the logits in the memory."""

    def value(outputs: Tensor) -> Tensor:
        return (outputs - target).square().mean()

    def gradient(outputs: Tensor, weight: float) -> Tensor:
        return outputs.sub(target).mul_(2 * weight / outputs.numel())

    return _fixed(target, Term(logits, value, gradient))


def softened(logits: Tensor, temperature: float) -> Tensor:
    """softmax(h / τ): a teacher's outputs, softened by a temperature."""
    return softmax(logits / temperature)


def distillation(logits: Tensor, target: Tensor, *, temperature: float) -> Loss:
    """Cross-entropy between softened outputs, −Σ softmax(h/τ) log softmax(f(x)/τ); `target` is `softened(h, τ)`."""

    def value(outputs: Tensor) -> Tensor:
        return -(target * F.log_softmax(outputs / temperature, -1)).sum(-1).mean()

    def gradient(outputs: Tensor, weight: float) -> Tensor:
        return softened(outputs, temperature).sub_(target).mul_(weight / temperature / outputs[..., 0].numel())

    return _fixed(target, Term(logits, value, gradient))


def towards_uniform(logits: Tensor) -> Loss:
    """Cross-entropy between the uniform distribution over the classes and the output."""

    def gradient(outputs: Tensor, weight: float) -> Tensor:
        return softmax(outputs).sub_(1 / outputs.shape[-1]).mul_(weight / outputs[..., 0].numel())

    return Loss([Term(logits, lambda outputs: -F.log_softmax(outputs, -1).mean(), gradient)])


def _fixed(target: Tensor, term: Term) -> Loss:
    """A term whose target does not move; where it depends on the network too, autograd does both."""
    return Loss.of(term.value(term.outputs)) if target.requires_grad else Loss([term])


def weighted(*terms: tuple[float, Loss | Tensor]) -> Loss:
    """Σ weight · term; zero if there are none."""
    scaled = (Loss.of(term) if weight == 1 else Loss.of(term) * weight for weight, term in terms)
    return Loss([term for loss in scaled for term in loss.terms])


def mean(terms: Iterable[Loss | Tensor]) -> Loss:
    """1/n Σ of the terms; zero if there are none."""
    listed = list(terms)
    return weighted(*((1 / len(listed), term) for term in listed))


def softmax(outputs: Tensor) -> Tensor:
    """Softmax over the classes, computed along the axis that is contiguous in memory."""
    return F.softmax(outputs, -1) if outputs.stride(-1) == 1 else F.softmax(outputs.mT, -2).mT
