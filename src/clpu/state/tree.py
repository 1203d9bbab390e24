"""The state of an agent: an immutable tree of leaves. What is not in the tree does not exist.

    about     method, settings, seeds, network: fixed when the agent is made
    shared    what remembered tasks share: the main network
    tasks     for each active task its status, its facts, and the leaf that is its own

Forgetting removes leaves. Digest, saved bytes, store, storage figures and audit walk this tree, tasks by name, so the
order in which they were learned is not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from clpu.errors import BadRequest, BadState
from clpu.io import canonical, sha256
from clpu.requests import check_name
from clpu.state.leaf import Leaf, read_tensors, write_tensors

FORMAT, VERSION = "clpu-state", 2

#: The people that a leaf's records are about, in order.
People = tuple[str, ...]


def _frozen(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(sorted(mapping.items())))


def _filled(leaf: Leaf | None) -> Leaf | None:
    """A leaf without tensors is none, so that there is one way to hold nothing."""
    return leaf if leaf is not None and leaf.specs else None


@dataclass(frozen=True, eq=False)
class Task:
    """An active task: `status` R or T, `facts` (JSON: inputs, labels, steps …), and its leaves."""

    status: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    own: Leaf | None = None
    people: Mapping[People, Leaf] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in ("R", "T"):
            raise BadState(f"the status of a task is R or T, got {self.status!r:.40}")
        object.__setattr__(self, "facts", _frozen(self.facts))
        object.__setattr__(self, "own", _filled(self.own))
        object.__setattr__(self, "people", _frozen({who: leaf for who, leaf in self.people.items() if _filled(leaf)}))

    @property
    def labels(self) -> tuple[int, ...]:
        return tuple(self.facts["labels"])

    @property
    def size(self) -> int:
        """Bytes of its leaves."""
        return sum(leaf.size for leaf in (self.own, *self.people.values()) if leaf is not None)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Task) and self._content() == other._content())

    def __hash__(self) -> int:
        return hash(self._content()[:-1])

    def _content(self) -> tuple[Any, ...]:
        """All of it; facts as text, because Python takes 1, 1.0 and True for equal and the digest does not."""
        return self.status, canonical(dict(self.facts)), self.own, self.people


@dataclass(frozen=True, eq=False)
class State:
    """See the module's docstring. A request makes a new state; nothing in one is ever changed.

    >>> state = State({"method": "ind"}).with_task("1", Task("T"))
    >>> state.without("1").digest() == State({"method": "ind"}).digest()
    True
    """

    about: Mapping[str, Any]
    shared: Leaf | None = None
    tasks: Mapping[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "about", _frozen(self.about))
        object.__setattr__(self, "shared", _filled(self.shared))
        object.__setattr__(self, "tasks", _frozen(self.tasks))

    # New states

    def with_task(self, name: str, task: Task) -> State:
        """The state with this task, in place of one of the same name."""
        return replace(self, tasks={**self.tasks, check_name(name): task})

    def with_shared(self, shared: Leaf | None) -> State:
        return replace(self, shared=shared)

    def without(self, task: str) -> State:
        """The state without a task: forgetting is removing leaves."""
        return replace(self, tasks={name: t for name, t in self.tasks.items() if name != task})

    def only(self, task: str) -> State:
        """The state with one of its tasks: all that the answers for that task may depend on."""
        return replace(self, tasks={name: t for name, t in self.tasks.items() if name == task})

    # Questions

    def named(self, status: str) -> list[str]:
        """The tasks with a status, by name."""
        return [name for name, task in self.tasks.items() if task.status == status]

    @property
    def remembered(self) -> list[str]:
        return self.named("R")

    @property
    def temporary(self) -> list[str]:
        return self.named("T")

    def leaves(self) -> Iterator[tuple[str, Leaf]]:
        """Every leaf with its path."""
        if self.shared is not None:
            yield "shared", self.shared
        for name, task in self.tasks.items():
            if task.own is not None:
                yield f"task/{quote(name, safe='')}/own", task.own
            for people, leaf in task.people.items():
                yield f"task/{quote(name, safe='')}/people/{quote(canonical(people), safe='')}", leaf

    def digest(self) -> str:
        """SHA-256 of canonical JSON in which the leaves' hashes stand for the leaves."""
        return sha256(canonical({**self.described(), "leaves": {path: leaf.sha256 for path, leaf in self.leaves()}}))

    def described(self) -> dict[str, Any]:
        """All but the leaves, as JSON."""
        tasks = {name: {"status": task.status, "facts": dict(task.facts)} for name, task in self.tasks.items()}
        return {"format": FORMAT, "version": VERSION, "about": dict(self.about), "tasks": tasks}

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, State) and self.digest() == other.digest())

    def __hash__(self) -> int:
        return hash(self.digest())

    # Saved bytes

    def to_bytes(self) -> bytes:
        """One safetensors file with everything in it. Equal states give equal bytes."""
        tensors = {f"{path}/{name}": (spec, data) for path, leaf in self.leaves() for name, spec, data in leaf._parts()}
        return write_tensors(tensors, {FORMAT: canonical(self.described())})

    @classmethod
    def from_bytes(cls, content: bytes) -> State:
        """Read what `to_bytes` wrote; `BadState` for anything else."""
        stored = read_tensors(content)
        try:
            size = int.from_bytes(content[:8], "little")
            described = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][FORMAT])
            if described["format"] != FORMAT or described["version"] != VERSION:
                raise BadState(f"expected a {FORMAT} of version {VERSION}, got {described['version']!r:.40}")
            groups: dict[str, dict[str, Any]] = {}
            for name, tensor in stored.items():
                path, rest = _split(name)
                groups.setdefault(path, {})[rest] = tensor
            leaves = {path: Leaf._of(group) for path, group in groups.items()}
            state = cls(_object(described["about"]), leaves.pop("shared", None))
            for name, task in _object(described["tasks"]).items():
                start = f"task/{quote(check_name(name), safe='')}/"
                mine = {path.removeprefix(start): leaves.pop(path) for path in list(leaves) if path.startswith(start)}
                people = {_people(path): leaf for path, leaf in mine.items() if path != "own"}
                state = state.with_task(name, Task(task["status"], _object(task["facts"]), mine.get("own"), people))
        except (ValueError, KeyError, TypeError, RecursionError, BadRequest) as error:
            raise BadState(f"these bytes are not a saved agent: {error!r:.200}") from None
        if leaves:
            raise BadState(f"{sorted(leaves)[0]!r:.100} belongs to no task")
        if state.to_bytes() != content:
            raise BadState("these bytes are not written as clpu writes a saved agent")
        return state


def _split(name: str) -> tuple[str, str]:
    """A tensor's name in a saved file: the path of its leaf, and its name there."""
    parts = name.split("/")
    length = 1 if parts[0] == "shared" else 3 if parts[2:3] == ["own"] else 4
    if parts[0] not in ("shared", "task") or len(parts) <= length:
        raise ValueError(f"tensor {name!r:.100} belongs to no leaf")
    return "/".join(parts[:length]), "/".join(parts[length:])


def _people(path: str) -> People:
    kind, _, quoted = path.partition("/")
    people = json.loads(unquote(quoted))
    if kind != "people" or not isinstance(people, list) or not all(isinstance(person, str) for person in people):
        raise ValueError(f"{path!r:.100} is not a leaf of a task")
    return tuple(people)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a JSON object, got {type(value).__name__}")
    return value
