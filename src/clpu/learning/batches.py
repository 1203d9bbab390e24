"""Examples, and batches of them for all replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """A task's training data: x (n, *input) as it was given, y (n,) the class of each as 0 … classes-1."""

    x: Tensor
    y: Tensor
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        return len(self.labels)


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
    """Some passes over a task's data, each replica in an order of its own.

    A pass is cut into ⌈n / batch_size⌉ batches as equal as can be, so that none has a single odd example
    (which BatchNorm could not take).
    """

    def __init__(
        self,
        data: Examples,
        epochs: int,
        batch_size: int,
        sources: Sequence[torch.Generator],
        augment: Augment = unchanged,
    ) -> None:
        self.data, self.epochs, self.sources, self.augment = data, epochs, list(sources), augment
        count = -(-len(data) // batch_size)
        self.sizes = [len(data) // count + (i < len(data) % count) for i in range(count)]

    def __len__(self) -> int:
        return self.epochs * len(self.sizes)

    @property
    def examples_seen(self) -> int:
        return self.epochs * len(self.data)

    @property
    def starts(self) -> list[int]:
        """The position in the whole run of examples at which each step begins."""
        starts, position = [], 0
        for size in self.sizes * self.epochs:
            starts.append(position)
            position += size
        return starts

    def __iter__(self) -> Iterator[Batch]:
        x, y = self.data.x, self.data.y
        step = start = 0
        for _ in range(self.epochs):
            order = torch.stack(
                [torch.randperm(len(self.data), generator=source, device="cpu") for source in self.sources]
            )
            classes = y.index_select(0, order.flatten().to(y.device)).view(order.shape)
            for index, some_y in zip(order.split(self.sizes, dim=1), classes.split(self.sizes, dim=1)):
                rows = index.reshape(-1).to(x.device)
                some_x = x.index_select(0, rows).view(*index.shape, *x.shape[1:])
                yield Batch(self.augment(some_x), some_y, index, step, start)
                step += 1
                start += index.shape[1]
