"""An agent's learned state as plain data: tensors and JSON, out and in, and the digest over them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
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
        plain = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
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


def state_tensors(state: State) -> dict[str, Tensor]:
    """Every tensor of a state by name. A task's name is percent-encoded, so that `/` only ever separates."""
    named: dict[str, Tensor] = {}
    for prefix, network in _networks(state):
        named |= {f"{prefix}/body/{name}": t for name, t in network.body.tensors().items()}
        for task, head in network.heads.items():
            named |= {
                f"{prefix}/head/{encode(task)}/weight": head.weight,
                f"{prefix}/head/{encode(task)}/bias": head.bias,
            }
    for task, memory in state.memories.items():
        named |= {f"memory/{encode(task)}/{name}": t for name, t in memory.tensors().items()}
    for task, extras in state.extras.items():
        named |= {f"extra/{encode(task)}/{name}": t for name, t in extras.items()}
    return named


def _networks(state: State) -> Iterator[tuple[str, Network]]:
    if state.main is not None:
        yield "main", state.main
    for task, network in state.isolated.items():
        yield f"isolated/{encode(task)}", network


def encode(task: str) -> str:
    return quote(task, safe="")


def read_state(method: Method, snapshot: Snapshot) -> State:
    """Rebuild a method's state, checking every name, shape and type against what such a method would have."""
    state = State()
    try:
        if snapshot.meta["inputs"] is not None:
            shape, integer = snapshot.meta["inputs"]
            state.inputs = Inputs(tuple(_count(size) for size in shape), bool(integer))
        for task, status, labels, steps in snapshot.meta["ledger"]:
            entry = Entry(Instruction(status), tuple(int(label) for label in labels), _count(steps))
            state.ledger.learned(check_name(task), entry)
    except (KeyError, TypeError, ValueError, BadRequest) as error:
        raise BadState(f"the saved description is damaged: {error!r:.200}") from None
    if snapshot.tensors and state.inputs is None:
        raise BadState("the saved state holds tensors but does not say what inputs look like")
    _Reader(method, state).read(snapshot.tensors)
    return state


def _count(number: Any) -> int:
    if type(number) is not int or number < 1:
        raise ValueError(f"expected a positive whole number, got {number!r}")
    return number


class _Reader:
    """Sorts tensors into a state's parts."""

    def __init__(self, method: Method, state: State) -> None:
        self.method, self.state = method, state
        self.device = method.device

    def read(self, tensors: dict[str, Tensor]) -> None:
        tree: dict[str, Any] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            owner = ""
            if kind != "main":
                quoted, _, rest = rest.partition("/")
                owner = unquote(quoted)
                if owner not in self.state.ledger:
                    raise BadState(f"tensor {name!r:.100} belongs to no task in the ledger")
            tree.setdefault(kind, {}).setdefault(owner, {})[rest] = tensor.to(self.device)
        for owner, parts in tree.pop("main", {}).items():
            self.state.main = self._network(parts, owner or None)
        # In the ledger's order, which is the order in which methods go through them.
        ordered = {
            kind: {t: tree.get(kind, {}).get(t) for t in self.state.ledger} for kind in ("isolated", "memory", "extra")
        }
        unknown = set(tree) - set(ordered)
        if unknown:
            raise BadState(f"the saved state has unknown parts: {sorted(unknown)[:5]}")
        self.state.isolated = {t: self._network(p, t) for t, p in ordered["isolated"].items() if p}
        self.state.memories = {t: self._memory(p, t) for t, p in ordered["memory"].items() if p}
        for task, parts in ordered["extra"].items():
            if parts:
                for name, tensor in parts.items():
                    self._check(f"extra {name}", tensor, (torch.float32,), tuple(tensor.shape[1:]))
                self.state.extras[task] = parts

    def _check(self, what: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> None:
        if tensor.dtype not in dtypes or tuple(tensor.shape) != (len(self.method.seeds), *shape):
            raise BadState(
                f"{what}: expected shape {(len(self.method.seeds), *shape)} of {dtypes[0]}, "
                f"got {tuple(tensor.shape)} of {tensor.dtype}"
            )

    def _network(self, parts: dict[str, Tensor], task: str | None) -> Network:
        assert self.state.inputs is not None
        fresh = self.method.blueprint.body(self.state.inputs, self.method.seeds, task)
        expected = fresh.tensors()
        found = {n.removeprefix("body/"): t for n, t in parts.items() if n.startswith("body/")}
        if found.keys() != expected.keys():
            raise BadState(
                f"a network's tensors differ from the architecture's: {sorted(found.keys() ^ expected.keys())[:5]}"
            )
        for name, tensor in found.items():
            self._check(name, tensor, (expected[name].dtype,), tuple(expected[name].shape[1:]))
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
            self._check(f"{base}/weight", weight, (torch.float32,), (fresh.features, classes))
            self._check(f"{base}/bias", bias, (torch.float32,), (1, classes))
            heads[unquote(quoted)] = Linear(weight, bias)
        return Network(fresh.with_tensors(found), heads)

    def _memory(self, parts: dict[str, Tensor], task: str) -> Memory:
        assert self.state.inputs is not None
        if not {"x", "y"} <= parts.keys() <= {"x", "y", "logits"}:
            raise BadState(f"a memory must have x, y and perhaps logits, got {sorted(parts)[:5]}")
        kept, classes = parts["y"].shape[-1], len(self.state.ledger[task].labels)
        kinds = (torch.int64,) if self.state.inputs.integer else (torch.float32, torch.uint8)
        self._check("memory x", parts["x"], kinds, (kept, *self.state.inputs.shape))
        self._check("memory y", parts["y"], (torch.int64,), (kept,))
        if kept and not 0 <= int(parts["y"].min()) <= int(parts["y"].max()) < classes:
            raise BadState(f"a memory's classes must lie from 0 to {classes - 1}")
        if "logits" in parts:
            self._check("memory logits", parts["logits"], (torch.float32,), (kept, classes))
        return Memory(**parts)
