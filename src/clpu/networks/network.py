"""A network: the bodies of all replicas and one head for each task that has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


class Each(tuple[str, ...]):
    """Tasks through each of whose heads the inputs of a part go."""

    __slots__ = ()


class _Use:
    """What one step does with the heads of some tasks: which inputs' features go in, and what comes out."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks = tasks
        #: The numbers of the inputs, and whether they go through each of the heads or are divided among them.
        self.inputs: list[tuple[int, bool]] = []

    def outputs(self, head: Linear, features: Sequence[Tensor], descent: Descent | None) -> list[Tensor]:
        """The outputs for each of the inputs; in training, autograd takes them for where a loss begins."""
        replicas = features[0].shape[0]
        mine = [self._stacked(features[i], each) for i, each in self.inputs]
        x = mine[0] if len(mine) == 1 else torch.cat(mine, 1)
        out = head(x)
        self._sizes = [f.shape[1] for f in mine]
        if descent is not None:
            self.head, self.x, self.out = head, x, out.requires_grad_()
        parts = [out] if len(mine) == 1 else out.split(self._sizes, dim=1)
        return [p.reshape(replicas, -1, p.shape[2]) for p in parts] if len(self.tasks) > 1 else list(parts)

    def _stacked(self, features: Tensor, each: bool) -> Tensor:
        """Features as one layer of (replicas × tasks) matrices takes them: (replicas·tasks, n, features)."""
        count = len(self.tasks)
        if count == 1:
            return features
        if each:
            features = features.unsqueeze(1).expand(-1, count, -1, -1)
        return features.reshape(len(features) * count, -1, features.shape[-1])

    def by_input(self, inner: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The gradient by the features of each of the inputs, (replicas, n, features)."""
        parts = [inner] if len(self.inputs) == 1 else inner.split(self._sizes, dim=1)
        for (number, each), part in zip(self.inputs, parts):
            if len(self.tasks) > 1:
                part = part.reshape(len(part) // len(self.tasks), len(self.tasks), -1, part.shape[2])
                part = part.sum(1) if each else part.flatten(1, 2)
            yield number, part


class Network:
    """K replicas of a feature extractor with one linear head a task.

    A network is a value: training goes on in a copy (`trainable`), and what an agent holds never changes.
    """

    def __init__(self, body: Body, heads: Mapping[str, Linear], pixels: Pixels, descent: Descent | None = None) -> None:
        self.body, self.heads, self.pixels, self.descent = body, dict(heads), pixels, descent
        for task, head in heads.items():
            head.name = f"head {task}"
        self._uses: list[_Use] = []
        self._sizes: list[int] = []
        self._seed: Tensor | None = None
        self._stacks: dict[tuple[str, ...], Linear] = {}

    def logits(self, *parts: tuple[str | tuple[str, ...], Tensor]) -> list[Tensor]:
        """Outputs for parts (task, x), each through its task's own head; x has shape (K, batch, *input).

        A part may be ((task, task, …), x): then x holds equally many examples of each, the first task's first. Or
        (Each((task, task, …)), x): then all of x goes through each of the heads, and so the outputs are arranged.
        The tasks of such a part have equally many classes. All parts share one pass through the body, and an input
        that occurs in several parts goes through it once; so do parts with the same task through its head. In
        training there is one such call a step.
        """
        descent = self.descent if torch.is_grad_enabled() else None
        if descent is not None and self._uses:
            raise RuntimeError("one call of logits() a step: hand all parts to it, or use torch.no_grad()")
        inputs = list({id(x): x for _, x in parts}.values())
        x, scale = self._joined(inputs)
        features = self.body.forward(x, None if descent is None or descent.head_only else descent, scale)
        sizes = [x.shape[1] for x in inputs]
        numbers = {id(x): i for i, x in enumerate(inputs)}
        pieces = [features] if len(inputs) == 1 else features.split(sizes, dim=1)
        uses: dict[tuple[str, ...], _Use] = {}
        keys = [(tasks,) if isinstance(tasks, str) else tuple(tasks) for tasks, _ in parts]
        for key, (tasks, x) in zip(keys, parts):
            uses.setdefault(key, _Use(key)).inputs.append((numbers[id(x)], isinstance(tasks, Each)))
        if descent is not None:
            if len({t for tasks in uses for t in tasks}) < sum(map(len, uses)):
                raise RuntimeError("a task occurs alone and among others: hand its inputs in as parts of their own")
            self._uses, self._sizes = list(uses.values()), sizes
        outputs = {key: iter(use.outputs(self._head(key, descent), pieces, descent)) for key, use in uses.items()}
        return [next(outputs[key]) for key in keys]

    def _head(self, tasks: tuple[str, ...], descent: Descent | None) -> Linear:
        """The head of a task, or those of several as one layer of (replicas × tasks) matrices.

        In training the heads of several tasks share their memory with that layer.
        """
        if len(tasks) == 1:
            return self.heads[tasks[0]]
        if tasks not in self._stacks:
            stack = Linear.stacked([self.heads[t] for t in tasks])
            if descent is None:
                return stack
            if any(set(tasks) & set(others) for others in self._stacks):
                raise RuntimeError(f"tasks {tasks} were rehearsed in other groups before in this training")
            self.heads |= dict(zip(tasks, stack.parts))
            self._stacks[tasks] = stack
        return self._stacks[tasks]

    def descend(self, loss: Tensor) -> None:
        """One step of the descent that this network was made trainable for.

        The loss is made from `logits` and is a mean over the replicas.
        """
        if self.descent is None:
            raise RuntimeError("this network is not being trained")
        uses, self._uses = self._uses, []
        outputs = [use.out for use in uses]
        if self._seed is None:
            self._seed = loss.new_tensor(self.body.replicas)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, outputs, self._seed, allow_unused=True)
        by_input: list[Tensor | None] = [None] * len(self._sizes)
        with torch.no_grad():
            for use, grad in zip(uses, gradients):
                if grad is None:  # an output that the loss does not depend on
                    continue
                inner = use.head.descend(use.x, use.out, grad, self.descent, inner=not self.descent.head_only)
                if inner is not None:
                    for i, g in use.by_input(inner):
                        before = by_input[i]
                        by_input[i] = g if before is None else before + g
            if not self.descent.head_only:
                self.body.descend(self._whole(by_input), self.descent)

    def _whole(self, by_input: list[Tensor | None]) -> Tensor:
        """The gradient by the features of all inputs."""
        known = next(g for g in by_input if g is not None)
        parts = [
            known.new_zeros(known.shape[0], size, known.shape[2]) if g is None else g
            for g, size in zip(by_input, self._sizes)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def trainable(self, descent: Descent) -> Network:
        """A copy that `descend` changes."""
        heads = {t: head.trainable(turned=True) for t, head in self.heads.items()}
        return Network(self.body.trainable(), heads, self.pixels, descent)

    def settled(self) -> Network:
        """The network, no longer to be trained."""
        heads = {t: head.settled() for t, head in self.heads.items()}
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

    def _joined(self, inputs: Sequence[Tensor]) -> tuple[Tensor, float]:
        """One tensor of floats from inputs (K, batch, *input), and a factor that is left for the body to apply."""
        if self.pixels.mean or any(x.dtype != torch.uint8 for x in inputs):
            floats = [self.pixels(x) for x in inputs]
            return floats[0] if len(floats) == 1 else torch.cat(floats, 1), 1.0
        if len(inputs) == 1:
            return inputs[0].to(torch.float32), 1 / 255
        sizes = [x.shape[1] for x in inputs]
        joined = inputs[0].new_empty(len(inputs[0]), sum(sizes), *inputs[0].shape[2:], dtype=torch.float32)
        for place, x in zip(joined.split(sizes, dim=1), inputs):
            place.copy_(x)
        return joined, 1 / 255
