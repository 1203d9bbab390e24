"""A network: the bodies of all replicas and one head for each task that has one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from clpu.networks.body import Body
from clpu.networks.descent import Descent, Linear

#: How many rows go through a body at once when nothing is being trained.
ROWS_AT_ONCE = 1024


class Network:
    """K replicas of a feature extractor with one linear head a task.

    A network is a value: training goes on in a copy (`trainable`), and what an agent holds never changes.
    """

    def __init__(self, body: Body, heads: Mapping[str, Linear], descent: Descent | None = None) -> None:
        self.body, self.heads, self.descent = body, dict(heads), descent
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
        x = join(inputs)
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
        return Network(self.body.trainable(), {t: head.clone() for t, head in self.heads.items()}, descent)

    def settled(self) -> Network:
        """The network, no longer to be trained."""
        return Network(self.body.settled(), self.heads)

    def is_finite(self) -> bool:
        """Whether no parameter has become NaN or infinite."""
        tensors = [*self.body.parameters().values(), *(head.weight for head in self.heads.values())]
        return all(bool(t.sum().isfinite()) for t in tensors)

    def with_head(self, task: str, head: Linear) -> Network:
        return Network(self.body, {**self.heads, task: head})

    def without_head(self, task: str) -> Network:
        return Network(self.body, {t: head for t, head in self.heads.items() if t != task})

    @torch.no_grad()
    def evaluate(self, head: Linear, x: Tensor) -> Tensor:
        """Outputs (K, n, classes) of one head for inputs (n, *input) that all replicas share."""
        pieces = [
            head(self.body.forward(to_float(c).expand(self.body.replicas, *c.shape))) for c in x.split(ROWS_AT_ONCE)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    @torch.no_grad()
    def fisher(self, task: str, x: Tensor, y: Tensor, rows: int = 256) -> dict[str, Tensor]:
        """F = 1/n Σ p(y|x)·(∂ log p(y|x) / ∂θ)² over the examples, with the task's own outputs only."""
        total: dict[str, Tensor] = {}
        for some_x, some_y in zip(x.split(rows), y.split(rows)):
            for name, value in self.body.fisher(to_float(some_x), some_y, self.heads[task]).items():
                total[name] = total[name] + value if name in total else value
        return {name: value / len(x) for name, value in total.items()}


def to_float(x: Tensor) -> Tensor:
    """Images of bytes become numbers from 0 to 1; anything else is left alone."""
    return x.to(torch.float32).mul_(1 / 255) if x.dtype == torch.uint8 else x


def join(inputs: tuple[Tensor, ...]) -> Tensor:
    """One tensor of floats from inputs (K, batch, *input)."""
    if len(inputs) == 1:
        return to_float(inputs[0])
    if len({x.dtype for x in inputs}) == 1:
        return to_float(torch.cat(inputs, 1))
    return torch.cat([to_float(x) for x in inputs], 1)
