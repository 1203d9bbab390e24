"""Bit by bit: what an agent holds after a stream against what it would hold, had the forgotten tasks never been.

`Agent.digest()` covers what a well-behaved method keeps: whatever stands under the names of tasks alive. An auditor
also looks where a method could put things that nobody asks for: under other names, and in attributes of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
from torch import Tensor

from clpu.agent import Agent
from clpu.bench.pieces import TaskData
from clpu.methods import Method
from clpu.snapshot import canonical, encode, main_tensors, state_meta, task_tensors

#: What every method object has, however it learns; its state is looked at part by part.
_USUAL = {"settings", "blueprint", "seeds", "device", "progress", "state", "shared"}


def fingerprint(agent: Agent, data: Sequence[TaskData] = (), images: int = 100) -> dict[str, str]:
    """SHA-256 of every part of an agent, by name, and of its outputs for every task, known or not.

    >>> sorted(fingerprint(Agent("ind")))
    ['digest', 'inputs', 'ledger']
    """
    method = agent._method
    state = method.state
    meta = state_meta(state)
    parts: dict[str, str] = {"digest": agent.digest()}
    parts |= {name: _sha(canonical(meta[name]).encode()) for name in meta}
    tensors = main_tensors(state)
    for name in {*state.ledger, *state.isolated, *state.memories, *state.extras}:
        tensors |= task_tensors(state, name)
    parts |= {name: _tensor(tensor) for name, tensor in tensors.items()}
    parts |= {f"attribute/{name}": value for name, value in _hidden(method).items()}
    for task in data:
        outputs = agent.logits(task.name, task.test_x[:images], len(task.classes))
        parts[f"outputs/{encode(task.name)}"] = _tensor(outputs)
    return parts


def _hidden(method: Method) -> dict[str, str]:
    """What a method keeps outside its state: attributes of the object, and values that its classes hold."""
    found = {name: _sha(_bytes(value)) for name, value in vars(method).items() if name not in _USUAL}
    declared = {*vars(Method), *Method.__annotations__}  # name, traits, and whatever else every method declares
    for cls in type(method).__mro__:
        if cls is Method:
            break
        for name, value in vars(cls).items():
            if name not in declared and not name.startswith(("__", "_abc_")) and _is_data(value):
                found[f"{cls.__name__}.{name}"] = _sha(_bytes(value))
    return found


def _is_data(value: Any) -> bool:
    return value is None or isinstance(
        value, int | float | str | bytes | list | tuple | dict | set | Tensor | np.ndarray
    )


def _bytes(value: Any) -> bytes:
    """One form for equal values; what is no plain data goes by its type, for its address would always differ."""
    if isinstance(value, Tensor | np.ndarray):
        array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        return f"{array.dtype} {array.shape} ".encode() + array.tobytes()
    if isinstance(value, Mapping):
        return b"{" + b",".join(sorted(_bytes(k) + b":" + _bytes(v) for k, v in value.items())) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(_bytes, value)) + b"]"
    if isinstance(value, set | frozenset):
        return b"(" + b",".join(sorted(map(_bytes, value))) + b")"
    if hasattr(value, "get_state") and not isinstance(value, type):  # a random generator
        return _bytes(value.get_state())
    if value is None or isinstance(value, int | float | str):
        return json.dumps(value).encode()
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return type(value).__name__.encode() + _bytes(vars(value))
    return value if isinstance(value, bytes) else type(value).__qualname__.encode()


def _tensor(tensor: Tensor) -> str:
    return _sha(_bytes(tensor))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plainly(parts: Sequence[str]) -> list[str]:
    """The names of parts in words, each once.

    >>> plainly(["digest", "main/body/0.bias", "main/body/0.weight", "main/head/2/bias", "task/1/extra/count"])
    ['main network', 'head of task 2 in the main network', 'count of task 1']
    """
    return list(dict.fromkeys(_plain(part) for part in parts if part != "digest")) or ["digest"]


def _plain(part: str) -> str:
    kind, *rest = part.split("/")
    if kind == "main":
        return "main network" if rest[0] == "body" else f"head of task {unquote(rest[1])} in the main network"
    if kind == "outputs":
        return f"answers for task {unquote(rest[0])}"
    if kind == "attribute":
        return f"{rest[0]}, kept outside the state"
    if kind == "task":
        what = {"memory": "memory", "network": "own network"}.get(rest[1], "/".join(rest[2:]))
        return f"{what} of task {unquote(rest[0])}"
    return part


@dataclass(frozen=True)
class Bits:
    """One comparison: the state after `request`, with the runs of the same seeds that had the counterfactual."""

    request: int
    counterfactual: str
    seeds: tuple[int, ...]
    digest: str
    digest_without: str
    differing: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differing


def compare(
    request: int, counterfactual: str, seeds: Sequence[int], actual: Mapping[str, str], never: Mapping[str, str]
) -> Bits:
    """Which parts differ, or are there in one and not in the other.

    >>> compare(2, "", [0], {"digest": "a", "x": "1"}, {"digest": "b"}).differing
    ('digest', 'x')
    """
    names = sorted(name for name in {*actual, *never} if actual.get(name) != never.get(name))
    return Bits(request, counterfactual, tuple(seeds), actual["digest"], never["digest"], tuple(names))
