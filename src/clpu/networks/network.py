"""A network: the bodies of all replicas and one head for each task that has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
        for task, head in heads.items():
            head.name = f"head {task}"
        self._open = False
        self._stacks: dict[tuple[str, ...], Linear] = {}

    def logits(self, *parts: tuple[str | tuple[str, ...], Tensor]) -> list[Tensor]:
        """Outputs for parts (task, x), each through its task's own head; x has shape (K, batch, *input).

        A part may be ((task, task, …), x): then x holds equally many examples of each, the first task's first,
        and the tasks have equally many classes. All parts share one pass through the body, and an input that
        occurs in several parts goes through it once; so do parts with the same task through its head. In
        training there is one such call a step.
        """
        descent = None
        if self.descent is not None and torch.is_grad_enabled():
            if self._open:
                raise RuntimeError("one call of logits() a step: hand all parts to it, or use torch.no_grad()")
            self._open, descent = True, self.descent
        inputs = list({id(x): x for _, x in parts}.values())
        features = self.features(*inputs, descent=descent)
        by_input = dict(zip(map(id, inputs), features))
        by_tasks: dict[tuple[str, ...], list[Tensor]] = {}
        for tasks, x in parts:
            by_tasks.setdefault((tasks,) if isinstance(tasks, str) else tasks, []).append(by_input[id(x)])
        if descent is not None and len({t for tasks in by_tasks for t in tasks}) < sum(map(len, by_tasks)):
            raise RuntimeError("a task occurs alone and among others: hand its inputs in as parts of their own")
        outputs = {tasks: iter(self._through_heads(tasks, some, descent)) for tasks, some in by_tasks.items()}
        return [next(outputs[(tasks,) if isinstance(tasks, str) else tasks]) for tasks, _ in parts]

    def _through_heads(self, tasks: tuple[str, ...], features: list[Tensor], descent: Descent | None) -> list[Tensor]:
        if len(tasks) > 1:
            return [self._through_several(tasks, some, descent) for some in features]
        head = self.heads[tasks[0]]
        if len(features) == 1:
            return [head(features[0], descent)]
        return list(head(torch.cat(features, 1), descent).split([f.shape[1] for f in features], dim=1))

    def _through_several(self, tasks: tuple[str, ...], features: Tensor, descent: Descent | None) -> Tensor:
        """Features of several tasks' examples through their heads: one GEMM in training."""
        share = features.shape[1] // len(tasks)
        if descent is None:
            return torch.cat([self.heads[t](f) for t, f in zip(tasks, features.split(share, dim=1))], 1)
        head = self._stacked(tasks)
        out = head(features.reshape(-1, share, features.shape[2]), descent)
        return out.view(features.shape[0], -1, out.shape[2])

    def _stacked(self, tasks: tuple[str, ...]) -> Linear:
        """The heads of some tasks as one layer of (replicas × tasks) matrices, sharing its memory with them."""
        if tasks not in self._stacks:
            if any(set(tasks) & set(others) for others in self._stacks):
                raise RuntimeError(f"tasks {tasks} were rehearsed in other groups before in this training")
            weight = torch.stack([self.heads[t].weight for t in tasks], 1)
            bias = torch.stack([self.heads[t].bias for t in tasks], 1)
            for i, t in enumerate(tasks):
                self.heads[t] = Linear(weight[:, i], bias[:, i])
            self._stacks[tasks] = Linear(weight.flatten(0, 1), bias.flatten(0, 1))
        return self._stacks[tasks]

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
        heads = {t: Linear(head.weight.contiguous(), head.bias.contiguous()) for t, head in self.heads.items()}
        return Network(self.body.settled(), heads, self.pixels)

    def is_finite(self) -> bool:
        """Whether no parameter and no statistic is NaN or infinite."""
        tensors = list(self.body.tensors().values())
        for head in self.heads.values():
            tensors += [head.weight, head.bias]
        return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())

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

    @torch.no_grad()
    def head_fisher(self, task: str, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The same for the task's own head: the gradient of one example is f(x) (1[y] − p)ᵀ."""
        head = self.heads[task]
        total = {"weight": torch.zeros_like(head.weight), "bias": torch.zeros_like(head.bias)}
        for some_x, some_y in zip(x.split(ROWS_AT_ONCE), y.split(ROWS_AT_ONCE)):
            floats = self.pixels(some_x)
            features = self.body.forward(floats.expand(self.body.replicas, *floats.shape))
            p = head(features).softmax(-1)
            right = F.one_hot(some_y, p.shape[-1]).expand_as(p)
            weighted = (p * right).sum(-1, keepdim=True) * (right - p).square()
            total["weight"] += torch.bmm(features.square().transpose(1, 2), weighted)
            total["bias"] += weighted.sum(1, keepdim=True)
        return {name: value / len(x) for name, value in total.items()}

    def _joined(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """One tensor of floats from inputs (K, batch, *input)."""
        if len(inputs) == 1:
            return self.pixels(inputs[0])
        if len({x.dtype for x in inputs}) == 1:
            return self.pixels(torch.cat(inputs, 1))
        return torch.cat([self.pixels(x) for x in inputs], 1)
