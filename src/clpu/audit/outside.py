"""Find what a method keeps outside the state: on classes, in its module, in closures, or on the agent's own objects.

The agent builds its method anew for each request, so whatever a method keeps on itself is gone. Only one that reaches
further can keep more, and an auditor looks there too.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clpu.agent import Agent
from clpu.io import sha256
from clpu.methods.plugins import is_ours
from clpu.state import Leaf, State


def outside(agent: Agent) -> dict[str, str]:
    """SHA-256 of all that outlives a request in an agent or its method without being in the state, by its place.

    >>> outside(Agent("ind")) == outside(Agent("ind"))
    True
    """
    return {place: sha256(_content(value, _users_modules(agent), ())) for place, value in _places(agent)}


def _users_modules(agent: Agent) -> list[str]:
    """The modules in which a user defined the method or a class that it is derived from."""
    classes = type(agent.new_method()).__mro__
    return [name for name in dict.fromkeys(cls.__module__ for cls in classes) if not _is_ours(name)]


def _is_ours(module: str) -> bool:
    return module in ("abc", "builtins", "typing") or is_ours(module)


def _places(agent: Agent) -> Iterator[tuple[str, Any]]:
    method = agent.new_method()
    # A method can reach the agent's blueprint and settings, and by its progress function the agent itself.
    elsewhere = (agent.state(), agent.progress, method.blueprint, method.settings)
    for name, owner in (("blueprint", method.blueprint), ("settings", method.settings), ("agent", agent)):
        for key, value in vars(owner).items():
            if not any(value is other for other in elsewhere if other is not None):
                yield f"{name}.{key}", value
    classes = list(type(method).__mro__)
    for name in _users_modules(agent):
        module = sys.modules.get(name)
        for key, value in list(vars(module).items()) if module else []:
            if isinstance(value, type) and value.__module__ == name:
                classes.append(value)
            elif not key.startswith("__"):
                yield f"{name}.{key}", value
    for cls in dict.fromkeys(classes):
        for name, value in list(vars(cls).items()) if cls is not object else []:
            if not name.startswith(("__", "_abc_")):
                yield f"{cls.__name__}.{name}", value


def _content(value: Any, users: Collection[str], path: tuple[int, ...]) -> bytes:
    """One form for equal values; what cannot be looked into goes by its type, because its address always differs."""
    if id(value) in path:
        return b"itself"
    path = (*path, id(value))

    def each(values: Any) -> list[bytes]:
        return [_content(item, users, path) for item in values]

    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value).encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, State | Leaf):
        return (value.digest() if isinstance(value, State) else value.sha256).encode()
    if isinstance(value, torch.Generator):
        return _content(value.get_state(), users, path)
    if isinstance(value, Tensor) and value.is_meta:
        return f"{value.dtype} {tuple(value.shape)}".encode()
    if isinstance(value, Tensor):
        bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"{value.dtype} {tuple(value.shape)} ".encode() + bits.numpy().tobytes()
    if isinstance(value, np.ndarray):
        content = _content(value.tolist(), users, path) if value.dtype.hasobject else value.tobytes()
        return f"{value.dtype} {value.shape} ".encode() + content
    if isinstance(value, nn.Module):
        return _content(dict(value.state_dict()), users, path)
    if isinstance(value, Mapping):
        pairs = zip(each(value.keys()), each(value.values()))
        return b"{" + b",".join(sorted(key + b":" + content for key, content in pairs)) + b"}"
    if isinstance(value, set | frozenset):
        return b"(" + b",".join(sorted(each(value))) + b")"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(each(value)) + b"]"
    if isinstance(value, staticmethod | classmethod):
        return _content(value.__func__, users, path)
    if isinstance(value, property):
        return _content([value.fget, value.fset], users, path)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return b"".join(each([value.__qualname__, cells, value.__defaults__, value.__kwdefaults__, vars(value)]))
    if isinstance(value, itertools.count):
        return repr(value).encode()
    if isinstance(value, type | ModuleType):
        return str(value.__name__).encode()
    kind = type(value)
    looked_into = isinstance(value, SimpleNamespace) or kind.__module__ in users or _is_ours(kind.__module__)
    inside = _content(vars(value), users, path) if looked_into and hasattr(value, "__dict__") else b""
    return kind.__qualname__.encode() + inside


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
