"""Forgetting in a store, with or without a receipt; needs neither torch nor, for exact methods, the method's code.

An exact method keeps all that it knows of a task in that task's leaves and facts, so forgetting is removing them: a
store whose method or network cannot be loaded still serves a request to forget. Inexact methods do more, or try to.

A receipt that goes to a file is written ahead: the pending receipt, with the names of the files that will go, is there
before anything is forgotten. After a crash the same request completes it; asked once more, it returns it as it is.
"""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clpu import __version__, machine
from clpu.errors import BadReceipt, BadRequest, CannotForget, Error, NothingHeld, StoreFailed, UnknownTask
from clpu.io import canonical, write_atomically
from clpu.requests import Request, meaning
from clpu.requests import Scope as Checked
from clpu.state import State
from clpu.store.contents import SHARED, Item, Part, parts_of
from clpu.store.files import refuse_inside
from clpu.store.format import is_hex
from clpu.store.keyring import unwrap
from clpu.store.plan import StoredState, changes
from clpu.store.receipt import MAX_BYTES, MAX_TEXT_LENGTH, Receipt, commitment, read_text, strict_json
from clpu.store.sealing import sign, signed_by
from clpu.store.store import Store

#: A receipt says this much that its pending form does not.
SPARE = 1 << 14
#: The scope of a forget request, as `State.without` takes it: task, person, labels, records.
Scope = Mapping[str, Any]
#: How a scope is forgotten by a method that must be asked.
Act = Callable[[Scope], None]


def is_exact(state: State) -> bool:
    """Whether the method forgets exactly."""
    return bool(state.about["forgets"] != "nothing")


def as_json(scope: Scope) -> Scope:
    """A scope as a receipt has it; `BadRequest` unless it names something."""
    unknown = scope.keys() - {"task", "person", "labels", "records"}
    if unknown:
        raise BadRequest(f"a scope has task, person, labels and records, got {', '.join(sorted(unknown))}")
    empty = [name for name, value in scope.items() if value is None]
    if empty:  # without this condition, more would match
        raise BadRequest(f"{empty[0]} has no value; leave it out, or say what to forget")
    given = Checked.asked(**scope).keywords()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def without(state: State, **scope: Any) -> State:
    """The state without what a scope names, for a method that forgets exactly; a typed error if it must stay."""
    _refuse(state, scope, state.about["forgets"])
    return state.without(**scope)


def _refuse(state: State, scope: Scope, forgets: str) -> None:
    active = {name: entry.status for name, entry in state.tasks.items()}
    meaning(Request.forgetting(Checked.asked(**scope)), active, forgets)


def with_labels(state: State, scope: Scope) -> Scope:
    """A scope whose labels, given as text, are those of the task: a label may be a number."""
    task = state.tasks.get(scope.get("task", ""))
    if task is None or not isinstance(scope.get("labels"), (list, tuple)):
        return scope
    known = {str(label): label for label in task.labels}
    return {**scope, "labels": [known.get(label, label) for label in scope["labels"]]}


def forget(store: Store, **scope: Any) -> None:
    """Forget what a scope names in a store that was loaded, for a method that forgets exactly."""
    store.commit(without(store.standing.state, **scope))


@dataclass(frozen=True)
class Footprint:
    """The parts that a request to forget would change, computed without doing it."""

    tasks: tuple[str, ...]
    removed: tuple[Item, ...]
    rewritten: tuple[Item, ...]
    bytes: int
    exact: bool
    #: How many records would go; 0 if the method keeps no single ones.
    records: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": list(self.tasks),
            "records": self.records,
            "files_removed": len(self.removed),
            "files_rewritten": len(self.rewritten),
            "keys_destroyed": len(self.removed) + len(self.rewritten),
            "bytes": self.bytes,
            "exact": self.exact,
        }


def footprint(stored: StoredState, scope: Scope) -> Footprint:
    """Preview what forgetting a scope would change; the same errors as forgetting it."""
    exact = is_exact(stored.state)
    removed, rewritten = changes(stored, without(stored.state, **scope))
    parts = _parts(stored.state, [*removed, *(part.item for part in rewritten)])
    size = sum(part.leaf.size for part in parts if part.leaf is not None)
    items = tuple(part.item for part in rewritten)
    tasks = tuple(sorted({item[0] for item in [*removed, *items] if item != SHARED}))
    held = stored.state.held(Checked.asked(**scope)) if stored.state.about["forgets"] == "records" else []
    return Footprint(tasks, tuple(removed), items, size, exact, sum(int(one.chosen.sum()) for one in held))


@dataclass(frozen=True)
class Order:
    """A request to forget as it came in: what, and what the receipt says about it (all of it opaque to us)."""

    scope: Scope
    #: Drawn at random if it is not given.
    id: str | None = None
    reason: str | None = None
    requester: str | None = None
    #: Whether the receipt has the digests of the complete state, which cost a pass over all leaves.
    digests: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "scope", as_json(self.scope))
        for name, text in (("request id", self.id), ("reason", self.reason), ("requester", self.requester)):
            if text is not None and not 0 < len(text) <= MAX_TEXT_LENGTH:
                raise BadReceipt(f"a {name} has 1 to {MAX_TEXT_LENGTH} characters, got {len(text)}")


def forget_with_receipt(store: Store, order: Order, path: Path | None = None, act: Act | None = None) -> Receipt:
    """Forget, and return a signed statement of it; with a path, the statement is there before the forget is.

    `act` forgets if the method is not exact.
    """
    if path is None:
        return _Pending(store, order).carry_out(act)
    refuse_inside(store.path, path)
    pending = _existing(store, order, path)
    if isinstance(pending, Receipt):
        return pending
    if pending is None:
        pending = _Pending(store, order)
        text = pending.to_json()
        if len(text) + SPARE > MAX_BYTES:
            raise BadReceipt(
                f"the receipt would take more than {MAX_BYTES} bytes; forget in parts, or without a receipt"
            )
        _write(path, text, new=True)
    try:
        receipt = pending.carry_out(act)
    except BaseException:
        if not pending.happened():
            path.unlink(missing_ok=True)
        raise
    try:
        _write(path, receipt.to_json())
    except BadReceipt as error:
        raise StoreFailed(
            f"it is forgotten, but {error}. The receipt there is pending: give the same request again to complete it"
        ) from None
    return receipt


class _Pending:
    """A receipt before its forget: all that must be known of what goes."""

    def __init__(self, store: Store, order: Order, facts: dict[str, Any] | None = None) -> None:
        self.store, self.order = store, order
        before = store.standing
        state = before.state
        if facts is None:
            new = without(state, **order.scope) if is_exact(state) else _checked_without(state, order.scope)
            gone, rewritten = changes(before, new)
            items = [*gone, *(part.item for part in rewritten)]
            salt = secrets.token_bytes(32)
            names = [before.files[item].name for item in items]
            facts = {
                "request": order.id or secrets.token_hex(16),
                "reason": order.reason,
                "requester": order.requester,
                "received": _now(),
                "scope": dict(order.scope),
                "method": state.about["method"],
                "forgets": state.about["forgets"],
                "exact": is_exact(state),
                "salt": salt.hex(),
                "touched": sorted(commitment(salt, part.to_bytes()) for part in _parts(state, items)),
                "left": sorted(commitment(salt, part.to_bytes()) for part in rewritten),
                "shared_before": _shared(salt, state),
                "digest_before": state.digest() if order.digests else None,
                "keys_destroyed": sorted(
                    commitment(salt, unwrap(store.secrets, name, before.keys[name]))
                    for name in names
                    if name in before.keys
                ),
                "machine": _machine(order.threads),
                "files": names,
            }
        self.facts = facts

    def to_json(self) -> str:
        """What is written ahead, signed: whoever else can write to the place must not have us forget or sign."""
        signature = sign(self.store.secrets.signing, _said(self.facts))
        content = {"pending": self.facts, "identity": self.store.about.identity, "signature": signature}
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def read(cls, store: Store, text: str) -> _Pending | None:
        """What `to_json` wrote, for this store; `None` if it is something else, `BadReceipt` if it is forged."""
        try:
            content = strict_json(text)
        except (ValueError, RecursionError):
            return None
        facts, signature = content.get("pending"), str(content.get("signature"))
        if not isinstance(facts, dict) or content.get("identity") != store.about.identity:
            return None
        if not is_hex(signature, 64) or not signed_by(store.about.identity, bytes.fromhex(signature), _said(facts)):
            raise BadReceipt("it says that a request is pending, but this store did not write that")
        return cls(store, Order(facts["scope"], facts["request"]), facts)

    def happened(self) -> bool:
        """Whether the files that were to go are gone."""
        present = {file.name for file in self.store.standing.files.values()}
        return not present & set(self.facts["files"])

    def carry_out(self, act: Act | None) -> Receipt:
        """Forget, unless that happened already, and sign the receipt."""
        if not self.happened():
            if is_exact(self.store.standing.state):
                forget(self.store, **self.order.scope)
            else:
                assert act is not None
                act(self.order.scope)
        state = self.store.standing.state
        after = {
            "done": _now(),
            "shared_after": _shared(bytes.fromhex(self.facts["salt"]), state),
            "digest_after": state.digest() if self.facts["digest_before"] is not None else None,
        }
        said = {name: value for name, value in self.facts.items() if name != "files"}
        return Receipt.sign(self.store.secrets.signing, {**said, **after})


def _said(facts: Mapping[str, Any]) -> bytes:
    """What is signed of a pending receipt; nothing else that we sign looks like it."""
    return canonical({"pending": dict(facts)}).encode()


def _existing(store: Store, order: Order, path: Path) -> _Pending | Receipt | None:
    """The receipt of the same request, if it is there: complete, or pending. Anything else is refused."""
    if not path.exists() and not path.is_symlink():
        return None
    taken = f"{path} already exists; choose a different name for the receipt"
    try:
        text = read_text(path)
        found: _Pending | Receipt | None = _Pending.read(store, text)
        if found is None:
            found = Receipt.from_json(text)
            found.verify(store.about.identity)
    except BadReceipt as error:
        raise BadReceipt(f"{taken} ({error})") from None
    said = found.statement if isinstance(found, Receipt) else found.facts
    # Without an id, one that is complete is of the same request if what it names is gone.
    done = isinstance(found, Receipt) and _holds(store, order.scope)
    if said["scope"] != order.scope or (done if order.id is None else said["request"] != order.id):
        raise BadReceipt(taken)
    return found


def _holds(store: Store, scope: Scope) -> bool:
    try:
        with suppress(CannotForget):
            without(store.standing.state, **scope)
    except (UnknownTask, NothingHeld):
        return False
    return True


def receipts_in(store: Store, folder: Path, act: Act | None = None) -> Iterator[Receipt]:
    """This store's receipts in a folder; requests whose receipts were left pending are carried out and completed."""
    for path in sorted(filter(Path.is_file, folder.glob("*.json"))):
        text = read_text(path)
        try:
            pending = _Pending.read(store, text)
        except BadReceipt as error:
            raise BadReceipt(f"{path} cannot be completed: {error}") from None
        if pending is not None:
            yield forget_with_receipt(store, pending.order, path, act)
            continue
        with suppress(BadReceipt):
            found = Receipt.from_json(text)
            found.verify(store.about.identity)
            yield found


def _write(path: Path, text: str, new: bool = False) -> None:
    """Write a receipt durably, for its owner alone."""
    if new and not path.parent.is_dir():
        raise BadReceipt(f"the receipt cannot be written to {path}: there is no folder {path.parent}")
    try:
        write_atomically(path, text.encode(), private=True)
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise BadReceipt(f"the receipt cannot be written to {path}: {error.strerror}") from None


def _parts(state: State, items: list[Item]) -> list[Part]:
    found = {
        part.item: part for name in {item[0] for item in items if item[0]} for part in parts_of(name, state.tasks[name])
    }
    return [found[item] for item in items if item in found]


def _checked_without(state: State, scope: Scope) -> State:
    """List what an inexact method removes in any case; it may change more."""
    _refuse(state, scope, "nothing")
    return state.without(**scope)


def _shared(salt: bytes, state: State) -> str | None:
    return None if state.shared is None else commitment(salt, bytes.fromhex(state.shared.sha256))


def _machine(threads: int) -> dict[str, str]:
    return {
        "cpu": machine.cpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "clpu": __version__,
        "torch": machine.installed("torch"),
        "threads": str(threads),
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
