"""Checking a store without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from clpu.errors import BadKeys, BadNetwork, BadState, BadStore, Error, StoreFailed
from clpu.store.contents import Part
from clpu.store.files import TIME, failures
from clpu.store.folder import Access, View
from clpu.store.format import (
    ABOUT,
    HEAD,
    INTENT,
    KEYS,
    LEAVES,
    MAX_FILE_BYTES,
    PERMANENT,
    ROOT,
    is_name,
    is_shard,
    path_of,
)
from clpu.store.store import Store

#: The word of a report about an undamaged file.
OK = "OK"


@dataclass
class Report:
    """`files` says of each file that it is OK, or what is wrong with it; `notes` is what is odd but harmless."""

    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return all(state == OK for state in self.files.values())


def verify(path: str | os.PathLike[str], access: Access | None = None, *, files_only: bool = False) -> Report:
    """Check every file of a store: each is decrypted and read, and together they must make an agent. Changes nothing.

    Without torch, or without the code of a custom method or network, a note says that what only these know (which
    tensors of which shape the method has) was not checked; with `files_only` it is not tried, which is faster.
    """
    report, folder = Report(), Path(path)
    try:
        store = Store(folder, access, write=False)
    except (BadStore, BadKeys) as error:
        if not (folder / ABOUT).is_file() or (isinstance(error, BadKeys) and "--keys" in str(error)):
            raise
        report.files[KEYS if isinstance(error, BadKeys) else ABOUT] = str(error)
        return report
    with store, failures(folder, "read"):
        report.files |= {ABOUT: OK, KEYS: OK}
        try:
            view = store.view(strict=False)
            report.files[ROOT] = OK
        except Error as error:
            report.files[ROOT] = str(error)
            return report
        _check_files(store, view, report)
        if report.good:
            try:
                store.assemble(view)
                if not files_only:
                    _check_agent(store, report)
            except Error as error:
                report.files[ROOT] = f"does not fit the other files: {error}"
        _notes(store, view, report)
    return report


def _check_agent(store: Store, report: Report) -> None:
    """Build the agent, as opening the store does."""
    about = store.standing.state.about
    unchecked = "so whether the agent can use what the files hold was not checked"
    try:
        from clpu.methods import METHODS
        from clpu.store.durable import DurableAgent

        if about["method"] not in METHODS or about["network"] == "module":
            report.notes.append(f"the method or network is custom code that is not loaded, {unchecked}")
        else:
            DurableAgent.of_store(store)
    except BadNetwork as error:
        report.notes.append(f"{error}, {unchecked}")
    except ImportError:
        report.notes.append(f"torch is not installed, {unchecked}")


def _check_files(store: Store, view: View, report: Report) -> None:
    for path in [path_of(LEAVES, name) for name in view.keys] + [path_of(PERMANENT, name) for name in view.permanent]:
        name = path.rpartition("/")[2]
        try:
            sealed = store.files.read(path, MAX_FILE_BYTES)
            part = Part.from_bytes(store.unsealed(path, name, sealed, view.keys), path)
            if part.leaf is not None:
                _ = part.leaf.specs
            report.files[path] = OK
        except FileNotFoundError:
            report.files[path] = "missing"
        except BadState as error:
            report.files[path] = f"damaged: {error!s:.200}"
        except (BadStore, BadKeys, StoreFailed) as error:
            report.files[path] = str(error)
    if store.is_copy:
        if view.without_key:
            report.notes.append(f"{len(view.without_key)} files cannot be read: what they hold was forgotten since")
        return
    for name in view.without_file:
        report.files[path_of(LEAVES, name)] = "missing, and its key is there"
    for name in view.without_key:
        report.files[path_of(LEAVES, name)] = "has no key: the keys folder is older or newer than the store"


def _notes(store: Store, view: View, report: Report) -> None:
    if store.is_copy:
        report.notes.append(f"read-only: {store.read_only_because}; see `clpu clone` and `clpu adopt`")
    if view.intent is not None:
        report.notes.append("a request was interrupted; the next open for writing completes or undoes it")
    files, parts = store.files, {*store.strays()}
    known = {ABOUT, HEAD, ROOT, INTENT, LEAVES, PERMANENT, *([KEYS] if store.about.keys_here else [])}
    found = files.names()
    inside = [(folder, name) for folder in (LEAVES, PERMANENT) if folder in found for name in files.names(folder)]
    present = [*found, *(f"{folder}/{shard}" for folder, shard in inside)]
    for folder, shard in inside:
        if is_shard(shard):
            present += [f"{folder}/{shard}/{name}" for name in files.names(f"{folder}/{shard}")]
    for path in present:
        folder, _, name = path.rpartition("/")
        shard = folder.partition("/")[2]
        expected = path in known if not folder else is_name(name, shard) if shard else is_shard(name)
        if path in parts:
            report.notes.append(f"{path} was left by an interrupted request; it is removed at the next open")
        elif not expected:
            report.notes.append(f"{path} is not a file of the store and is left alone")
        elif files.about(path).st_mtime_ns != TIME:
            report.notes.append(f"{path} has an unexpected modification time; it is corrected at the next open")
    if HEAD not in found:
        report.notes.append(f"{HEAD} is missing: readers do not notice changes; the next open for writing makes it")
    for part in store.keyring.parts():
        report.notes.append(f"{KEYS}/{part} was left by an interrupted request; it is removed at the next open")
