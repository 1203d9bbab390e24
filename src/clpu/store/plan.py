"""The changes of a request in a store, computed before anything is written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clpu.errors import BadStore
from clpu.io import canonical, sha256
from clpu.state import State, Task
from clpu.store.contents import SHARED, Item, Part, is_permanent, parts_of, stored_facts
from clpu.store.format import LEAVES, PERMANENT, is_hex, is_name, path_of
from clpu.store.keyring import Secrets
from clpu.store.sealing import derived, keyed_name, new_key, seal, seal_always, unseal, unseal_always


@dataclass(frozen=True)
class File:
    """The place of a part: a file with its own key, or one that can never be forgotten."""

    name: str
    permanent: bool

    @property
    def path(self) -> str:
        return path_of(PERMANENT if self.permanent else LEAVES, self.name)


@dataclass(frozen=True)
class StoredState:
    """A state as it is in the store: the file of each of its parts, and the wrapped keys by name."""

    state: State
    files: Mapping[Item, File]
    keys: Mapping[str, bytes]


@dataclass(frozen=True)
class Intent:
    """The files that a request is about to change, by name; recovery completes or undoes it.

    It is complete once every added file has its key and, if anything permanent changes, `root` has this SHA-256.
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    permanent_add: tuple[str, ...] = ()
    permanent_remove: tuple[str, ...] = ()
    root: str | None = None

    def seal(self, master: Secrets) -> bytes:
        return seal(derived(master.names, "intent")[:32], "intent", canonical(vars(self)).encode())

    @classmethod
    def unseal(cls, master: Secrets, sealed: bytes) -> Intent:
        """Read what `seal` gave; `BadStore` for anything else."""
        try:
            content = json.loads(unseal(derived(master.names, "intent")[:32], "intent", sealed))
            lists = {name: tuple(content.pop(name)) for name in _LISTS}
            if content.keys() != {"root"} or not (content["root"] is None or is_hex(content["root"], 32)):
                raise ValueError("it is not an intent")
            if not all(is_name(name) for names in lists.values() for name in names):
                raise ValueError("it names what is not a file of leaves")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadStore(f"the store's intent is damaged: {error!s:.200}") from None
        return cls(**lists, root=content["root"])


_LISTS = ("add", "remove", "permanent_add", "permanent_remove")


@dataclass(frozen=True)
class StorePlan:
    """From one stored state to the next: the files and keys that are new, and those that go."""

    old: StoredState
    state: State
    files: Mapping[Item, File]
    contents: Mapping[str, bytes]
    new_keys: dict[str, bytes]
    intent: Intent
    root: bytes | None


def make_plan(old: StoredState, state: State, master: Secrets) -> StorePlan:
    """The files and keys of a new state; what did not change keeps its file."""
    files = dict(old.files)
    contents: dict[str, bytes] = {}
    keys: dict[str, bytes] = {}
    gone = [files.pop(item) for item in _gone(old, state)]
    new: list[File] = []
    for part in _changed(old, state):
        content, before = part.to_bytes(), files.get(part.item)
        if is_permanent(state, part.item):
            file = File(keyed_name(master.names, content), True)
            contents[file.path] = seal_always(master.permanent[-1], f"permanent {file.name}", content)
        else:
            file = File(secrets.token_hex(16), False)
            keys[file.name] = new_key()
            contents[file.path] = seal(keys[file.name], f"leaf {file.name}", content)
        new.append(file)
        if before is not None:
            gone.append(before)
        files[part.item] = file
    root = None
    if any(file.permanent for file in [*new, *gone]):
        root = root_bytes(state.about, files.values(), master)
    lists = _names(new, False), _names(gone, False), _names(new, True), _names(gone, True)
    return StorePlan(old, state, files, contents, keys, Intent(*lists, None if root is None else sha256(root)), root)


def changes(old: StoredState, state: State) -> tuple[list[Item], list[Part]]:
    """Compare states: the parts that go, and those that get a new file."""
    return _gone(old, state), _changed(old, state)


def _names(files: Iterable[File], permanent: bool) -> tuple[str, ...]:
    return tuple(sorted(file.name for file in files if file.permanent == permanent))


def _gone(old: StoredState, state: State) -> list[Item]:
    gone: list[Item] = []
    for item in old.files:
        task = state.tasks.get(item[0])
        if item == SHARED:
            if state.shared is None:
                gone.append(item)
        elif task is None or (item[1] is not None and item[1] not in task.people):
            gone.append(item)
    return gone


def _changed(old: StoredState, state: State) -> list[Part]:
    """The parts of a state that differ from those that are stored, or that are permanent by now."""
    before, changed = old.state, []
    if state.shared is not None and state.shared != before.shared:
        changed.append(Part(SHARED, "", {}, state.shared))
    for name, task in state.tasks.items():
        known = before.tasks.get(name)
        if task is known:
            continue
        for part in parts_of(name, task):
            file = old.files.get(part.item)
            same = known is not None and file is not None and _same(part, known)
            if not same or file is None or file.permanent != is_permanent(state, part.item):
                changed.append(part)
    return changed


def _same(part: Part, before: Task) -> bool:
    people = part.item[1]
    if people is not None:
        return part.leaf == before.people.get(people)
    facts = canonical(dict(part.facts)) == canonical(dict(stored_facts(before)))
    return part.status == before.status and facts and part.leaf == before.own


def root_bytes(about: Mapping[str, Any], files: Iterable[File], master: Secrets) -> bytes:
    """The root: what the agent is, and a hash over the names of all permanent files, so that none can go missing."""
    content = {"about": dict(about), "permanent": permanent_hash(_names(files, True))}
    return seal_always(master.permanent[-1], "root", canonical(content).encode())


def permanent_hash(names: Iterable[str]) -> str:
    return sha256(canonical(sorted(names)))


def read_root(sealed: bytes, master: Secrets) -> tuple[dict[str, Any], str]:
    """Read what `root_bytes` wrote; `BadStore` for anything else."""
    try:
        content = json.loads(open_permanent(master, "root", sealed))
        about, permanent = content["about"], content["permanent"]
        if not isinstance(about, dict) or content.keys() != {"about", "permanent"}:
            raise ValueError("it does not say what the agent is")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadStore(f"the store's root is damaged: {error!s:.200}") from None
    return about, permanent


def open_permanent(master: Secrets, label: str, sealed: bytes) -> bytes:
    """Decrypt a permanent file, also while its key is being rotated."""
    for key in reversed(master.permanent[1:]):
        try:
            return unseal_always(key, label, sealed)
        except BadStore:
            continue
    return unseal_always(master.permanent[0], label, sealed)
