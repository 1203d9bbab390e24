"""Examples, and batches of them for all replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """A task's training data: x (n, *input) as it was given, y (n,) the class of each as 0 … classes-1.

    For methods that forget records also the people that each record is about, in order, and its id. `shape` is that of
    one input as it was given, where x are a base's features.
    """

    x: Tensor
    y: Tensor
    labels: tuple[int | str, ...]
    people: tuple[tuple[str, ...], ...] = ()
    records: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        return len(self.labels)

    def chosen(self, rows: NDArray[np.bool_]) -> Examples:
        """Some of the examples, with all labels."""
        where = torch.from_numpy(rows).to(self.x.device)
        people = tuple(who for who, there in zip(self.people, rows) if there)
        records = tuple(one for one, there in zip(self.records, rows) if there)
        return replace(self, x=self.x[where], y=self.y[where], people=people, records=records)


@dataclass(frozen=True)
class Batch:
    """One step's examples for all replicas: x (K, batch, *input), y (K, batch), their rows in the data."""

    x: Tensor
    y: Tensor
    index: Tensor
    step: int
    start: int


Augment = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    """Inputs as they are: no augmentation."""
    return x


class Batches:
    """Some passes over a task's data, each replica in its own order.

    With `balanced`, every class is seen equally often in a pass, whatever its share of the data. A pass is cut into
    ⌈n / batch_size⌉ batches as equal as can be, so that none has a single odd example (which BatchNorm could not take).
    """

    def __init__(
        self,
        data: Examples,
        epochs: int,
        batch_size: int,
        sources: Sequence[torch.Generator],
        augment: Augment = unchanged,
        balanced: bool = False,
    ) -> None:
        self.data, self.epochs, self.sources, self.augment = data, epochs, list(sources), augment
        self.balanced = balanced
        count = -(-len(data) // batch_size)
        self.sizes = [len(data) // count + (i < len(data) % count) for i in range(count)]

    def __len__(self) -> int:
        return self.epochs * len(self.sizes)

    @property
    def examples_seen(self) -> int:
        return self.epochs * len(self.data)

    @property
    def starts(self) -> list[int]:
        """The position in the complete run of examples at which each step begins."""
        starts, position = [], 0
        for size in self.sizes * self.epochs:
            starts.append(position)
            position += size
        return starts

    def _order(self, source: torch.Generator) -> Tensor:
        """The rows of one pass: all of them or, balanced, equally many of each class, repeated where there are few."""
        count = len(self.data)
        order = torch.randperm(count, generator=source, device="cpu")
        if not self.balanced:
            return order
        classes, drawn = self.data.y.cpu()[order], []
        for number in range(self.data.classes):
            mine, wanted = order[classes == number], count // self.data.classes + (number < count % self.data.classes)
            drawn.append(mine.repeat(-(-wanted // max(1, len(mine))))[:wanted])
        rows = torch.cat(drawn)
        return rows[torch.randperm(len(rows), generator=source, device="cpu")]

    def __iter__(self) -> Iterator[Batch]:
        x, y = self.data.x, self.data.y
        step = start = 0
        for _ in range(self.epochs):
            order = torch.stack([self._order(source) for source in self.sources])
            classes = y.index_select(0, order.flatten().to(y.device)).view(order.shape)
            for index, some_y in zip(order.split(self.sizes, dim=1), classes.split(self.sizes, dim=1)):
                rows = index.reshape(-1).to(x.device)
                some_x = x.index_select(0, rows).view(*index.shape, *x.shape[1:])
                yield Batch(self.augment(some_x), some_y, index, step, start)
                step += 1
                start += index.shape[1]
