"""The arrangement of the parts of a call, computed once for all steps of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.networks.fast.linear import FoldedLinear
from clpu.networks.parts import Each, Mixed, Part, Pixels


class Use:
    """The use of the heads of some tasks in one call: which inputs' features go in, and the outputs."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks = tasks
        #: The numbers of the inputs, and whether they go through each of the heads or are divided among them.
        self.inputs: list[tuple[int, bool]] = []

    def outputs(self, head: FoldedLinear, features: Sequence[Tensor]) -> Used:
        """The outputs for each of the inputs, which autograd takes for where a loss begins."""
        replicas = features[0].shape[0]
        with torch.no_grad():
            mine = [self._stacked(features[i], each) for i, each in self.inputs]
            x = mine[0] if len(mine) == 1 else torch.cat(mine, 1)
            out = head(x)
        sizes = [f.shape[1] for f in mine]
        out.requires_grad_()
        parts = [out] if len(mine) == 1 else list(out.split(sizes, dim=1))
        if len(self.tasks) > 1:
            parts = [p.reshape(replicas, -1, p.shape[2]) for p in parts]
        return Used(self, head, x, out, sizes, parts, [None] * len(parts))

    def _stacked(self, features: Tensor, each: bool) -> Tensor:
        """Features as one layer of (replicas × tasks) matrices takes them: (replicas·tasks, n, features)."""
        count = len(self.tasks)
        if count == 1:
            return features
        if each:
            features = features.unsqueeze(1).expand(-1, count, -1, -1)
        return features.reshape(len(features) * count, -1, features.shape[-1])


@dataclass(eq=False)
class Used:
    """A use in one step: what went in and came out, and the gradients that are known so far."""

    use: Use
    head: FoldedLinear
    x: Tensor
    out: Tensor
    sizes: list[int]
    parts: list[Tensor]
    gradients: list[Tensor | None]

    def add(self, number: int, gradient: Tensor) -> None:
        before = self.gradients[number]
        self.gradients[number] = gradient if before is None else before + gradient

    def gradient(self) -> Tensor | None:
        """The gradient with respect to the head's output, from those of its parts; `None` if the loss ignores it."""
        if all(g is None for g in self.gradients):
            return None
        parts = [torch.zeros_like(p) if g is None else g for g, p in zip(self.gradients, self.parts)]
        if len(self.use.tasks) > 1:
            parts = [g.reshape(self.out.shape[0], -1, g.shape[2]) for g in parts]
        return parts[0] if len(parts) == 1 else torch.cat([g.mT for g in parts], 2).mT

    def by_input(self, inner: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The gradient with respect to the features of each of the inputs, (replicas, n, features)."""
        count = len(self.use.tasks)
        parts = [inner] if len(self.use.inputs) == 1 else inner.split(self.sizes, dim=1)
        for (number, each), part in zip(self.use.inputs, parts):
            if count > 1:
                part = part.reshape(len(part) // count, count, -1, part.shape[2])
                part = part.sum(1) if each else part.flatten(1, 2)
            yield number, part


class CallPlan:
    """The arrangement of the parts of a call.

    The distinct inputs have their rows one after another, and so have the tensors that they are made of: the inputs
    themselves, or what is mixed in them.
    """

    def __init__(self, parts: Sequence[Part], inputs: Sequence[Tensor | Mixed]) -> None:
        numbers = {id(x): i for i, x in enumerate(inputs)}
        uses: dict[tuple[str, ...], Use] = {}
        self.places: list[tuple[int, int]] = []
        for tasks, x in parts:
            key = (tasks,) if isinstance(tasks, str) else tuple(tasks)
            use = uses.setdefault(key, Use(key))
            self.places.append((list(uses).index(key), len(use.inputs)))
            use.inputs.append((numbers[id(x)], isinstance(tasks, Each)))
        self.uses = list(uses.values())
        self.sizes = [(x if isinstance(x, Tensor) else x.x).shape[1] for x in inputs]
        self.repeats_a_task = len({t for key in uses for t in key}) < sum(map(len, uses))
        self._frame: Tensor | None = None
        self._buffers: list[tuple[Tensor, Sequence[Tensor]]] = []

    def joined(
        self, inputs: Sequence[Tensor | Mixed], pixels: Pixels, number: int
    ) -> tuple[Tensor, float, Tensor | None]:
        """One tensor of floats (K, rows, *input); what is left to the first layer: a factor, perhaps a blend.

        `number` counts the calls of this plan in a step: each has a buffer, which the next step overwrites.
        """
        tensors = tensors_of(inputs)
        scales = [1.0 if t.dtype != torch.uint8 or pixels.mean else 1 / 255 for t in tensors]
        floats = [pixels(t) if t.dtype == torch.uint8 and pixels.mean else t for t in tensors]
        mixed = any(isinstance(x, Mixed) for x in inputs)
        if not mixed and len(set(scales)) > 1:
            floats, scales = [pixels(t) for t in tensors], [1.0]
        if len(floats) == 1:
            whole = floats[0].to(torch.float32) if floats[0].dtype == torch.uint8 else floats[0]
        else:
            whole = self._copied(floats, number)
        return (whole, 1.0, self._blend(inputs, tensors, scales)) if mixed else (whole, scales[0], None)

    def _copied(self, tensors: Sequence[Tensor], number: int) -> Tensor:
        """Tensors (K, rows, *input) of bytes or floats as floats, their rows one after another, in a buffer."""
        if number == len(self._buffers):
            sizes = [t.shape[1] for t in tensors]
            shape = (len(tensors[0]), sum(sizes), *tensors[0].shape[2:])
            whole = torch.empty(shape, dtype=torch.float32, device=tensors[0].device)
            self._buffers.append((whole, whole.split(sizes, dim=1)))
        whole, places = self._buffers[number]
        for place, tensor in zip(places, tensors):
            place.copy_(tensor)
        return whole

    def _blend(self, inputs: Sequence[Tensor | Mixed], tensors: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
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
                mine[:, :, code : code + x.codes.shape[1]].scatter_add_(
                    2, x.y.unsqueeze(2), ((1 - share) * other).unsqueeze(2)
                )
            row += size
        return blend


def key_of(parts: Sequence[Part], inputs: Sequence[Tensor | Mixed]) -> object:
    """Return everything that the plan of a call depends on."""
    tensors = tensors_of(inputs)
    at, number = {id(t): i for i, t in enumerate(tensors)}, {id(x): i for i, x in enumerate(inputs)}
    made_of = [at[id(x)] if isinstance(x, Tensor) else (at[id(x.x)], at[id(x.codes)]) for x in inputs]
    asked = [(type(tasks), tasks, number[id(x)]) for tasks, x in parts]
    return tuple(asked), tuple(made_of), tuple((t.dtype, t.shape[1]) for t in tensors)


def tensors_of(inputs: Sequence[Tensor | Mixed]) -> list[Tensor]:
    """The distinct tensors that inputs are made of."""
    listed = (t for x in inputs for t in ([x] if isinstance(x, Tensor) else [x.x, x.codes]))
    return list({id(t): t for t in listed}.values())
