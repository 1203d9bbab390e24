"""Checking a store without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from clpu.errors import BadKeys, BadStore, Error, StoreFailed
from clpu.io import sha256
from clpu.store.files import LOCK, TIME, Files, failures
from clpu.store.format import KEYS, LONGEST_JSON, MANIFEST, OURS, REMEMBERED, TEMPORARY, Manifest
from clpu.store.key_file import KeyFile
from clpu.store.keys import Keys
from clpu.store.store import Store

#: What a report says about a file that is as it should be.
OK = "OK"


@dataclass
class Report:
    """`files` says of each file that it is OK, or what is wrong with it; `notes` is what is odd but harmless."""

    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return all(state == OK for state in self.files.values())


def verify(path: str | os.PathLike[str], keys: str | os.PathLike[str] | None = None) -> Report:
    """Check every file of a store: checksums, decryption, and the tree that the files make. Changes nothing.

    Neither torch nor the agent's method or network is needed, so what only these know (which tensors of which shape
    the method has) is checked when the store is opened. Without a key file that is stored outside the store, encrypted
    files are checked by their checksums only.
    """
    report = Report()
    folder = Path(path)
    with failures(folder, "read"):
        try:
            files = Files(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise BadStore(f"there is no store at {folder}") from None
        try:
            manifest = _manifest(files, report)
            if manifest is not None:
                _checksums(files, manifest, report)
                _keys(Path(path), keys, manifest, report)
                _strangers(files, manifest, report)
        finally:
            files.close()
    return report


def _manifest(files: Files, report: Report) -> Manifest | None:
    try:
        manifest = Manifest.from_bytes(files.read(MANIFEST, limit=LONGEST_JSON))
    except FileNotFoundError:
        raise BadStore(f"{files.path} is not a store: {MANIFEST} is missing") from None
    except BadStore as error:
        report.files[MANIFEST] = str(error)
        return None
    report.files[MANIFEST] = OK
    return manifest


def _checksums(files: Files, manifest: Manifest, report: Report) -> None:
    for name, file in manifest.files.items():
        try:
            good = sha256(files.read(name, file.size)) == file.sha256
            report.files[name] = OK if good else "damaged: its checksum does not match"
        except FileNotFoundError:
            report.files[name] = "missing"
        except BadStore as error:
            report.files[name] = str(error)


def _keys(path: Path, keys: str | os.PathLike[str] | None, manifest: Manifest, report: Report) -> None:
    if not manifest.keys_here and keys is None:
        report.notes.append("the key file is stored outside the store and was not given, so nothing was decrypted")
        return
    name = KEYS if manifest.keys_here else str(keys)
    try:
        store = Store(path, keys, write=False)
        try:
            found = KeyFile(store.files, manifest.keys_here, keys).read(manifest.identity)
            report.files[name] = OK
            _decrypt(store, manifest, found, report)
        finally:
            store.close()
    except (BadKeys, BadStore, StoreFailed) as error:
        report.files[name] = str(error)


def _decrypt(store: Store, manifest: Manifest, keys: Keys, report: Report) -> None:
    for entry in manifest.temporary:
        if entry.id not in keys.tasks:
            report.notes.append(f"{entry.name} has no key: a forget was interrupted, and is completed at the next open")
    unknown = keys.tasks.keys() - {entry.id for entry in manifest.temporary}
    if unknown:
        report.notes.append(
            f"{len(unknown)} keys match no task in this store (left by an interrupted request, or used by another copy)"
        )
    if report.good:
        try:
            store.read()
            store.unpacked()
        except Error as error:
            report.files[MANIFEST] = f"does not fit the other files: {error}"


def _strangers(files: Files, manifest: Manifest, report: Report) -> None:
    expected = {MANIFEST, LOCK, REMEMBERED, TEMPORARY, *manifest.files}
    if manifest.keys_here:
        expected.add(KEYS)
    present = list(files.names())
    for folder in (REMEMBERED, TEMPORARY):
        if folder in present:
            present += [f"{folder}/{name}" for name in files.names(folder)]
    for name in present:
        if name in expected:
            if files.changed(name) != TIME:
                report.notes.append(f"{name} has an unexpected modification time; it is corrected at the next open")
        elif OURS.fullmatch(name):
            report.notes.append(f"{name} was left by an interrupted request; it is removed at the next open")
        else:
            report.notes.append(f"{name} is not a file of the store and is left alone")
