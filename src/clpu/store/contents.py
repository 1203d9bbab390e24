"""What the files of a store hold: an agent's state taken apart into files, and put together again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clpu.errors import BadRequest, BadState, BadStore
from clpu.methods.base import State
from clpu.requests import check_name
from clpu.snapshot import Snapshot, canonical, encode, main_tensors, state_meta, task_tensors
from clpu.store.format import Manifest
from clpu.store.keys import seal, sealed_json, unseal, unsealed_json

#: A temporary task's file is padded to a multiple of this, so that its size tells little.
STEP = 4096

Place = tuple[int, int]


def pack_main(state: State) -> bytes | None:
    """What all remembered tasks share."""
    return None if state.main is None else Snapshot({}, main_tensors(state)).to_bytes()


def pack_task(state: State, task: str) -> bytes | None:
    """What stands under a remembered task's name."""
    tensors = task_tensors(state, task)
    return Snapshot({}, tensors).to_bytes() if tensors else None


def same_task(one: State, other: State, task: str) -> bool:
    """Whether two states hold the very same objects under a task's name; states are never changed in place."""
    return all(
        getattr(one, part).get(task) is getattr(other, part).get(task) for part in ("isolated", "memories", "extras")
    )


def seal_task(state: State, task: str, id: str, key: bytes) -> bytes:
    """All there is of a temporary task but its place in the ledger: one ciphertext."""
    entry = state.ledger[task]
    meta = {"task": task, "labels": entry.labels, "steps": entry.steps, "inputs": state_meta(state)["inputs"]}
    return seal(key, f"task {id}", Snapshot(meta, task_tensors(state, task)).to_bytes(), STEP)


def unseal_task(sealed: bytes, id: str, key: bytes) -> Snapshot:
    """The opposite of `seal_task`."""
    return _checked(unseal(key, f"task {id}", sealed), f"temporary/{id}")


def seal_place(place: Place, id: str, key: bytes) -> str:
    """A temporary task's place in the ledger: how many remembered and how many temporary tasks come before it.

    Neither number changes when a third task is forgotten, but for the ranks that close up.
    """
    return sealed_json(key, f"place {id}", place)


def unseal_place(text: str, id: str, key: bytes) -> Place:
    """The opposite of `seal_place`."""
    place = unsealed_json(key, f"place {id}", text)
    if not isinstance(place, list) or len(place) != 2 or any(type(n) is not int or n < 0 for n in place):
        raise BadStore(f"temporary/{id} is damaged: it has no place in the ledger")
    return place[0], place[1]


def places(state: State) -> dict[str, Place]:
    """The place of every temporary task."""
    found: dict[str, Place] = {}
    remembered = set(state.ledger.remembered)
    before = 0
    for task in state.ledger:
        if task in remembered:
            before += 1
        else:
            found[task] = before, len(found)
    return found


def shared_meta(meta: dict[str, Any], state: State) -> dict[str, Any]:
    """An agent's description less all that belongs to tasks; what inputs look like only if a remembered one said so."""
    remembers = state.main is not None or bool(state.ledger.remembered)
    shared = {name: value for name, value in meta.items() if name != "ledger"}
    shared["inputs"] = state_meta(state)["inputs"] if remembers else None
    return dict(json.loads(canonical(shared)))  # as it will be read back, so that old and new compare


def unpack(
    manifest: Manifest, keys: Mapping[str, bytes], content: Mapping[str, bytes]
) -> tuple[Snapshot, dict[str, str]]:
    """The whole state from the files' contents by name, and each temporary task's random name."""
    tensors: dict[str, Tensor] = {}
    meta = dict(manifest.agent)
    if (meta.get("inputs") is None) != (manifest.main is None and not manifest.remembered):
        raise BadStore("the store says what inputs look like if and only if something is remembered; this one does not")
    if manifest.main is not None:
        tensors |= _tensors(_checked(content[manifest.main.name], manifest.main.name), "main/", manifest.main.name)
    ledger: list[list[Any]] = []
    for task in manifest.remembered:
        ledger.append([task.task, "R", list(task.labels), task.steps])
        if task.piece is not None:
            prefix = f"task/{encode(task.task)}/"
            tensors |= _tensors(_checked(content[task.piece.name], task.piece.name), prefix, task.piece.name)
    ids: dict[str, str] = {}
    placed = []
    for sealed in manifest.temporary:
        snapshot = unseal_task(content[sealed.name], sealed.id, keys[sealed.id])
        name, entry = _entry(snapshot.meta, sealed.name)
        if name in ids or any(name == task.task for task in manifest.remembered):
            raise BadStore("a task is in the store twice")
        ids[name] = sealed.id
        tensors |= _tensors(snapshot, f"task/{encode(name)}/", sealed.name)
        if meta.get("inputs") is None:
            meta["inputs"] = snapshot.meta["inputs"]
        elif meta["inputs"] != snapshot.meta["inputs"]:
            raise BadStore(f"{sealed.name} has inputs of another shape than the rest of the store")
        placed.append((unseal_place(sealed.place, sealed.id, keys[sealed.id]), entry))
    # From the last place to the first, so that inserting one does not move the places still to come.
    for (after, _), entry in sorted(placed, key=lambda pair: pair[0], reverse=True):
        ledger.insert(after, entry)
    meta["ledger"] = ledger
    return Snapshot(meta, tensors), ids


def _checked(content: bytes, name: str) -> Snapshot:
    try:
        return Snapshot.from_bytes(content)
    except BadState as error:
        raise BadStore(f"{name} is damaged: {error!s:.200}") from None


def _tensors(snapshot: Snapshot, prefix: str, name: str) -> dict[str, Tensor]:
    odd = next((n for n in snapshot.tensors if not n.startswith(prefix)), None)
    if odd is not None:
        raise BadStore(f"{name} holds a tensor {odd!r:.80} that belongs elsewhere")
    return snapshot.tensors


def _entry(meta: dict[str, Any], name: str) -> tuple[str, list[Any]]:
    try:
        task, labels, steps = check_name(meta["task"]), list(meta["labels"]), meta["steps"]
        meta["inputs"]
    except (KeyError, TypeError, BadRequest) as error:
        raise BadStore(f"{name} is damaged: {error!r:.200}") from None
    return task, [task, "T", labels, steps]
