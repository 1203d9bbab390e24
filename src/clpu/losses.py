"""The terms that methods put together, for a population.

Outputs have shape (replicas, batch, classes). Each term is an ordinary mean, over the batch and over the
replicas; a step descends on as many times the mean as there are replicas, so that every replica receives the
gradient it would receive alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """ℓ(x, y, f) = log Σ exp f(x) − f(x)[y]."""
    if logits.device.type == "cpu":
        return F.cross_entropy(logits.mT, y)  # classes in the middle, as heads lay them out
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())  # elsewhere the other form is not deterministic


def squared_error(logits: Tensor, target: Tensor) -> Tensor:
    """(f(x) − h)², averaged over the classes too: the distance to the logits in the memory."""
    return F.mse_loss(logits, target)


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy between outputs softened by a temperature: −Σ softmax(h/τ) log softmax(f(x)/τ)."""
    soft = F.softmax(teacher / temperature, -1)
    return -(soft * F.log_softmax(logits / temperature, -1)).sum(-1).mean()


def towards_uniform(logits: Tensor) -> Tensor:
    """Cross-entropy between the uniform distribution over the classes and the output."""
    return -F.log_softmax(logits, -1).mean()


def weighted(*terms: tuple[float, Tensor]) -> Tensor:
    """Σ weight · term; zero if there are none."""
    scaled = [term if weight == 1 else term * weight for weight, term in terms]
    return sum(scaled[1:], start=scaled[0]) if scaled else torch.zeros((), dtype=torch.float32, device="cpu")


def mean(terms: Iterable[Tensor]) -> Tensor:
    """1/n Σ of the terms; zero if there are none."""
    listed = list(terms)
    return weighted(*((1 / len(listed), term) for term in listed))
