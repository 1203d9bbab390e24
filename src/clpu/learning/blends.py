"""Inputs near a memory, without end: blends of two of its examples, with a little noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from clpu.learning.batches import Augment, unchanged
from clpu.learning.losses import Loss, weighted
from clpu.learning.memory import Memory, alike
from clpu.learning.randomness import rand

#: For how many steps random numbers are drawn in one go.
STEPS_AT_ONCE = 32


class Blends:
    """Draws `count` inputs per step, divided over tasks: λ·a + (1 − λ)·b of two examples a, b of a task's memory.

    λ is uniform in [0, 1]. Then a share `noise` of the values of each blend, one in each of equal stretches, is
    replaced by uniform numbers: bytes from the full range of a byte, other values from the range that the memory has
    at that place. Integers (tokens) cannot be blended: for them the examples a are drawn as they are.

    `pixels` makes numbers of bytes. Tasks whose memories and numbers of classes are alike are drawn together.
    """

    def __init__(
        self,
        memories: Mapping[str, Memory],
        classes: Mapping[str, int],
        count: int,
        noise: float,
        sources: Sequence[torch.Generator],
        pixels: Callable[[Tensor], Tensor],
        augment: Augment = unchanged,
    ) -> None:
        share = max(1, count // max(1, len(memories)))
        self._tables = [_Table(group, share, noise, sources, pixels, augment) for group in alike(memories, classes)]
        self._tasks = len(memories)

    def draw(self) -> list[tuple[tuple[str, ...], Tensor]]:
        """One step's inputs, as parts of a call of a network: tasks, and x (K, share of each task, *input)."""
        return [(table.tasks, next(table.inputs)) for table in self._tables]

    def mean(self, terms: Iterable[Loss | Tensor]) -> Loss:
        """1/|tasks| Σ_τ of a loss, from its means over each of the parts; zero if there are none."""
        return weighted(*((len(table.tasks) / self._tasks, term) for term, table in zip(terms, self._tables)))


class _Table:
    """The memories of tasks that are alike, in one table with a row for each (replica, task, example)."""

    def __init__(
        self,
        memories: Mapping[str, Memory],
        share: int,
        noise: float,
        sources: Sequence[torch.Generator],
        pixels: Callable[[Tensor], Tensor],
        augment: Augment,
    ) -> None:
        self.tasks, self.share, self.sources = tuple(memories), share, list(sources)
        self._pixels, self._augment = pixels, augment
        self._x = torch.stack([m.x for m in memories.values()], 1)
        replicas, tasks, self._kept, *shape = self._x.shape
        self._values = self._x[0, 0, 0].numel()
        starts = torch.linspace(0, self._values, round(noise * self._values) + 1, dtype=torch.float64).long()
        self._starts, self._lengths = starts[:-1].to(self._x.device), starts.diff().to(self._x.device)
        if self._x.dtype == torch.uint8:
            ends = [
                pixels(torch.full((1, 1, *shape), end, dtype=torch.uint8, device=self._x.device)) for end in (0, 255)
            ]
            low, high = (end.expand(replicas, tasks, *shape) for end in ends)
            if augment is unchanged:  # then an example is always the same, so it is made a number once
                self._x = pixels(self._x.flatten(0, 1)).view(self._x.shape)
        else:
            low, high = self._x.amin(2), self._x.amax(2)
        self._low, self._width = low.reshape(-1), (high - low).reshape(-1)
        self._x = self._x.flatten(0, 2)
        self.inputs = self._draw()

    def _draw(self) -> Iterator[Tensor]:
        while True:
            # A row of numbers from U(0, 1) for each blend: a, b, λ, then the places of the noise and its values.
            shape = (STEPS_AT_ONCE, len(self.tasks), self.share, 3 + 2 * len(self._starts))
            drawn = torch.stack([rand(*shape, source=source) for source in self.sources], 1).to(self._x.device)
            for numbers in drawn.flatten(1, 2):
                yield self._blend(numbers)

    def _blend(self, numbers: Tensor) -> Tensor:
        """The inputs that numbers (K·tasks, share, 3 + 2·noisy) encode."""
        group = torch.arange(len(numbers), device=numbers.device).view(-1, 1, 1)
        pair = _whole(numbers[..., :2], self._kept) + group * self._kept
        a = self._examples(pair[..., 0])
        if not a.is_floating_point():
            return a
        share = numbers[..., 2].reshape(len(self.sources), -1, *(1,) * (a.dim() - 2))
        blended = torch.lerp(self._examples(pair[..., 1]), a, share)
        if len(self._starts):
            places, values = numbers[..., 3:].chunk(2, -1)
            places = self._starts + _whole(places, self._lengths)
            of_task = places + group * self._values
            values = self._low[of_task] + values * self._width[of_task]
            rows = self._values * torch.arange(of_task[..., 0].numel(), device=places.device).view(
                *of_task.shape[:2], 1
            )
            blended.view(-1)[places + rows] = values
        return blended

    def _examples(self, rows: Tensor) -> Tensor:
        x = self._x.index_select(0, rows.flatten()).view(len(self.sources), -1, *self._x.shape[1:])
        return self._pixels(self._augment(x))


def _whole(numbers: Tensor, count: int | Tensor) -> Tensor:
    """Integers from 0 to count - 1, from numbers in [0, 1)."""
    return (numbers * count).long().clamp_(max=count - 1)
