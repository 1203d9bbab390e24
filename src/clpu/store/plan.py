"""What a request changes in a store, worked out before anything is written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clpu.io import sha256
from clpu.state import State
from clpu.store.contents import seal_task, task_bytes
from clpu.store.format import EncryptedTask, Manifest, PermanentTask, TensorFile
from clpu.store.keys import new_key


@dataclass(frozen=True)
class StoredState:
    """A state as it is in the store: its manifest, and each temporary task's random name and key."""

    state: State
    manifest: Manifest
    ids: Mapping[str, str]
    keys: Mapping[str, bytes]


@dataclass(frozen=True)
class StorePlan:
    """From one stored state to the next, with the files that are new."""

    old: StoredState
    new: StoredState
    files: Mapping[str, bytes]

    @property
    def new_keys(self) -> dict[str, bytes]:
        return {id: key for id, key in self.new.keys.items() if id not in self.old.keys}

    @property
    def old_keys(self) -> set[str]:
        return self.old.keys.keys() - self.new.keys.keys()

    @property
    def only_forgets(self) -> bool:
        """Whether nothing changes but that temporary tasks go."""
        return not self.files and core(self.new.manifest)[:-1] == core(self.old.manifest)[:-1]


def make_plan(old: StoredState, state: State) -> StorePlan:
    """The files, keys and manifest of a new state; what did not change keeps its file."""
    files: dict[str, bytes] = {}

    def stored(content: bytes) -> TensorFile:
        made = TensorFile.of(content)
        files[made.name] = content
        return made

    main = old.manifest.main
    if state.shared != old.state.shared:
        main = None if state.shared is None else stored(state.shared.to_bytes())
    known = {entry.task: entry for entry in old.manifest.remembered}
    remembered = []
    for name in state.remembered:
        if name in known and state.tasks[name] == old.state.tasks[name]:
            remembered.append(known[name])
        else:
            remembered.append(PermanentTask(name, stored(task_bytes(name, state.tasks[name]))))

    ids, keys, temporary = {}, {}, []
    entries = {entry.id: entry for entry in old.manifest.temporary}
    for name in state.temporary:
        id = old.ids.get(name)
        if id is not None and state.tasks[name] == old.state.tasks[name]:
            key, entry = old.keys[id], entries[id]
        else:
            id, key = secrets.token_hex(16), new_key()
            content = seal_task(name, state.tasks[name], id, key)
            entry = EncryptedTask(id, sha256(content), len(content))
            files[entry.name] = content
        ids[name], keys[id] = id, key
        temporary.append(entry)
    manifest = replace(old.manifest, main=main, remembered=tuple(remembered), temporary=by_id(temporary))
    return StorePlan(old, StoredState(state, manifest, ids, keys), files)


def by_id(entries: list[EncryptedTask]) -> tuple[EncryptedTask, ...]:
    """Random names in order, so that the order tells nothing."""
    return tuple(sorted(entries, key=lambda entry: entry.id))


def core(manifest: Manifest) -> tuple[Any, ...]:
    """What a manifest says; the temporary tasks last."""
    return manifest.agent, manifest.main, manifest.remembered, {entry.id for entry in manifest.temporary}
