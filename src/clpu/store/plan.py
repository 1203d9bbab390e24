"""What a request changes in a store, worked out before anything is written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clpu.methods.base import State
from clpu.store.contents import Place, pack_main, pack_task, places, same_task, seal_place, seal_task, shared_meta
from clpu.store.format import Manifest, Piece, Remembered, Sealed, sha256
from clpu.store.keys import new_key


@dataclass(frozen=True)
class Standing:
    """A state as it stands in the store: its manifest, and each temporary task's random name, key and place."""

    state: State
    manifest: Manifest
    ids: Mapping[str, str]
    keys: Mapping[str, bytes]
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Plan:
    """From one standing to another, with the files that are new."""

    old: Standing
    new: Standing
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


def make_plan(old: Standing, state: State) -> Plan:
    """The files, keys and manifest of a new state; what did not change keeps its file."""
    files: dict[str, bytes] = {}

    def piece(content: bytes | None) -> Piece | None:
        if content is None:
            return None
        made = Piece.of(content)
        files[made.name] = content
        return made

    main = old.manifest.main if state.main is old.state.main else piece(pack_main(state))
    known = {task.task: task.piece for task in old.manifest.remembered}
    remembered = []
    for task in state.ledger.remembered:
        about = state.ledger[task]
        unchanged = task in known and same_task(state, old.state, task)
        own = known[task] if unchanged else piece(pack_task(state, task))
        remembered.append(Remembered(task, about.labels, about.steps, own))

    ids, keys, placed, temporary = {}, {}, {}, []
    entries = {entry.id: entry for entry in old.manifest.temporary}
    for task, place in places(state).items():
        id = old.ids.get(task)
        if id is not None and same_task(state, old.state, task):
            key, entry = old.keys[id], entries[id]
            if place != old.places[id]:
                entry = replace(entry, place=seal_place(place, id, key))
        else:
            id, key = secrets.token_hex(16), new_key()
            content = seal_task(state, task, id, key)
            entry = Sealed(id, sha256(content), len(content), seal_place(place, id, key))
            files[entry.name] = content
        ids[task], keys[id], placed[id] = id, key, place
        temporary.append(entry)
    manifest = replace(
        old.manifest,
        agent=shared_meta(old.manifest.agent, state),
        main=main,
        remembered=tuple(remembered),
        temporary=by_id(temporary),
    )
    return Plan(old, Standing(state, manifest, ids, keys, placed), files)


def by_id(entries: list[Sealed]) -> tuple[Sealed, ...]:
    """Random names in order, so that the order tells nothing."""
    return tuple(sorted(entries, key=lambda entry: entry.id))


def core(manifest: Manifest) -> tuple[Any, ...]:
    """What a manifest says, whatever the nonces of the places; the temporary tasks last."""
    return manifest.agent, manifest.main, manifest.remembered, {entry.id for entry in manifest.temporary}
