"""Learning that methods have in common.

Seq, EWC, LwF, ER, DER++ and both forms of CLPU-DER++ learn their first task in exactly the same way, by plain gradient
descent on its own data, and so do Ind and CLPU-DER++ (scratch) their temporary ones; the main networks of both forms of
CLPU-DER++ are the same until the first merge. Whoever runs several methods with the same seeds can have this
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


def key_of(network: Network, task: str, data: Examples, past: Mapping[str, Memory], facts: Sequence[object]) -> str:
    """What the outcome of learning a task depends on: the start of body and heads, data, memories, and some facts."""
    named = {**network.body.tensors(), "x": data.x, "y": data.y, **_heads(network, [task, *past])}
    for name, memory in past.items():
        named |= {f"memory {name}/{part}": tensor for part, tensor in memory.tensors().items()}
    return hashlib.sha256(f"{json.dumps([task, list(past), *facts], default=str)} {digest(named)}".encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and bits of tensors."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def packed(network: Network, tasks: Sequence[str], memory: Memory | None) -> dict[str, Tensor]:
    """A network that just learned the first of some tasks, with the heads of all, and its memory, as tensors."""
    tensors = {f"body/{n}": t for n, t in network.body.tensors().items()} | _heads(network, tasks)
    return tensors | {f"memory/{n}": t for n, t in (memory.tensors() if memory else {}).items()}


def unpacked(tensors: Mapping[str, Tensor], start: Network, tasks: Sequence[str]) -> tuple[Network, Memory | None]:
    """The same again, for a network that had this start."""

    def part(name: str) -> dict[str, Tensor]:
        return {n.removeprefix(name): t for n, t in tensors.items() if n.startswith(name)}

    memory = part("memory/")
    network = Network(start.body.with_tensors(part("body/")), start.heads, start.pixels)
    for number, task in enumerate(tasks):
        head = part(f"head {number}/")
        network = network.with_head(task, Linear(head["weight"], head["bias"]))
    return network, Memory(memory["x"], memory["y"], memory.get("logits")) if memory else None


def _heads(network: Network, tasks: Sequence[str]) -> dict[str, Tensor]:
    heads = [network.heads[task] for task in tasks]
    return {f"head {i}/{part}": getattr(h, part) for i, h in enumerate(heads) for part in ("weight", "bias")}
