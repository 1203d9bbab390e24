"""The state of an agent: an immutable tree of leaves. What is not in the tree does not exist.

    about     method, settings, seeds, network: fixed when the agent is made
    shared    what remembered tasks share: the main network
    tasks     for each active task its status, its facts, the leaf that is its own, and the leaves of people

Forgetting removes leaves, or rows of them. Digest, saved bytes, store, storage sizes and audit walk this tree, tasks
by name, so the order in which they were learned is not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from clpu.errors import BadRequest, BadState, NothingHeld
from clpu.io import canonical, sha256
from clpu.requests import Label, Scope, check_name
from clpu.state.leaf import Deriving, Leaf, read_tensors, write_tensors
from clpu.state.records import Records, ids_of, labels_of

FORMAT, VERSION = "clpu-state", 2

#: The people that a leaf's records are about, in order; nobody in particular if empty.
People = tuple[str, ...]

#: Facts that were measured on all records of a task, so that they go when one of them is forgotten or added.
MEASURED = ("held_out",)


class Leaves(Deriving, Mapping[People, Leaf]):
    """The leaves of a task by the people that their records are about, in order; never changed."""

    def __init__(self, leaves: Mapping[People, Leaf]) -> None:
        self._leaves = dict(sorted((who, leaf) for who, leaf in leaves.items() if _filled(leaf)))
        self._derived = {}

    def known(self, name: str) -> Any:
        """Return what was derived already, or `None`."""
        return self._derived.get(name)

    def labels(self) -> list[Label]:
        """The labels that some record has, ascending."""
        return self.derived("labels", lambda: sorted({label for leaf in self.values() for label in labels_of(leaf)}))

    def __getitem__(self, people: People) -> Leaf:
        return self._leaves[people]

    def __iter__(self) -> Iterator[People]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


@dataclass(frozen=True, eq=False)
class Held:
    """Records of one leaf that a scope names: `chosen` says which of its rows."""

    task: str
    people: People
    records: Records
    chosen: Any

    @property
    def whole_leaf(self) -> bool:
        return bool(self.chosen.all())


def _frozen(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(sorted(mapping.items())))


def _filled(leaf: Leaf | None) -> Leaf | None:
    """A leaf without tensors is none, so that there is one way to hold nothing."""
    return None if leaf is None or leaf.empty else leaf


@dataclass(frozen=True, eq=False)
class Task:
    """An active task: `status` R or T, `facts` (JSON: inputs, labels, steps …), and its leaves."""

    status: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    own: Leaf | None = None
    people: Mapping[People, Leaf] = field(default_factory=lambda: Leaves({}))

    def __post_init__(self) -> None:
        if self.status not in ("R", "T"):
            raise BadState(f"the status of a task is R or T, got {self.status!r:.40}")
        object.__setattr__(self, "facts", _frozen(self.facts))
        object.__setattr__(self, "own", _filled(self.own))
        if not isinstance(self.people, Leaves):
            object.__setattr__(self, "people", Leaves(self.people))

    @property
    def labels(self) -> tuple[int | str, ...]:
        """The labels as they were given, ascending; class c is the label at position c."""
        return tuple(self.facts["labels"])

    @property
    def records(self) -> Leaves:
        """The leaves of people, with what was derived from them."""
        assert isinstance(self.people, Leaves)
        return self.people

    def with_records(self, leaves: Mapping[People, Leaf]) -> Task:
        """The task with these leaves of people, and the facts that follow from them."""
        people = Leaves(leaves)
        facts = {name: fact for name, fact in self.facts.items() if name not in MEASURED}
        return replace(self, facts={**facts, "labels": people.labels()}, people=people)

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
        return self.status, canonical(dict(self.facts)), self.own, dict(self.people)


@dataclass(frozen=True, eq=False)
class State(Deriving):
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
        object.__setattr__(self, "_derived", {})

    # New states

    def with_task(self, name: str, task: Task) -> State:
        """The state with this task, in place of one of the same name."""
        return replace(self, tasks={**self.tasks, check_name(name): task})

    def with_shared(self, shared: Leaf | None) -> State:
        return replace(self, shared=shared)

    def without(
        self,
        task: str | None = None,
        person: str | None = None,
        labels: Sequence[Label] | None = None,
        records: Sequence[str] | None = None,
    ) -> State:
        """The state without a task, or without the records that match all that is given; without a task, in every task.

        Forgetting is removing leaves, and rows of them. A label without records is gone, and so is a task without
        records. `NothingHeld` if there are no such records, or not all of those that were listed.
        """
        scope = Scope(task, person, tuple(labels or ()), tuple(records or ()))
        if scope.some_records:
            return self.removing(self.held(scope))
        return replace(self, tasks={name: t for name, t in self.tasks.items() if name != task})

    def removing(self, found: Iterable[Held]) -> State:
        """The state without some records, as `held` found them."""
        changed: dict[str, dict[People, Leaf]] = {}
        for held in found:
            leaves = changed.setdefault(held.task, dict(self.tasks[held.task].people))
            del leaves[held.people]
            if not held.whole_leaf:
                leaves[held.people] = held.records.chosen(~held.chosen).to_leaf()
        tasks = dict(self.tasks)
        for name, leaves in changed.items():
            del tasks[name]
            if leaves:
                tasks[name] = self.tasks[name].with_records(leaves)
        return replace(self, tasks=tasks)

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

    def held(self, scope: Scope) -> list[Held]:
        """The records that a scope names, leaf by leaf; `NothingHeld` if there are none or some are missing."""
        found, labels, ids = [], set(), set()
        for name in self.tasks if scope.task is None else [n for n in self.tasks if n == scope.task]:
            for people, leaf in self.tasks[name].people.items():
                if scope.person is None or scope.person in people:
                    if scope.records and not (here := ids_of(leaf).keys() & {*scope.records}):
                        continue
                    records = Records.of_leaf(leaf)
                    chosen = records.matching(scope, ids_of(leaf))
                    if chosen.any():
                        found.append(Held(name, people, records, chosen))
                        if scope.labels:
                            labels |= {(type(label), label) for label in records.chosen(chosen).labels}
                        ids |= here if scope.records else set()
        missing = [f"label {label!r:.60}" for label in scope.labels if (type(label), label) not in labels]
        missing += [f"record {record!r:.60}" for record in scope.records if record not in ids]
        if missing or not found:
            about = "" if scope.person is None else f" about person {scope.person!r:.60}"
            where = "" if scope.task is None else f" in task {scope.task!r}"
            raise NothingHeld(f"nothing is held{about}{where}{' with ' + missing[0] if missing else ''}")
        return found

    def shown(self, scope: Scope) -> dict[str, Any]:
        """Return what is held of a scope: by task the number of records, their labels, people and ids."""
        tasks: dict[str, Any] = {}
        if scope.person is not None and self.about.get("forgets") != "records":
            method = self.about.get("method")
            raise BadRequest(f"{method} keeps no single records, so it cannot show those about a person; 'ridge' does")
        if scope.whole_task and not self.tasks[scope.task or ""].people:
            task = self.tasks[scope.task or ""]
            return {scope.task or "": {"status": task.status, "labels": list(task.labels), "bytes": task.size}}
        for held in self.held(scope):
            records = held.records.chosen(held.chosen)
            found = tasks.setdefault(held.task, {"status": self.tasks[held.task].status, "records": 0})
            found["records"] += len(records)
            labels = found.get("labels", {})
            for label, count in records.counts().items():
                labels[label] = labels.get(label, 0) + count
            found["labels"] = dict(sorted(labels.items()))
            found["people"] = sorted({*found.get("people", []), *held.people})
            found["ids"] = sorted([*found.get("ids", []), *filter(None, records.ids)])
        return tasks

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
        """SHA-256 of canonical JSON in which leaves are represented by their hashes."""
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
        tensors = {f"{path}/{name}": (spec, data) for path, leaf in self.leaves() for name, spec, data in leaf.parts()}
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
            leaves = {path: Leaf.of_stored(group) for path, group in groups.items()}
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
