"""Forgetting a task of a store, and the receipt for it; needs neither torch nor, for exact methods, the method's code.

An exact method keeps all that it knows of a task in that task's leaves and facts, so forgetting is removing them: a
store whose method or network cannot be loaded still serves a request to forget. Inexact methods do more, or try to.
"""

from __future__ import annotations

from clpu import __version__
from clpu.io import sha256
from clpu.requests import Instruction, Request, meaning
from clpu.state import State
from clpu.store.keys import Keys
from clpu.store.plan import StoredState
from clpu.store.receipt import Receipt
from clpu.store.store import Store


def is_exact(state: State) -> bool:
    """Whether the method forgets exactly."""
    return bool(state.about["forgets"] != "nothing")


def without(state: State, task: str) -> State:
    """The state without a task, for a method that forgets exactly; a typed error if it must not be forgotten."""
    active = {name: entry.status for name, entry in state.tasks.items()}
    meaning(Request(task, Instruction.FORGET), active, state.about["forgets"])
    return state.without(task)


def forget(store: Store, task: str) -> None:
    """Forget a task of a store that was loaded, for a method that forgets exactly."""
    store.commit(without(store.standing.state, task))


def receipt(store: Store, before: StoredState, task: str) -> Receipt:
    """A signed statement that a task was forgotten, which was there before; the store keeps nothing of it."""
    after, id = store.standing, before.ids.get(task)
    encrypted = [entry for entry in before.manifest.temporary if entry.id == id]
    plain = [entry.file for entry in before.manifest.remembered if entry.task == task]
    facts = {
        "task": task,
        "method": before.state.about["method"],
        "exact": is_exact(before.state),
        "clpu": __version__,
        "digest_before": before.state.digest(),
        "digest_after": after.state.digest(),
        "key_destroyed": None if id is None else sha256(before.keys[id]),
        "ciphertexts_destroyed": [entry.sha256 for entry in encrypted],
        "files_removed": [file.sha256 for file in plain if file.name not in after.manifest.files],
    }
    return Receipt.sign(Keys(store.signing), facts)
