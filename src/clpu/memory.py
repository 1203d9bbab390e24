"""Episodic memory: one isolated reservoir a task (B in the paper), and draws from several for rehearsal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.randomness import rand
from clpu.training import Augment, Batch, Batches, unchanged

#: For how many steps rehearsal draws its numbers in one go.
STEPS_AT_ONCE = 64


@dataclass(frozen=True)
class Memory:
    """What is kept of a task: inputs in their compact form, classes, and (for DER++) outputs h.

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
    """Some examples of one past task."""

    task: str
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
        self.index = torch.zeros_like(self.places)
        self.logits: Tensor | None = None
        order = self.places.flatten().argsort()
        self._slots = order
        bounds = torch.searchsorted(
            self.places.flatten()[order], self.places.new_tensor([*batches.starts, batches.examples_seen])
        )
        self._bounds: list[int] = bounds.tolist()

    def see(self, batch: Batch, logits: Tensor | None = None) -> None:
        """Keep the examples of this batch that stay to the end, with the outputs they had just now."""
        slots = self._slots[self._bounds[batch.step] : self._bounds[batch.step + 1]]
        if logits is not None and self.logits is None:
            self.logits = logits.new_zeros(*self.places.shape, logits.shape[-1])
        if not len(slots):
            return
        replica, slot = slots // self.places.shape[1], slots % self.places.shape[1]
        where = self.places[replica, slot] - batch.start
        self.index[replica, slot] = batch.index[replica, where]
        if self.logits is not None and logits is not None:
            there = (replica.to(logits.device), where.to(logits.device))
            self.logits[replica.to(logits.device), slot.to(logits.device)] = logits.detach()[there]

    def memory(self) -> Memory:
        """What was kept."""
        index = self.index.to(self.data.x.device)
        return Memory(self.data.x[index], self.data.y[index], self.logits)


class Rehearsal:
    """Draws `samples` examples a step, divided over past tasks, without replacement and anew at each step."""

    def __init__(
        self,
        memories: Mapping[str, Memory],
        samples: int,
        sources: Sequence[torch.Generator],
        device: torch.device,
        augment: Augment = unchanged,
    ) -> None:
        self.memories, self.augment = dict(memories), augment
        self.share = max(1, samples // max(1, len(self.memories)))
        self.sources, self.device = list(sources), device
        self._drawn: dict[str, Tensor] = {}
        self._step = STEPS_AT_ONCE

    def draw(self) -> list[Sample]:
        """One sample a past task."""
        if self._step == STEPS_AT_ONCE:
            self._drawn = {task: self._rows(memory) for task, memory in self.memories.items()}
            self._step = 0
        samples = []
        for task, memory in self.memories.items():
            rows = self._drawn[task][self._step]
            picked = [None if t is None else _pick(t, rows) for t in (memory.x, memory.y, memory.logits)]
            x, y, logits = picked
            assert x is not None
            assert y is not None
            samples.append(Sample(task, self.augment(x), y, logits))
        self._step += 1
        return samples

    def _rows(self, memory: Memory) -> Tensor:
        """Row numbers (steps, K·share) into the memory seen as one table over all replicas."""
        share = min(self.share, len(memory))
        drawn = [
            rand(STEPS_AT_ONCE, len(memory), source=source).topk(share).indices + k * len(memory)
            for k, source in enumerate(self.sources)
        ]
        return torch.cat(drawn, 1).to(self.device)


def _pick(table: Tensor, rows: Tensor) -> Tensor:
    picked = table.flatten(0, 1).index_select(0, rows)
    return picked.view(table.shape[0], -1, *table.shape[2:])
