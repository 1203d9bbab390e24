"""The folder behind a durable agent: how a request becomes durable, and how an interrupted one is completed.

A request is saved in this order, each step durable before the next:
new files; the key file with new keys; the manifest (from here on the request is in); the key file without
old keys; old files away. A forget that changes nothing else destroys its key before the manifest changes.
Whatever is interrupted, two rules complete it when the store is next opened: a key that the manifest does not
mention is destroyed, and a temporary task without a key is forgotten. The rest is files that nobody mentions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from clpu.errors import BadStore, Error, StoreFailed
from clpu.methods.base import State
from clpu.snapshot import Snapshot
from clpu.store.contents import seal_place, unpack, unseal_place
from clpu.store.files import LOCK, TIME, Files
from clpu.store.format import (
    KEYS,
    LONGEST_JSON,
    MANIFEST,
    OURS,
    REMEMBERED,
    TEMPORARY,
    Manifest,
    Piece,
    Sealed,
    sha256,
)
from clpu.store.key_file import KeyFile
from clpu.store.plan import Plan, Standing, by_id, core, make_plan

PATIENCE = 5.0


class Store:
    """One agent's folder, open for reading or, with `write`, for writing."""

    standing: Standing
    signing: bytes

    def __init__(self, path: str | os.PathLike[str], keys: str | os.PathLike[str] | None, *, write: bool) -> None:
        self.path = Path(path)
        self.write = write
        self.dirty = False
        self._keys_path = keys
        self._key_file: KeyFile | None = None
        with failures(self.path, "opened"):
            try:
                self.files = Files(self.path)
            except (FileNotFoundError, NotADirectoryError):
                raise BadStore(f"there is no store at {self.path}; make one with `clpu init {self.path}`") from None
            try:
                if MANIFEST not in self.files.names():
                    raise BadStore(f"{self.path} is no store; make one with `clpu init {self.path}`")
                if write:
                    self.files.lock()
                    self.recover()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Let another writer in."""
        self.files.close()
        if self._key_file is not None:
            self._key_file.close()

    # Reading

    def load(self) -> Snapshot:
        """The whole state; a reader waits for a writer that is just changing the folder."""
        deadline = time.monotonic() + PATIENCE
        while True:
            before = None
            try:
                with failures(self.path, "read"):
                    before = self._raw_manifest()
                    if not self.write:
                        self.read()
                    snapshot = self.unpacked()
                    if self.write or self._raw_manifest() == before:
                        return snapshot
            except Error:
                if self.write or time.monotonic() > deadline or not self._changing(before):
                    raise
            time.sleep(0.01)

    def read(self) -> None:
        """Read manifest and keys as they will be once every interrupted request is completed."""
        self._found = self._raw_manifest()
        manifest = Manifest.from_bytes(self._found)
        if self._key_file is None:
            self._key_file = KeyFile(self.files, manifest.keys_here, self._keys_path)
        keys = self._key_file.read(manifest.identity)
        self.signing = keys.signing
        self._stale = keys.tasks.keys() - {entry.id for entry in manifest.temporary}
        if not manifest.keys_here:
            # A key without a ciphertext here is another copy's: a request of ours makes the file before the key, and
            # removes it after.
            self._stale &= set(self.files.names(TEMPORARY))
        alive = [entry for entry in manifest.temporary if entry.id in keys.tasks]
        found = {entry.id: unseal_place(entry.place, entry.id, keys.tasks[entry.id]) for entry in alive}
        alive.sort(key=lambda entry: found[entry.id])
        places = {entry.id: (found[entry.id][0], rank) for rank, entry in enumerate(alive)}
        closed_up = [
            entry
            if places[entry.id] == found[entry.id]
            else replace(entry, place=seal_place(places[entry.id], entry.id, keys.tasks[entry.id]))
            for entry in alive
        ]
        before = getattr(self, "standing", None)
        self.standing = Standing(
            before.state if before else State(),
            replace(manifest, temporary=by_id(closed_up)),
            before.ids if before else {},
            {entry.id: keys.tasks[entry.id] for entry in alive},
            places,
        )

    def unpacked(self) -> Snapshot:
        """What the files hold, once `read` has told which."""
        manifest = self.standing.manifest
        content = {name: self.content(piece) for name, piece in manifest.files.items()}
        snapshot, ids = unpack(manifest, self.standing.keys, content)
        self.standing = replace(self.standing, ids=ids)
        return snapshot

    def content(self, piece: Piece | Sealed) -> bytes:
        """A file's content, if it is what the manifest says."""
        try:
            content = self.files.read(piece.name, piece.size)
        except FileNotFoundError:
            raise BadStore(f"{self.path / piece.name} is missing; restore the store from a copy") from None
        if sha256(content) != piece.sha256:
            raise BadStore(f"{self.path / piece.name} is damaged: its checksum does not match; restore it from a copy")
        return content

    def _raw_manifest(self) -> bytes:
        try:
            return self.files.read(MANIFEST, limit=LONGEST_JSON)
        except FileNotFoundError:
            raise BadStore(f"{self.path} is no store: {MANIFEST} is missing") from None

    def _changing(self, before: bytes | None) -> bool:
        with failures(self.path, "read"):
            return self._raw_manifest() != before or self.files.has_writer()

    # Writing

    def commit(self, state: State) -> None:
        """Make a new state durable. If this raises, `standing.state` is the one that is saved, old or new."""
        with failures(self.path, "written"):
            if self.dirty:
                before = core(self.standing.manifest)
                self.recover()
                if core(self.standing.manifest) != before:
                    raise StoreFailed(f"{self.path} holds another state than this agent; open it again")
            plan = make_plan(self.standing, state)
            try:
                self._carry_out(plan)
            except BaseException:
                self._settle_failure(plan)
                raise
        self.standing = plan.new

    def _carry_out(self, plan: Plan) -> None:
        assert self._key_file is not None
        identity, new, old = plan.new.manifest.identity, plan.new_keys, plan.old_keys
        self.files.replaced.clear()
        self._key_file.files.replaced.clear()
        for name, content in plan.files.items():
            self.files.put(name, content)
        self.files.settle()
        if new:
            self._key_file.change(identity, new, ())
        if old and plan.only_forgets:
            self._key_file.change(identity, {}, old)
        self.files.put(MANIFEST, plan.new.manifest.to_bytes())
        self.files.settle()
        if old and not plan.only_forgets:
            self._key_file.change(identity, {}, old)
        self._tidy(plan.new.manifest)

    def _settle_failure(self, plan: Plan) -> None:
        """Find out whether the request is in, and complete or clear what was begun, as far as the disk allows."""
        assert self._key_file is not None
        self.dirty = True
        with suppress(BaseException):
            self.recover()
        if self.standing is plan.old:  # the disk cannot be read, so what we did decides
            names = {MANIFEST, self._key_file.name} if plan.only_forgets else {MANIFEST}
            if names & (self.files.replaced | self._key_file.files.replaced):
                self.standing = plan.new
        elif core(self.standing.manifest) == core(plan.new.manifest):
            self.standing = replace(self.standing, state=plan.new.state, ids=plan.new.ids)

    def recover(self) -> None:
        """Complete whatever was interrupted. A store in which nothing was is only read."""
        self.read()
        assert self._key_file is not None
        self.dirty = True
        manifest = self.standing.manifest
        complete = manifest.to_bytes()
        if complete != self._found or self._stale or self._strays(manifest):
            self.files.settle("")  # what was seen must be durable before anything is done because of it
        if complete != self._found:
            self.files.put(MANIFEST, complete)
            self.files.settle()
        if self._stale:
            self._key_file.change(manifest.identity, {}, self._stale)
        self._key_file.tidy()
        self._tidy(manifest)
        self._set_times(manifest)
        self.dirty = False

    def _strays(self, manifest: Manifest) -> list[str]:
        """Our own files that the manifest does not mention, and empty folders."""
        present, mentioned = self.files.names(), manifest.files
        strays = [name for name in present if OURS.fullmatch(name)]
        for folder in (REMEMBERED, TEMPORARY):
            if folder not in present:
                continue
            names = [f"{folder}/{name}" for name in self.files.names(folder)]
            old = [name for name in names if OURS.fullmatch(name) and name not in mentioned]
            strays += old
            if len(old) == len(names):
                strays.append(folder)
        return strays

    def _tidy(self, manifest: Manifest) -> None:
        for name in self._strays(manifest):
            if name in (REMEMBERED, TEMPORARY):
                self.files.remove_folder(name)
            else:
                self.files.remove(name)
        self.files.settle()

    def _set_times(self, manifest: Manifest) -> None:
        present = self.files.names()
        folders = [folder for folder in (REMEMBERED, TEMPORARY) if folder in present]
        files = [name for name in (MANIFEST, KEYS, LOCK) if name in present]
        for name in [*files, *manifest.files]:
            try:
                late = self.files.changed(name) != TIME
            except FileNotFoundError:
                continue  # `load` says what is missing
            if late:
                self.files.set_time(name)
        late_folders = [folder for folder in ["", *folders] if self.files.changed(folder) != TIME]
        self.files.settle(*late_folders)


@contextmanager
def failures(path: Path, what: str) -> Iterator[None]:
    """Turn the disk's errors into ours."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        failed = StoreFailed(f"{path} could not be {what}: {error.strerror or error}")
        failed.errno = error.errno
        raise failed from error
