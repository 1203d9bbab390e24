"""What goes into a network in one call and what comes out: parts (tasks, inputs), heads, and gradients on the way back.

The parts of a training step are alike at every step, so how they are put together is worked out once (`Call`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from clpu.losses import Loss
from clpu.networks.descent import Linear


class Each(tuple[str, ...]):
    """Tasks through each of whose heads the inputs of a part go."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Mixed:
    """Inputs share·x + (1 − share)·codes[y], an own share for each.

    x (K, batch, *input), codes (K, classes, *input), y (K, batch), share (K, batch). A network whose first layer is
    linear answers for them without computing them.
    """

    x: Tensor
    codes: Tensor
    y: Tensor
    share: Tensor


Tasks: TypeAlias = str | tuple[str, ...]
Part: TypeAlias = tuple[Tasks, Tensor | Mixed]


class Use:
    """What one call does with the heads of some tasks: which inputs' features go in, and what comes out."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks = tasks
        #: The numbers of the inputs, and whether they go through each of the heads or are divided among them.
        self.inputs: list[tuple[int, bool]] = []
        #: Of the last call: the outputs for each of the inputs, and the gradients by them that are known so far.
        self.parts: list[Tensor] = []
        self.gradients: list[Tensor | None] = []

    def outputs(self, head: Linear, features: Sequence[Tensor], training: bool) -> list[Tensor]:
        """The outputs for each of the inputs; in training, autograd takes them for where a loss begins."""
        replicas = features[0].shape[0]
        mine = [self._stacked(features[i], each) for i, each in self.inputs]
        x = mine[0] if len(mine) == 1 else torch.cat(mine, 1)
        out = head(x)
        self._sizes = [f.shape[1] for f in mine]
        if training:
            self.head, self.x, self.out = head, x, out.requires_grad_()
        parts = [out] if len(mine) == 1 else list(out.split(self._sizes, dim=1))
        if len(self.tasks) > 1:
            parts = [p.reshape(replicas, -1, p.shape[2]) for p in parts]
        if training:
            self.parts, self.gradients = parts, [None] * len(parts)
        return parts

    def _stacked(self, features: Tensor, each: bool) -> Tensor:
        """Features as one layer of (replicas × tasks) matrices takes them: (replicas·tasks, n, features)."""
        count = len(self.tasks)
        if count == 1:
            return features
        if each:
            features = features.unsqueeze(1).expand(-1, count, -1, -1)
        return features.reshape(len(features) * count, -1, features.shape[-1])

    def gradient(self) -> Tensor | None:
        """The gradient by the head's output, from those by the parts; `None` if the loss does not depend on it."""
        if all(g is None for g in self.gradients):
            return None
        parts = [torch.zeros_like(p) if g is None else g for g, p in zip(self.gradients, self.parts)]
        if len(self.tasks) > 1:
            parts = [g.reshape(self.out.shape[0], -1, g.shape[2]) for g in parts]
        return parts[0] if len(parts) == 1 else torch.cat([g.mT for g in parts], 2).mT

    def by_input(self, inner: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The gradient by the features of each of the inputs, (replicas, n, features)."""
        parts = [inner] if len(self.inputs) == 1 else inner.split(self._sizes, dim=1)
        for (number, each), part in zip(self.inputs, parts):
            if len(self.tasks) > 1:
                part = part.reshape(len(part) // len(self.tasks), len(self.tasks), -1, part.shape[2])
                part = part.sum(1) if each else part.flatten(1, 2)
            yield number, part


class Call:
    """How the parts of a call are put together.

    The distinct inputs have their rows one after another, and so have the tensors that they are made of: the inputs
    themselves, or what is mixed in them.
    """

    def __init__(self, parts: Sequence[Part], inputs: Sequence[Tensor | Mixed]) -> None:
        numbers = {id(x): i for i, x in enumerate(inputs)}
        uses: dict[tuple[str, ...], Use] = {}
        self.places: list[tuple[Use, int]] = []
        for tasks, x in parts:
            key = (tasks,) if isinstance(tasks, str) else tuple(tasks)
            use = uses.setdefault(key, Use(key))
            self.places.append((use, len(use.inputs)))
            use.inputs.append((numbers[id(x)], isinstance(tasks, Each)))
        self.uses = list(uses.values())
        self.sizes = [_tensor(x).shape[1] for x in inputs]
        self.repeats_a_task = len({t for key in uses for t in key}) < sum(map(len, uses))
        self._frame: Tensor | None = None
        self._places: Sequence[Tensor] = ()

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors (K, rows, *input) of bytes or floats as floats, their rows one after another.

        The next call overwrites it: in training, the step is over by then.
        """
        if not self._places:
            sizes = [t.shape[1] for t in tensors]
            shape = (len(tensors[0]), sum(sizes), *tensors[0].shape[2:])
            self._whole = torch.empty(shape, dtype=torch.float32, device=tensors[0].device)
            self._places = self._whole.split(sizes, dim=1)
        for place, tensor in zip(self._places, tensors):
            place.copy_(tensor)
        return self._whole

    def blend(self, inputs: Sequence[Tensor | Mixed], tensors: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
        """The matrix (K, rows of inputs, rows of tensors) that makes the inputs from the tensors times their scales."""
        starts = {}
        column = 0
        for tensor, scale in zip(tensors, scales):
            starts[id(tensor)] = column, scale
            column += tensor.shape[1]
        if self._frame is None:
            self._frame = torch.zeros(len(tensors[0]), sum(self.sizes), column, device=tensors[0].device)
            row = 0
            for x, size in zip(inputs, self.sizes):
                if isinstance(x, Tensor):
                    start, scale = starts[id(x)]
                    self._frame[:, row : row + size, start : start + size].diagonal(dim1=1, dim2=2).fill_(scale)
                row += size
        blend = self._frame.clone()
        row = 0
        for x, size in zip(inputs, self.sizes):
            if isinstance(x, Mixed):
                mine = blend[:, row : row + size]
                (start, scale), (code, other) = starts[id(x.x)], starts[id(x.codes)]
                share = x.share.to(blend.device)
                mine[:, :, start : start + size].diagonal(dim1=1, dim2=2).copy_(share * scale)
                mine[:, :, code : code + x.codes.shape[1]].scatter_(
                    2, x.y.unsqueeze(2), ((1 - share) * other).unsqueeze(2)
                )
            row += size
        return blend

    def differentiate(self, loss: Loss, factor: float) -> None:
        """Put the gradients of factor · loss where `Use.gradient` finds them; without recording, for autograd, how.

        Terms of these very outputs bring their own; autograd does the rest.
        """
        places = {id(part): (use, i) for use in self.uses for i, part in enumerate(use.parts)}
        others: list[tuple[Tensor, Tensor]] = []
        for term in loss.terms:
            gradient = term.gradient(term.outputs, term.weight * factor)
            if id(term.outputs) in places:
                _add(*places[id(term.outputs)], gradient)
            elif term.outputs.requires_grad:
                others.append((term.outputs, gradient))
        if others:
            parts = [(use, i, part) for use in self.uses for i, part in enumerate(use.parts)]
            found = torch.autograd.grad(
                [o for o, _ in others], [part for _, _, part in parts], [g for _, g in others], allow_unused=True
            )
            for (use, i, _), gradient in zip(parts, found):
                if gradient is not None:
                    _add(use, i, gradient)


def key_of(parts: Sequence[Part], inputs: Sequence[Tensor | Mixed]) -> object:
    """What the plan of a call depends on."""
    tensors = tensors_of(inputs)
    at, number = {id(t): i for i, t in enumerate(tensors)}, {id(x): i for i, x in enumerate(inputs)}
    made_of = [at[id(x)] if isinstance(x, Tensor) else (at[id(x.x)], at[id(x.codes)]) for x in inputs]
    asked = [(type(tasks), tasks, number[id(x)]) for tasks, x in parts]
    return tuple(asked), tuple(made_of), tuple((t.dtype, t.shape[1]) for t in tensors)


def tensors_of(inputs: Sequence[Tensor | Mixed]) -> list[Tensor]:
    """The distinct tensors that inputs are made of."""
    listed = (t for x in inputs for t in ([x] if isinstance(x, Tensor) else [x.x, x.codes]))
    return list({id(t): t for t in listed}.values())


def _tensor(x: Tensor | Mixed) -> Tensor:
    return x if isinstance(x, Tensor) else x.x


def _add(use: Use, number: int, gradient: Tensor) -> None:
    before = use.gradients[number]
    use.gradients[number] = gradient if before is None else before + gradient
