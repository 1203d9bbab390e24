"""The parts of a call of a network: which inputs go through the heads of which tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from clpu.learning.augment import normalise
from clpu.networks.linear import Linear


class Each(tuple[str, ...]):
    """Tasks through each of whose heads all inputs of a part go."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Mixed:
    """Inputs share·x + (1 − share)·codes[y], with a share for each.

    x (K, batch, *input), codes (K, classes, *input), y (K, batch), share (K, batch). They are computed when a network
    asks for them; one whose first layer is linear may answer for them without.
    """

    x: Tensor
    codes: Tensor
    y: Tensor
    share: Tensor

    def computed(self, pixels: Pixels) -> Tensor:
        """The inputs themselves."""
        x, codes = pixels(self.x), pixels(self.codes)
        share = self.share.to(x.device).view(*self.share.shape, *(1,) * (x.dim() - 2))
        rows = torch.arange(len(codes), device=codes.device).unsqueeze(1)
        return share * x + (1 - share) * codes[rows, self.y]


@dataclass(frozen=True)
class Pixels:
    """Turns bytes into numbers from 0 to 1, then (x - mean) / std per channel if these are set.

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


Tasks: TypeAlias = str | tuple[str, ...]
Part: TypeAlias = tuple[Tasks, Tensor | Mixed]


def answer(
    parts: Sequence[Part], forward: Callable[[Tensor], Tensor], heads: Mapping[str, Linear], pixels: Pixels
) -> list[Tensor]:
    """Outputs for parts (task, x), each through its task's head; x has shape (K, batch, *input).

    A part may be ((task, task, …), x): then x holds equally many examples of each, the first task's first. Or
    (Each((task, task, …)), x): then all of x goes through each of the heads, and so the outputs are arranged. The
    tasks of such a part have equally many classes. x may be `Mixed`. All parts share one pass through the body, and an
    input that occurs in several parts goes through it once.
    """
    distinct = {id(x): x for _, x in parts}
    floats = [x.computed(pixels) if isinstance(x, Mixed) else pixels(x) for x in distinct.values()]
    features = forward(floats[0] if len(floats) == 1 else torch.cat(floats, 1)).split([x.shape[1] for x in floats], 1)
    found = dict(zip(distinct, features))
    return [_through(tasks, found[id(x)], heads) for tasks, x in parts]


def _through(tasks: Tasks, features: Tensor, heads: Mapping[str, Linear]) -> Tensor:
    if isinstance(tasks, str):
        return heads[tasks](features)
    each = [features] * len(tasks) if isinstance(tasks, Each) else features.chunk(len(tasks), 1)
    return torch.cat([heads[task](some) for task, some in zip(tasks, each)], 1)
