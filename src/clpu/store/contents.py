"""The contents of a store's files: an agent's state split into parts, and put together again.

A part is kept and removed as a whole: what tasks share, a task with its facts and its own leaf, or the records of one
task about one set of people. All that is known of a part is in its file, its name included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from clpu.errors import BadRequest, BadState, BadStore
from clpu.io import canonical
from clpu.requests import Label, check_name
from clpu.state import Leaf, Leaves, People, State, Task
from clpu.state.schema import check_facts

#: The traits of methods, as in `clpu.methods.base.Forgets`; that module needs torch.
FORGETS = ("nothing", "temporary", "tasks", "records")
#: No agent of ours comes near these; a store from somebody else may ask for more than the machine has.
MAX_SEEDS, MAX_SIZE, MAX_SIZES = 10_000, 1 << 24, 1000

#: Which part of a state: the task's name (empty for what tasks share), and the people if it is about people.
Item = tuple[str, People | None]
SHARED: Item = ("", None)


@dataclass(frozen=True)
class Part:
    """One part of a state; `leaf` is read when it is first asked for."""

    item: Item
    status: str
    facts: Mapping[str, Any]
    leaf: Leaf | None

    def to_bytes(self) -> bytes:
        """The part in one form only: the length of a header, the header in JSON, the leaf in safetensors."""
        task, people = self.item
        header: dict[str, Any] = {"task": task}
        if people is not None:
            header["people"] = list(people)
        elif task:
            header |= {"status": self.status, "facts": dict(self.facts)}
        text = canonical(header).encode()
        return len(text).to_bytes(8, "little") + text + (b"" if self.leaf is None else self.leaf.to_bytes())

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Part:
        """Read what `to_bytes` wrote; `BadStore` names the file. Tensors are checked when they are asked for."""
        try:
            size = int.from_bytes(content[:8], "little")
            text, rest = content[8 : 8 + size], content[8 + size :]
            header = json.loads(text)
            task = header["task"]
            leaf = Leaf.deferred(rest) if rest else None
            if header.keys() == {"task", "people"}:
                people = header["people"]
                if not isinstance(people, list) or not all(isinstance(person, str) and person for person in people):
                    raise ValueError("its people are not a list of ids")
                part = cls((check_name(task), tuple(people)), "", {}, leaf)
            elif header.keys() == {"task", "status", "facts"}:
                part = cls((check_name(task), None), header["status"], header["facts"], leaf)
            elif header == {"task": ""}:
                part = cls(SHARED, "", {}, leaf)
            else:
                raise ValueError("it says neither what nor whose it is")
            if part.status not in ("", "R", "T") or not isinstance(part.facts, dict):
                raise ValueError("a status is R or T, and facts are an object")
            if leaf is None and (people_or_shared(part.item)):
                raise ValueError("it holds no tensors")
            if len(text) != size or canonical(header).encode() != text:
                raise ValueError("it is not written as clpu writes it")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadRequest) as error:
            raise BadStore(f"{where} is damaged: {error!s:.200}") from None
        return part


def people_or_shared(item: Item) -> bool:
    return item == SHARED or item[1] is not None


def stored_facts(task: Task) -> Mapping[str, Any]:
    """The facts in a task's own file: not its labels if its records say them, so that it stays when records go.

    Otherwise an older copy of the folder would lose a task as soon as a label of it is forgotten.
    """
    if not any("labels" in leaf.specs for leaf in islice(task.people.values(), 1)):
        return task.facts
    return {name: fact for name, fact in task.facts.items() if name != "labels"}


def parts_of(name: str, task: Task) -> Iterator[Part]:
    """A task taken apart."""
    yield Part((name, None), task.status, stored_facts(task), task.own)
    for people, leaf in task.people.items():
        yield Part((name, people), "", {}, leaf)


def is_permanent(state: State, item: Item) -> bool:
    """Whether a part can never be forgotten, so that its file needs no separate key.

    What tasks share counts only if forgetting never changes it: an earlier version of it, in a copy of the folder,
    would hold what was forgotten.
    """
    forgets = state.about["forgets"]
    if item == SHARED:
        return bool(forgets == "temporary")
    return forgets in ("temporary", "nothing") and state.tasks[item[0]].status == "R"


def assemble(about: Mapping[str, Any], parts: Iterable[tuple[str, Part]], before: State | None = None) -> State:
    """The state from its parts and the names of their files; tasks that did not change are those of `before`."""
    shared: Leaf | None = None
    tasks: dict[str, Part] = {}
    people: dict[str, dict[People, Leaf]] = {}
    for where, part in parts:
        task, who = part.item
        if part.item == SHARED:
            if shared is not None:
                raise BadStore(f"{where} holds what tasks share a second time")
            shared = part.leaf
        elif who is None:
            if task in tasks:
                raise BadStore(f"{where} holds a task that is in the store twice")
            tasks[task] = part
        else:
            assert part.leaf is not None
            if who in people.setdefault(task, {}):
                raise BadStore(f"{where} holds records that are in the store twice")
            people[task][who] = part.leaf
    if people.keys() - tasks.keys():
        raise BadStore("the store holds records of a task that is not in it")
    found: dict[str, Task] = {}
    for name, part in tasks.items():
        mine = people.get(name, {})
        known = None if before is None else before.tasks.get(name)
        if known is not None and _same(known, part, mine):
            found[name] = known
        elif mine and "labels" not in part.facts:
            leaves = Leaves(mine)
            found[name] = Task(part.status, {**part.facts, "labels": _labels(name, leaves)}, part.leaf, leaves)
        else:
            found[name] = Task(part.status, part.facts, part.leaf, mine)
    return State(about, shared, found)


def _labels(name: str, leaves: Leaves) -> list[Label]:
    try:
        return leaves.labels()
    except (BadState, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadStore(f"the records of task {name!r} are damaged: {error!s:.200}") from None


def _same(known: Task, part: Part, people: Mapping[People, Leaf]) -> bool:
    return (
        known.own is part.leaf
        and known.status == part.status
        and canonical(dict(stored_facts(known))) == canonical(part.facts)
        and known.people.keys() == people.keys()
        and all(known.people[who] is leaf for who, leaf in people.items())
    )


def check_about(about: Mapping[str, Any]) -> None:
    """Refuse a description that no agent can have, as far as that can be seen without its method."""
    seeds, settings = about.get("seeds"), about.get("settings")
    if not all(isinstance(about.get(name), str) for name in ("method", "network")):
        raise BadStore("the store does not name a method and a network")
    if about.get("forgets") not in FORGETS:
        raise BadStore(f"the store must say what the method forgets: one of {', '.join(FORGETS)}")
    if not isinstance(settings, dict):
        raise BadStore("the store's settings are not an object")
    if not isinstance(seeds, list) or not 1 <= len(seeds) <= MAX_SEEDS or any(type(seed) is not int for seed in seeds):
        raise BadStore(f"the store's seeds are not a list of at most {MAX_SEEDS:,} integers")
    for name, value in settings.items():
        sizes = value if isinstance(value, list) else []
        if len(sizes) > MAX_SIZES or any(type(size) is int and size > MAX_SIZE for size in sizes):
            raise BadStore(f"the setting {name!r:.80} is larger than any network allows")


def check_whole(state: State) -> None:
    """Refuse a state that no agent can have written, as far as that can be seen without its method."""
    check_about(state.about)
    try:
        check_facts(state)
    except BadState as error:
        raise BadStore(f"the store is damaged: {error}") from None


def plain(value: Any) -> Any:
    """A value as it will be read back from JSON, so that old and new compare."""
    return json.loads(canonical(value))
