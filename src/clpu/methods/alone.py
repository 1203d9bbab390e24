"""Learning that methods have in common: plain gradient descent on a task's own data.

Seq, EWC, LwF, ER, DER++ and both forms of CLPU-DER++ learn their first task in exactly the same way, and so do
Ind and CLPU-DER++ (scratch) their temporary ones. Whoever runs several methods with the same seeds can have this
done once: equal starts, data and settings give equal bits, so nobody can tell the difference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from clpu.memory import Memory
from clpu.networks.descent import Linear
from clpu.networks.network import Network
from clpu.training import Examples


class Shared(Protocol):
    """Where results of learning are kept for other methods: tensors by a key, and the seconds that they took."""

    def get(self, key: str) -> dict[str, Tensor] | None: ...
    def put(self, key: str, tensors: dict[str, Tensor], seconds: float) -> None: ...


def key_of(network: Network, task: str, data: Examples, facts: Sequence[object]) -> str:
    """What the outcome of learning a task alone depends on: the start of body and head, the data, and some facts."""
    head = network.heads[task]
    named = {**network.body.tensors(), "head weight": head.weight, "head bias": head.bias, "x": data.x, "y": data.y}
    return hashlib.sha256(f"{json.dumps([task, *facts], default=str)} {digest(named)}".encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and bits of tensors."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def packed(network: Network, task: str, memory: Memory | None) -> dict[str, Tensor]:
    """A network just learned, and the memory of the task, as tensors."""
    head = network.heads[task]
    tensors = {f"body/{n}": t for n, t in network.body.tensors().items()}
    tensors |= {"head/weight": head.weight, "head/bias": head.bias}
    return tensors | {f"memory/{n}": t for n, t in (memory.tensors() if memory else {}).items()}


def unpacked(tensors: Mapping[str, Tensor], start: Network, task: str) -> tuple[Network, Memory | None]:
    """The same again, for a network that had this start."""

    def part(name: str) -> dict[str, Tensor]:
        return {n.removeprefix(name): t for n, t in tensors.items() if n.startswith(name)}

    memory, head = part("memory/"), part("head/")
    network = Network(start.body.with_tensors(part("body/")), start.heads, start.pixels)
    network = network.with_head(task, Linear(head["weight"], head["bias"]))
    return network, Memory(memory["x"], memory["y"], memory.get("logits")) if memory else None
