"""A network: the bodies of all replicas and one head for each task that has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from clpu.networks.body import Body, Tensors
from clpu.networks.linear import Linear
from clpu.networks.parts import Part, Pixels, answer

#: How many rows go through a body at once when nothing is being trained.
ROWS_AT_ONCE = 1024


class Network:
    """K replicas of a feature extractor with one linear head per task. A value: training makes a new one."""

    def __init__(self, body: Body, heads: Mapping[str, Linear], pixels: Pixels) -> None:
        self.body, self.heads, self.pixels = body, dict(heads), pixels

    @torch.no_grad()
    def logits(self, *parts: Part) -> list[Tensor]:
        """Outputs for parts (task, x), each through its task's head; see `clpu.networks.parts.answer`."""
        return answer(parts, self.body.forward, self.heads, self.pixels)

    @torch.no_grad()
    def evaluate(self, head: Linear, x: Tensor) -> Tensor:
        """Outputs (K, n, classes) of one head for inputs (n, *input) that all replicas share."""
        return torch.cat([head(features) for features in self._features(x)], 1)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Features (K, n, features) of inputs (n, *input) that all replicas share."""
        return torch.cat(list(self._features(x)), 1)

    def _features(self, x: Tensor) -> Iterator[Tensor]:
        for some in x.split(ROWS_AT_ONCE):
            floats = self.pixels(some)
            yield self.body.forward(floats.expand(self.body.replicas, *floats.shape))

    @property
    def body_device(self) -> torch.device:
        """The device of the network's tensors."""
        return next((t.device for t in self.body.tensors.values()), torch.device("cpu"))

    def parameters(self) -> Tensors:
        """All that gradient descent may change, by name: the body's, and "head TASK.weight", "head TASK.bias"."""
        named = {name: self.body.tensors[name] for name in self.body.parameters}
        for task, head in self.heads.items():
            named |= {f"head {task}.weight": head.weight, f"head {task}.bias": head.bias}
        return named

    def is_finite(self) -> bool:
        """Whether no parameter and no statistic is NaN or infinite."""
        tensors = {**self.body.tensors, **self.parameters()}.values()
        return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())

    def with_head(self, task: str, head: Linear) -> Network:
        return Network(self.body, {**self.heads, task: head}, self.pixels)

    def with_body(self, body: Body) -> Network:
        """A network with a different body, and without heads."""
        return Network(body, {}, self.pixels)

    def without_heads(self) -> Network:
        return Network(self.body, {}, self.pixels)

    @torch.no_grad()
    def fisher(self, task: str, x: Tensor, y: Tensor, rows: int = 256) -> Tensors:
        """F = 1/n Σ p(y|x)·(∂ log p(y|x) / ∂θ)² over the examples, with the task's own outputs only."""
        total: Tensors = {}
        for some_x, some_y in zip(x.split(rows), y.split(rows)):
            for name, value in self.body.fisher(self.pixels(some_x), some_y, self.heads[task]).items():
                total[name] = total[name] + value if name in total else value
        return {name: value / len(x) for name, value in total.items()}

    @torch.no_grad()
    def head_fisher(self, task: str, x: Tensor, y: Tensor) -> Tensors:
        """The same for the task's own head: the gradient of one example is f(x) (1[y] − p)ᵀ."""
        head = self.heads[task]
        total = {"weight": torch.zeros_like(head.weight), "bias": torch.zeros_like(head.bias)}
        for features, some_y in zip(self._features(x), y.split(ROWS_AT_ONCE)):
            p = head(features).softmax(-1)
            right = F.one_hot(some_y, p.shape[-1]).expand_as(p)
            weighted = (p * right).sum(-1, keepdim=True) * (right - p).square()
            total["weight"] += torch.bmm(features.square().transpose(1, 2), weighted)
            total["bias"] += weighted.sum(1, keepdim=True)
        return {name: value / len(x) for name, value in total.items()}
