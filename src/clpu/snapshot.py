"""An agent's learned state as plain data: tensors and JSON, out and in, and the digest over them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from clpu.errors import BadRequest, BadState
from clpu.memory import Memory
from clpu.methods.base import Method, State
from clpu.networks.blueprint import Inputs
from clpu.networks.descent import Linear
from clpu.networks.network import Network
from clpu.requests import Entry, Instruction, check_name

FORMAT = "clpu-agent"
VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """`meta` is JSON (method, settings, seeds, ledger); `tensors` is everything learned, by name."""

    meta: dict[str, Any]
    tensors: dict[str, Tensor]

    def to_bytes(self) -> bytes:
        """One safetensors file, `meta` in its header. Equal states give equal bytes."""
        plain: dict[str, Tensor] = {}
        places: set[int] = set()
        for name, tensor in self.tensors.items():
            plain[name] = tensor.detach().cpu().contiguous()
            if plain[name].data_ptr() in places:  # safetensors wants each tensor in memory of its own
                plain[name] = plain[name].clone()
            places.add(plain[name].data_ptr())
        return safetensors.torch.save(plain, {FORMAT: canonical(self.meta)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Read what `to_bytes` wrote; `BadState` for anything else."""
        try:
            tensors = safetensors.torch.load(data)
            size = int.from_bytes(data[:8], "little")
            meta = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][FORMAT])
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadState(f"these bytes are no saved agent: {error!r:.200}") from None
        if not isinstance(meta, dict):
            raise BadState("these bytes are no saved agent: the description is not a JSON object")
        return cls(meta, tensors)

    def digest(self) -> str:
        """SHA-256 over the description and every tensor's name, type, shape and bits."""
        sha = hashlib.sha256(canonical(self.meta).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name].detach().cpu().contiguous()
            sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()


def canonical(meta: Any) -> str:
    """JSON in one form only."""
    return json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def state_meta(state: State) -> dict[str, Any]:
    """The part of the description that is learned: what inputs look like, and the ledger."""
    inputs = None if state.inputs is None else [list(state.inputs.shape), state.inputs.integer]
    ledger = [[task, e.status.value, list(e.labels), e.steps] for task, e in state.ledger.entries.items()]
    return {"inputs": inputs, "ledger": ledger}


def main_tensors(state: State) -> dict[str, Tensor]:
    """The main network, with its heads."""
    return {} if state.main is None else {f"main/{name}": t for name, t in _network_tensors(state.main).items()}


def task_tensors(state: State, task: str) -> dict[str, Tensor]:
    """All that stands under one task's name: an isolated network, a memory, extras."""
    parts: dict[str, Mapping[str, Tensor]] = {}
    if task in state.isolated:
        parts["network"] = _network_tensors(state.isolated[task])
    if task in state.memories:
        parts["memory"] = state.memories[task].tensors()
    parts["extra"] = state.extras.get(task, {})
    return {f"task/{encode(task)}/{part}/{n}": t for part, tensors in parts.items() for n, t in tensors.items()}


def state_tensors(state: State) -> dict[str, Tensor]:
    """Every tensor of a state by name."""
    named = main_tensors(state)
    for task in state.ledger:
        named |= task_tensors(state, task)
    return named


def _network_tensors(network: Network) -> dict[str, Tensor]:
    named = {f"body/{name}": t for name, t in network.body.tensors().items()}
    for task, head in network.heads.items():
        named |= {f"head/{encode(task)}/weight": head.weight, f"head/{encode(task)}/bias": head.bias}
    return named


def encode(task: str) -> str:
    """A task's name in a tensor's name: percent-encoded, so that `/` only ever separates."""
    return quote(task, safe="")


def read_state(method: Method, snapshot: Snapshot) -> State:
    """Rebuild a method's state; every name, shape and type must be what such a method would have, and all be there."""
    state = State()
    try:
        if snapshot.meta["inputs"] is not None:
            shape, integer = snapshot.meta["inputs"]
            state.inputs = Inputs(tuple(_count(size) for size in shape), integer is True)
        for task, status, labels, steps in snapshot.meta["ledger"]:
            if status not in ("R", "T") or task in state.ledger:
                raise ValueError(f"task {task!r:.40} has status {status!r:.40} or occurs twice")
            entry = Entry(Instruction(status), _labels(labels), _count(steps))
            state.ledger.learned(check_name(task), entry)
    except (KeyError, TypeError, ValueError, BadRequest) as error:
        raise BadState(f"the saved description is damaged: {error!r:.200}") from None
    if (snapshot.tensors or state.ledger) and state.inputs is None:
        raise BadState("the saved state does not say what inputs look like")
    method.state = state
    reader = _Reader(method, state)
    reader.read(snapshot.tensors)
    reader.check_complete()
    return state


def _count(number: Any) -> int:
    if type(number) is not int or not 1 <= number < 2**53:
        raise ValueError(f"expected a positive whole number, got {number!r:.40}")
    return number


def _labels(labels: Any) -> tuple[int, ...]:
    good = isinstance(labels, list) and len(labels) > 1 and all(type(n) is int and abs(n) < 2**63 for n in labels)
    if not good or sorted(set(labels)) != labels:
        raise ValueError(f"expected two or more whole numbers in ascending order, got {labels!r:.80}")
    return tuple(labels)


class _Reader:
    """Sorts tensors into a state's parts."""

    def __init__(self, method: Method, state: State) -> None:
        self.method, self.state = method, state
        self.device = method.device

    def check_complete(self) -> None:
        """Refuse a state in which something is missing that a task of the ledger must have."""
        method, state = self.method, self.state
        for task, entry in state.ledger.entries.items():
            network = state.isolated.get(task) or state.main
            head = network.heads.get(task) if network is not None else None
            if head is None or head.weight.shape[-1] != len(entry.labels):
                raise BadState(f"task {task!r} has no head with {len(entry.labels)} classes")
            if method.keeps is None:
                continue
            memory = state.memories.get(task)
            kept = () if memory is None else ("memory",) if memory.logits is None else ("memory", "logits")
            if kept != method.keeps or (memory is not None and not len(memory)):
                raise BadState(f"task {task!r}: expected {method.keeps or 'no memory'}, got {kept or 'none'}")
            shapes = {n: (torch.float32, shape) for n, shape in method.extra_shapes(len(entry.labels)).items()}
            self._check_all(f"extras of task {task!r}", state.extras.get(task, {}), shapes)
        if method.exact:
            heads = {*(state.main.heads if state.main else ()), *(t for n in state.isolated.values() for t in n.heads)}
            if not heads <= set(state.ledger):
                raise BadState("the saved state has heads of tasks that are not in the ledger")

    def _check_all(self, what: str, found: dict[str, Tensor], expected: dict[str, Any]) -> None:
        if found.keys() != expected.keys():
            raise BadState(f"{what} should be others: {sorted(found.keys() ^ expected.keys())[:5]}")
        for name, tensor in found.items():
            self._check(name, tensor, (expected[name][0],), expected[name][1])

    def read(self, tensors: dict[str, Tensor]) -> None:
        main: dict[str, Tensor] = {}
        by_task: dict[str, dict[str, dict[str, Tensor]]] = {task: {} for task in self.state.ledger}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "main":
                main[rest] = tensor.to(self.device)
                continue
            quoted, _, rest = rest.partition("/")
            part, _, rest = rest.partition("/")
            task = unquote(quoted)
            if kind != "task" or part not in ("network", "memory", "extra") or task not in by_task:
                raise BadState(f"tensor {name!r:.100} belongs to no part of the state and to no task in the ledger")
            by_task[task].setdefault(part, {})[rest] = tensor.to(self.device)
        if main:
            self.state.main = self._network(main)
        for task, parts in by_task.items():
            if "network" in parts:
                self.state.isolated[task] = self._network(parts["network"])
            if "memory" in parts:
                self.state.memories[task] = self._memory(parts["memory"], task)
            for name, tensor in parts.get("extra", {}).items():
                self._check(f"extra {name}", tensor, (torch.float32,), tuple(tensor.shape[1:]))
                self.state.extras.setdefault(task, {})[name] = tensor

    def _check(self, what: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> None:
        if tensor.dtype not in dtypes or tuple(tensor.shape) != (len(self.method.seeds), *shape):
            raise BadState(
                f"{what}: expected shape {(len(self.method.seeds), *shape)} of {dtypes[0]}, "
                f"got {tuple(tensor.shape)} of {tensor.dtype}"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise BadState(f"{what} holds NaN or infinity")

    def _network(self, parts: dict[str, Tensor]) -> Network:
        assert self.state.inputs is not None
        blueprint, inputs = self.method.blueprint, self.state.inputs
        found = {n.removeprefix("body/"): t for n, t in parts.items() if n.startswith("body/")}
        self._check_all("the tensors of a network", found, blueprint.shapes(inputs))
        features = blueprint.features(inputs)
        heads: dict[str, Linear] = {}
        for name in parts:
            if name.startswith("body/"):
                continue
            kind, _, rest = name.partition("/")
            quoted, _, part = rest.partition("/")
            base = f"head/{quoted}"
            if (
                kind != "head"
                or part not in ("weight", "bias")
                or f"{base}/weight" not in parts
                or f"{base}/bias" not in parts
            ):
                raise BadState(f"unexpected tensor {name!r:.100} in a network")
            weight, bias = parts[f"{base}/weight"], parts[f"{base}/bias"]
            classes = weight.shape[-1] if weight.dim() else 0
            self._check(f"{base}/weight", weight, (torch.float32,), (features, classes))
            self._check(f"{base}/bias", bias, (torch.float32,), (1, classes))
            heads[unquote(quoted)] = Linear(weight, bias)
        body = blueprint.body(inputs, self.method.seeds).with_tensors(found)
        return Network(body, heads, blueprint.pixels)

    def _memory(self, parts: dict[str, Tensor], task: str) -> Memory:
        assert self.state.inputs is not None
        if not {"x", "y"} <= parts.keys() <= {"x", "y", "logits"}:
            raise BadState(f"a memory must have x, y and perhaps logits, got {sorted(parts)[:5]}")
        kept, classes = parts["y"].shape[-1] if parts["y"].dim() else 0, len(self.state.ledger[task].labels)
        kinds = (torch.int64,) if self.state.inputs.integer else (torch.float32, torch.uint8)
        self._check("memory x", parts["x"], kinds, (kept, *self.state.inputs.shape))
        self._check("memory y", parts["y"], (torch.int64,), (kept,))
        if kept and not 0 <= int(parts["y"].min()) <= int(parts["y"].max()) < classes:
            raise BadState(f"a memory's classes must lie from 0 to {classes - 1}")
        if "logits" in parts:
            self._check("memory logits", parts["logits"], (torch.float32,), (kept, classes))
        return Memory(**parts)
