"""What the files of a store hold: an agent's state taken apart into files, and put together again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clpu.errors import BadState, BadStore
from clpu.io import canonical
from clpu.state import Leaf, State, Task
from clpu.state.schema import check_facts
from clpu.store.format import Manifest
from clpu.store.keys import seal, unseal

#: A temporary task's file is padded to a multiple of this, so that its size tells little.
STEP = 4096
#: What a method can forget exactly, as `clpu.methods.base.Forgets` says; that module needs torch.
FORGETS = ("nothing", "temporary", "tasks", "records")


def task_bytes(name: str, task: Task) -> bytes:
    """All there is of a task, its name included: a state with one task and nothing else."""
    return State({}).with_task(name, task).to_bytes()


def read_task(content: bytes, file: str) -> tuple[str, Task]:
    """The opposite of `task_bytes`; `BadStore` names the file."""
    try:
        state = State.from_bytes(content)
        ((name, task),) = state.tasks.items()
        if state.about or state.shared is not None:
            raise ValueError("it holds more than a task")
    except (BadState, ValueError) as error:
        raise BadStore(f"{file} is damaged: {error!s:.200}") from None
    return name, task


def seal_task(name: str, task: Task, id: str, key: bytes) -> bytes:
    """All there is of a task as one ciphertext."""
    return seal(key, f"task {id}", task_bytes(name, task), STEP)


def unseal_task(sealed: bytes, id: str, key: bytes) -> tuple[str, Task]:
    """The opposite of `seal_task`."""
    return read_task(unseal(key, f"task {id}", sealed), f"temporary/{id}")


def unpack(manifest: Manifest, keys: Mapping[str, bytes], content: Mapping[str, bytes]) -> tuple[State, dict[str, str]]:
    """The state from the files' contents by name, and each temporary task's random name."""
    shared = None if manifest.main is None else _leaf(content[manifest.main.name], manifest.main.name)
    tasks: dict[str, Task] = {}
    for entry in manifest.remembered:
        name, task = read_task(content[entry.file.name], entry.file.name)
        if name != entry.task or task.status != "R":
            raise BadStore(f"{entry.file.name} is not the file of task {entry.task!r}")
        tasks[name] = task
    ids: dict[str, str] = {}
    for sealed in manifest.temporary:
        name, task = unseal_task(content[sealed.name], sealed.id, keys[sealed.id])
        if name in tasks or task.status != "T":
            raise BadStore(f"{sealed.name} holds a task that is in the store twice, or is not temporary")
        ids[name], tasks[name] = sealed.id, task
    state = State(manifest.agent, shared, tasks)
    _check(state)
    return state, ids


def _check(state: State) -> None:
    """Refuse what no agent can have written, as far as that can be seen without its method."""
    about = state.about
    seeds = about.get("seeds")
    if not all(isinstance(about.get(name), str) for name in ("method", "network")):
        raise BadStore("the manifest does not name a method and a network")
    if about.get("forgets") not in FORGETS:
        raise BadStore(f"the manifest must say what the method forgets: one of {', '.join(FORGETS)}")
    if not isinstance(about.get("settings"), dict):
        raise BadStore("the manifest's settings are not an object")
    if not isinstance(seeds, list) or not seeds or any(type(seed) is not int for seed in seeds):
        raise BadStore("the manifest's seeds are not a list of integers")
    try:
        check_facts(state)
    except BadState as error:
        raise BadStore(f"the store is damaged: {error}") from None


def plain(value: Any) -> Any:
    """A value as it will be read back from JSON, so that old and new compare."""
    return json.loads(canonical(value))


def _leaf(content: bytes, name: str) -> Leaf:
    try:
        leaf = Leaf.from_bytes(content)
    except BadState as error:
        raise BadStore(f"{name} is damaged: {error!s:.200}") from None
    if not leaf.specs:
        raise BadStore(f"{name} is damaged: it holds no tensors")
    return leaf
