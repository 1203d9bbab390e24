"""Checking a store without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from clpu.errors import BadKeys, BadStore, Error, StoreFailed
from clpu.store.contents import unseal_place
from clpu.store.files import LOCK, TIME, Files
from clpu.store.format import KEYS, LONGEST_JSON, MANIFEST, OURS, REMEMBERED, TEMPORARY, Manifest, sha256
from clpu.store.key_file import KeyFile
from clpu.store.keys import Keys
from clpu.store.store import Store, failures


@dataclass
class Report:
    """`files` says of each file that it is whole, or what is wrong; `notes` is what is odd but harmless."""

    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return all(state == "whole" for state in self.files.values())


def verify(path: str | os.PathLike[str], keys: str | os.PathLike[str] | None = None) -> Report:
    """Check every file of a store and change nothing.

    Without a key file that lives elsewhere, encrypted files are checked by their checksums only.
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
                _pieces(files, manifest, report)
                _keys(Path(path), keys, manifest, report)
                _strangers(files, manifest, report)
        finally:
            files.close()
    return report


def _manifest(files: Files, report: Report) -> Manifest | None:
    try:
        manifest = Manifest.from_bytes(files.read(MANIFEST, limit=LONGEST_JSON))
    except FileNotFoundError:
        raise BadStore(f"{files.path} is no store: {MANIFEST} is missing") from None
    except BadStore as error:
        report.files[MANIFEST] = str(error)
        return None
    report.files[MANIFEST] = "whole"
    return manifest


def _pieces(files: Files, manifest: Manifest, report: Report) -> None:
    for name, piece in manifest.files.items():
        try:
            good = sha256(files.read(name, piece.size)) == piece.sha256
            report.files[name] = "whole" if good else "damaged: its checksum does not match"
        except FileNotFoundError:
            report.files[name] = "missing"
        except BadStore as error:
            report.files[name] = str(error)


def _keys(path: Path, keys: str | os.PathLike[str] | None, manifest: Manifest, report: Report) -> None:
    if not manifest.keys_here and keys is None:
        report.notes.append("the key file lives elsewhere and was not given, so nothing was decrypted")
        return
    name = KEYS if manifest.keys_here else str(keys)
    try:
        store = Store(path, keys, write=False)
        try:
            found = KeyFile(store.files, manifest.keys_here, keys).read(manifest.identity)
            report.files[name] = "whole"
            _decrypt(store, manifest, found, report)
        finally:
            store.close()
    except (BadKeys, BadStore, StoreFailed) as error:
        report.files[name] = str(error)


def _decrypt(store: Store, manifest: Manifest, keys: Keys, report: Report) -> None:
    for entry in manifest.temporary:
        if entry.id not in keys.tasks:
            report.notes.append(f"{entry.name} has no key: a forget was interrupted, and is completed at the next open")
        elif report.files[entry.name] == "whole":
            try:
                unseal_place(entry.place, entry.id, keys.tasks[entry.id])
            except BadStore as error:
                report.files[entry.name] = str(error)
    unknown = keys.tasks.keys() - {entry.id for entry in manifest.temporary}
    if unknown:
        report.notes.append(
            f"{len(unknown)} keys of no task here: of an interrupted request, or of a task in another copy of the store"
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
                report.notes.append(f"{name} bears a time of its own; it is set right at the next open")
        elif OURS.fullmatch(name):
            report.notes.append(f"{name} is left from an interrupted request, and is removed at the next open")
        else:
            report.notes.append(f"{name} is not ours and is left alone")
