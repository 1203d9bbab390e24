"""A network: the bodies of all replicas and one head for each task that has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clpu.augment import normalise
from clpu.losses import Loss
from clpu.networks.body import Body
from clpu.networks.descent import Descent, Linear
from clpu.networks.parts import Call, Mixed, Part, key_of, tensors_of

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
        self._calls: dict[object, Call] = {}
        #: The call that waits for its `descend`.
        self._waiting: Call | None = None
        self._stacks: dict[tuple[str, ...], Linear] = {}

    def logits(self, *parts: Part) -> list[Tensor]:
        """Outputs for parts (task, x), each through its task's own head; x has shape (K, batch, *input).

        A part may be ((task, task, …), x): then x holds equally many examples of each, the first task's first. Or
        (Each((task, task, …)), x): then all of x goes through each of the heads, and so the outputs are arranged.
        The tasks of such a part have equally many classes. x may be `Mixed`. All parts share one pass through the
        body, and an input that occurs in several parts goes through it once; so do parts with the same task through
        its head. In training there is one such call a step.
        """
        descent = self.descent if torch.is_grad_enabled() else None
        if descent is not None and self._waiting is not None:
            raise RuntimeError("one call of logits() a step: hand all parts to it, or use torch.no_grad()")
        inputs = list({id(x): x for _, x in parts}.values())
        call = self._call(parts, inputs, descent is not None)
        x, scale, blend = self._joined(call, inputs)
        features = self.body.forward(x, descent, scale, blend)
        pieces = [features] if len(inputs) == 1 else features.split(call.sizes, dim=1)
        if descent is not None and call.repeats_a_task:
            raise RuntimeError("a task occurs alone and among others: hand its inputs in as parts of their own")
        outputs = {id(u): u.outputs(self._head(u.tasks, descent), pieces, descent is not None) for u in call.uses}
        self._waiting = self._waiting if descent is None else call
        return [outputs[id(use)][i] for use, i in call.places]

    def _call(self, parts: Sequence[Part], inputs: Sequence[Tensor | Mixed], training: bool) -> Call:
        """How these parts are put together; in training, worked out once for all steps."""
        if not training:
            return Call(parts, inputs)
        key = key_of(parts, inputs)
        if key not in self._calls:
            self._calls[key] = Call(parts, inputs)
        return self._calls[key]

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

    def descend(self, loss: Loss | Tensor) -> None:
        """One step of the descent that this network was made trainable for.

        The loss is made from `logits` and is a mean over the replicas.
        """
        call, self._waiting = self._waiting, None
        if self.descent is None or call is None:
            raise RuntimeError("this network is not being trained, or has not been asked for its logits()")
        by_input: list[Tensor | None] = [None] * len(call.sizes)
        with torch.no_grad():
            call.differentiate(Loss.of(loss), self.body.replicas)
            gradients = [(use, grad) for use in call.uses if (grad := use.gradient()) is not None]
            if not gradients:
                raise RuntimeError("the loss does not depend on the outputs of logits()")
            for use, grad in gradients:
                inner = use.head.descend(use.x, use.out, grad, self.descent, inner=not self.descent.head_only)
                if inner is not None:
                    for i, g in use.by_input(inner):
                        before = by_input[i]
                        by_input[i] = g if before is None else before + g
            if not self.descent.head_only:
                self.body.descend(_whole(by_input, call.sizes), self.descent)

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
        return _in_one([head(features) for features in self._features(x)])

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Features (K, n, features) of inputs (n, *input) that all replicas share."""
        return _in_one(list(self._features(x)))

    def _features(self, x: Tensor) -> Iterator[Tensor]:
        for some in x.split(ROWS_AT_ONCE):
            floats = self.pixels(some)
            yield self.body.forward(floats.expand(self.body.replicas, *floats.shape))

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
        for features, some_y in zip(self._features(x), y.split(ROWS_AT_ONCE)):
            p = head(features).softmax(-1)
            right = F.one_hot(some_y, p.shape[-1]).expand_as(p)
            weighted = (p * right).sum(-1, keepdim=True) * (right - p).square()
            total["weight"] += torch.bmm(features.square().transpose(1, 2), weighted)
            total["bias"] += weighted.sum(1, keepdim=True)
        return {name: value / len(x) for name, value in total.items()}

    def _joined(self, call: Call, inputs: Sequence[Tensor | Mixed]) -> tuple[Tensor, float, Tensor | None]:
        """One tensor of floats (K, rows, *input); what is left to the body: a factor, perhaps a blend."""
        tensors = tensors_of(inputs)
        scales = [1.0 if t.dtype != torch.uint8 or self.pixels.mean else 1 / 255 for t in tensors]
        floats = [self.pixels(t) if t.dtype == torch.uint8 and self.pixels.mean else t for t in tensors]
        mixed = any(isinstance(x, Mixed) for x in inputs)
        if not mixed and len(set(scales)) > 1:
            floats, scales = [self.pixels(t) for t in tensors], [1.0]
        if len(floats) == 1:
            whole = floats[0].to(torch.float32) if floats[0].dtype == torch.uint8 else floats[0]
        elif any(t.dtype not in (torch.uint8, torch.float32) for t in floats):
            whole = torch.cat(floats, 1)
        else:
            whole = call.joined(floats)
        return (whole, 1.0, call.blend(inputs, tensors, scales)) if mixed else (whole, scales[0], None)


def _whole(by_input: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """The gradient by the features of all inputs."""
    known = next(g for g in by_input if g is not None)
    parts = [
        known.new_zeros(known.shape[0], size, known.shape[2]) if g is None else g for g, size in zip(by_input, sizes)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _in_one(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
