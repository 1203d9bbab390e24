"""The terms that methods put together, for a population.

Outputs have shape (replicas, batch, classes). Each term is a mean over a replica's batch, summed over
replicas, so that every replica receives the gradient it would receive alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """ℓ(x, y, f) = log Σ exp f(x) − f(x)[y], averaged over the batch."""
    total = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="sum")
    return total / logits.shape[1]


def squared_error(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over batch and classes of (f(x) − h)², the distance to the logits in the memory."""
    return F.mse_loss(logits, target, reduction="sum") / (logits.shape[1] * logits.shape[2])


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy between outputs softened by a temperature: −Σ softmax(h/τ) log softmax(f(x)/τ)."""
    soft = F.softmax(teacher / temperature, -1)
    return -(soft * F.log_softmax(logits / temperature, -1)).sum() / logits.shape[1]


def towards_uniform(logits: Tensor) -> Tensor:
    """Cross-entropy between the uniform distribution over the classes and the output."""
    return -F.log_softmax(logits, -1).sum() / (logits.shape[1] * logits.shape[2])


def mean(terms: Iterable[Tensor]) -> Tensor:
    """1/n Σ of the terms; zero if there are none."""
    listed = list(terms)
    return torch.stack(listed).mean() if listed else torch.zeros((), dtype=torch.float32, device="cpu")
