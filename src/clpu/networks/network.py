"""A network: the bodies of all replicas and one head for each task that has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.augment import normalise
from clpu.networks.body import Body
from clpu.networks.descent import Descent, Linear

#: How many rows go through a body at once when nothing is being trained.
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Pixels:
    """What becomes of bytes: numbers from 0 to 1, then (x - mean) / std per channel if these are set.

    Anything but bytes is left alone.

    >>> Pixels(mean=(0.5,), std=(0.25,))(torch.full((1, 1, 1, 1, 1), 255, dtype=torch.uint8)).item()
    2.0
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            return x
        return normalise(x, self.mean, self.std) if self.mean else x.to(torch.float32).mul_(1 / 255)


class Network:
    """K replicas of a feature extractor with one linear head a task.

    A network is a value: training goes on in a copy (`trainable`), and what an agent holds never changes.
    """

    def __init__(self, body: Body, heads: Mapping[str, Linear], pixels: Pixels, descent: Descent | None = None) -> None:
        self.body, self.heads, self.pixels, self.descent = body, dict(heads), pixels, descent
        self._open = False

    def logits(self, *parts: tuple[str, Tensor]) -> list[Tensor]:
        """Outputs for parts (task, x), each through its task's own head; x has shape (K, batch, *input).

        All parts share one pass through the body, and an input that occurs in several parts goes through
        it once; so do parts with the same task through its head. In training there is one such call a step.
        """
        if self.descent is not None and torch.is_grad_enabled():
            if self._open:
                raise RuntimeError("one call of logits() a step: hand all parts to it, or use torch.no_grad()")
            self._open = True
            descent: Descent | None = self.descent
        else:
            descent = None
        inputs = list({id(x): x for _, x in parts}.values())
        features = self.features(*inputs, descent=descent)
        by_input = dict(zip(map(id, inputs), features))
        by_task: dict[str, list[Tensor]] = {}
        for task, x in parts:
            by_task.setdefault(task, []).append(by_input[id(x)])
        outputs = {task: iter(self._through_head(task, some, descent)) for task, some in by_task.items()}
        return [next(outputs[task]) for task, _ in parts]

    def _through_head(self, task: str, features: list[Tensor], descent: Descent | None) -> list[Tensor]:
        if len(features) == 1:
            return [self.heads[task](features[0], descent)]
        joined = self.heads[task](torch.cat(features, 1), descent)
        return list(joined.split([f.shape[1] for f in features], dim=1))

    def features(self, *inputs: Tensor, descent: Descent | None = None) -> list[Tensor]:
        """The body's output for each input, in one pass."""
        x = self._joined(inputs)
        if descent is not None and descent.head_only:
            with torch.no_grad():
                out = self.body.forward(x)
        else:
            out = self.body.forward(x, descent)
        return [out] if len(inputs) == 1 else list(out.split([x.shape[1] for x in inputs], dim=1))

    def descend(self, loss: Tensor) -> None:
        """One step of the descent that this network was made trainable for."""
        if self.descent is None:
            raise RuntimeError("this network is not being trained")
        loss.backward()
        if not self.descent.head_only:
            self.body.descend(self.descent)
        self._open = False

    def trainable(self, descent: Descent) -> Network:
        """A copy that `descend` changes."""
        heads = {t: head.clone() for t, head in self.heads.items()}
        return Network(self.body.trainable(), heads, self.pixels, descent)

    def settled(self) -> Network:
        """The network, no longer to be trained."""
        return Network(self.body.settled(), self.heads, self.pixels)

    def is_finite(self) -> bool:
        """Whether no parameter has become NaN or infinite."""
        tensors = [*self.body.parameters().values(), *(head.weight for head in self.heads.values())]
        return all(bool(t.sum().isfinite()) for t in tensors)

    def with_head(self, task: str, head: Linear) -> Network:
        return Network(self.body, {**self.heads, task: head}, self.pixels)

    def without_head(self, task: str) -> Network:
        return Network(self.body, {t: head for t, head in self.heads.items() if t != task}, self.pixels)

    def without_heads(self) -> Network:
        return Network(self.body, {}, self.pixels)

    @torch.no_grad()
    def evaluate(self, head: Linear, x: Tensor) -> Tensor:
        """Outputs (K, n, classes) of one head for inputs (n, *input) that all replicas share."""
        outputs = []
        for some in x.split(ROWS_AT_ONCE):
            floats = self.pixels(some)
            outputs.append(head(self.body.forward(floats.expand(self.body.replicas, *floats.shape))))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    @torch.no_grad()
    def fisher(self, task: str, x: Tensor, y: Tensor, rows: int = 256) -> dict[str, Tensor]:
        """F = 1/n Σ p(y|x)·(∂ log p(y|x) / ∂θ)² over the examples, with the task's own outputs only."""
        total: dict[str, Tensor] = {}
        for some_x, some_y in zip(x.split(rows), y.split(rows)):
            for name, value in self.body.fisher(self.pixels(some_x), some_y, self.heads[task]).items():
                total[name] = total[name] + value if name in total else value
        return {name: value / len(x) for name, value in total.items()}

    def _joined(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """One tensor of floats from inputs (K, batch, *input)."""
        if len(inputs) == 1:
            return self.pixels(inputs[0])
        if len({x.dtype for x in inputs}) == 1:
            return self.pixels(torch.cat(inputs, 1))
        return torch.cat([self.pixels(x) for x in inputs], 1)
