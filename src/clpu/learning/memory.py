"""Episodic memory: one isolated reservoir a task (B in the paper), and draws from several for rehearsal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from clpu.learning.batches import Augment, Batch, Batches, unchanged
from clpu.learning.losses import Loss, weighted
from clpu.learning.randomness import rand

#: For how many steps rehearsal draws its numbers in one go.
STEPS_AT_ONCE = 64


@dataclass(frozen=True)
class Memory:
    """The examples kept of a task: inputs in their compact form, classes, and (for DER++) outputs h.

    Every tensor has the replica axis in front: x (K, kept, *input), y (K, kept), logits (K, kept, classes).
    """

    x: Tensor
    y: Tensor
    logits: Tensor | None = None

    def __len__(self) -> int:
        return self.y.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        named = {"x": self.x, "y": self.y, "logits": self.logits}
        return {name: t for name, t in named.items() if t is not None}


@dataclass(frozen=True)
class Sample:
    """Some examples of past tasks, equally many of each, those of the first task first: x (K, examples, *input)."""

    tasks: tuple[str, ...]
    x: Tensor
    y: Tensor
    logits: Tensor | None


def survivors(length: int, size: int, source: torch.Generator) -> Tensor:
    """Reservoir sampling: which positions of a stream of `length` examples fill the `size` slots at its end.

    Example i takes slot i while there are free ones; then it draws j from {0, …, i} and replaces what is
    in slot j, if there is such a slot. The draws do not depend on the examples, so the outcome is known
    before the first one comes, and only examples that stay are ever copied.

    >>> survivors(3, 5, torch.Generator().manual_seed(0)).tolist()
    [0, 1, 2]
    """
    position = torch.arange(length, device="cpu")
    draw = (rand(length, source=source, dtype=torch.float64) * (position + 1)).long()
    slot = torch.where(position < size, position, draw)
    taken = slot < size
    last = position.new_zeros(min(size, length))
    return last.scatter_reduce_(0, slot[taken], position[taken], "amax")


class Reservoir:
    """Fills a task's memory while the task is being learned."""

    def __init__(self, batches: Batches, size: int, sources: Sequence[torch.Generator]) -> None:
        self.data = batches.data
        self.places = torch.stack([survivors(batches.examples_seen, size, s) for s in sources])
        # The slots in the order in which they are last filled: of which replica, and by which row of its batch.
        self._slots = self.places.flatten().argsort()
        places = self.places.flatten()[self._slots]
        starts = self.places.new_tensor(batches.starts)
        replica = self._slots // self.places.shape[1]
        row = places - starts[torch.searchsorted(starts, places, right=True) - 1]
        ends = [*batches.starts[1:], batches.examples_seen]
        filled: list[int] = torch.searchsorted(places, places.new_tensor([0, *ends])).tolist()
        steps = ((step, *ends) for step, ends in enumerate(pairwise(filled)))
        self._of_step = {step: (replica[a:b], row[a:b]) for step, a, b in steps if a < b}
        self._indices: list[Tensor] = []
        self._logits: list[Tensor] = []

    def see(self, batch: Batch, logits: Tensor | None = None) -> None:
        """Keep the examples of this batch that stay to the end, with the outputs they had just now."""
        if batch.step not in self._of_step:
            return
        replica, row = self._of_step[batch.step]
        self._indices.append(batch.index[replica, row])
        if logits is not None:
            self._logits.append(logits.detach()[replica.to(logits.device), row.to(logits.device)])

    def memory(self) -> Memory:
        """Return the examples kept."""
        device = self.data.x.device
        index = self._in_slots(self._indices).to(device)
        return Memory(self.data.x[index], self.data.y[index], self._in_slots(self._logits) if self._logits else None)

    def _in_slots(self, kept: list[Tensor]) -> Tensor:
        values = torch.cat(kept)
        slots = torch.empty_like(values)
        slots[self._slots.to(values.device)] = values
        return slots.view(*self.places.shape, *values.shape[1:])


def alike(memories: Mapping[str, Memory], classes: Mapping[str, int]) -> list[dict[str, Memory]]:
    """Memories in groups whose numbers of examples, types and numbers of classes are the same."""
    groups: dict[object, dict[str, Memory]] = {}
    for task, memory in memories.items():
        kind = (classes[task], len(memory), memory.x.dtype, memory.logits is None)
        groups.setdefault(kind, {})[task] = memory
    return list(groups.values())


class Rehearsal:
    """Draws `samples` examples a step, divided over past tasks, without replacement and anew at each step.

    Tasks whose memories and numbers of classes are alike are drawn together, as one `Sample`.
    """

    def __init__(
        self,
        memories: Mapping[str, Memory],
        classes: Mapping[str, int],
        samples: int,
        sources: Sequence[torch.Generator],
        augment: Augment = unchanged,
    ) -> None:
        share = max(1, samples // max(1, len(memories)))
        self._tables = [_Table(group, share, sources) for group in alike(memories, classes)]
        self._tasks, self._augment = len(memories), augment

    def draw(self) -> list[Sample]:
        """One step's samples."""
        return [table.draw(self._augment) for table in self._tables]

    def mean(self, terms: Iterable[Loss | Tensor]) -> Loss:
        """1/|past tasks| Σ_τ of a loss, from its means over each of the samples; zero if there are none."""
        return weighted(*((len(table.tasks) / self._tasks, term) for term, table in zip(terms, self._tables)))


class _Table:
    """The memories of tasks that are alike, in one table with a row for each (replica, task, example)."""

    def __init__(self, memories: Mapping[str, Memory], share: int, sources: Sequence[torch.Generator]) -> None:
        self.tasks, self.sources = tuple(memories), list(sources)
        parts = list(memories.values())
        self.kept = len(parts[0])
        self.share = min(share, self.kept)
        self.x = torch.stack([m.x for m in parts], 1).flatten(0, 2)
        self.y = torch.stack([m.y for m in parts], 1).flatten(0, 2)
        logits = [m.logits for m in parts if m.logits is not None]
        self.logits = torch.stack(logits, 1).flatten(0, 2) if logits else None
        self._ahead: Iterator[tuple[Tensor, Tensor, Tensor | None]] = iter(())

    def draw(self, augment: Augment) -> Sample:
        drawn = next(self._ahead, None)
        if drawn is None:
            self._ahead = self._look_ahead()
            drawn = next(self._ahead)
        rows, y, logits = drawn
        x = self.x.index_select(0, rows).view(len(self.sources), -1, *self.x.shape[1:])
        return Sample(self.tasks, augment(x), y, logits)

    def _look_ahead(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Row numbers, classes and logits for some steps; inputs, which are large, are picked when they are needed."""
        rows = self._rows()

        def pick(table: Tensor) -> Sequence[Tensor]:
            picked = table.index_select(0, rows.flatten())
            return picked.view(len(rows), len(self.sources), -1, *table.shape[1:]).unbind()

        logits = [None] * len(rows) if self.logits is None else pick(self.logits)
        return zip(rows.unbind(), pick(self.y), logits)

    def _rows(self) -> Tensor:
        """Row numbers (steps, K·tasks·share) for some steps ahead."""
        drawn = []
        for k, source in enumerate(self.sources):
            keys = rand(STEPS_AT_ONCE, len(self.tasks), self.kept, source=source)
            first = torch.arange(len(self.tasks), device="cpu").unsqueeze(1) + k * len(self.tasks)
            drawn.append((keys.topk(self.share).indices + first * self.kept).flatten(1))
        return torch.cat(drawn, 1).to(self.x.device)
