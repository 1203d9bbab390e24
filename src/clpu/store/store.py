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
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clpu.errors import BadStore, Error, StoreFailed
from clpu.io import sha256
from clpu.state import State
from clpu.store.contents import unpack
from clpu.store.files import LOCK, TIME, Files, failures
from clpu.store.format import (
    KEYS,
    LONGEST_JSON,
    MANIFEST,
    OURS,
    REMEMBERED,
    TEMPORARY,
    EncryptedTask,
    Manifest,
    TensorFile,
)
from clpu.store.key_file import KeyFile
from clpu.store.plan import StoredState, StorePlan, by_id, core, make_plan

PATIENCE = 5.0


class Store:
    """One agent's folder, open for reading or, with `write`, for writing."""

    standing: StoredState
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
                raise BadStore(f"there is no store at {self.path}; create one with `clpu init {self.path}`") from None
            try:
                if MANIFEST not in self.files.names():
                    raise BadStore(f"{self.path} is not a store; create one with `clpu init {self.path}`")
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

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Reading

    def load(self) -> State:
        """Read the state; a reader waits for a writer that is just changing the folder."""
        deadline = time.monotonic() + PATIENCE
        while True:
            before = None
            try:
                with failures(self.path, "read"):
                    before = self._raw_manifest()
                    if not self.write:
                        self.read()
                    state = self.unpacked()
                    if self.write or self._raw_manifest() == before:
                        return state
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
        before = getattr(self, "standing", None)
        self.standing = StoredState(
            before.state if before else State(manifest.agent),
            replace(manifest, temporary=by_id(alive)),
            before.ids if before else {},
            {entry.id: keys.tasks[entry.id] for entry in alive},
        )

    def unpacked(self) -> State:
        """The state that the files hold, once `read` has found out which files count."""
        manifest = self.standing.manifest
        content = {name: self.content(file) for name, file in manifest.files.items()}
        state, ids = unpack(manifest, self.standing.keys, content)
        self.standing = replace(self.standing, state=state, ids=ids)
        return state

    def content(self, file: TensorFile | EncryptedTask) -> bytes:
        """A file's content, if it is what the manifest says."""
        try:
            content = self.files.read(file.name, file.size)
        except FileNotFoundError:
            raise BadStore(f"{self.path / file.name} is missing; restore the store from a copy") from None
        if sha256(content) != file.sha256:
            raise BadStore(f"{self.path / file.name} is damaged: its checksum does not match; restore it from a copy")
        return content

    def _raw_manifest(self) -> bytes:
        try:
            return self.files.read(MANIFEST, limit=LONGEST_JSON)
        except FileNotFoundError:
            raise BadStore(f"{self.path} is not a store: {MANIFEST} is missing") from None

    def _changing(self, before: bytes | None) -> bool:
        with failures(self.path, "read"):
            return self._raw_manifest() != before or self.files.has_writer()

    # Writing

    def commit(self, state: State) -> None:
        """Make a new state durable. If this raises, `standing.state` is the one that is saved, old or new.

        A `StoreFailed` after the point of no return says that the request is saved.
        """
        with failures(self.path, "written"):
            if self.dirty:
                before = core(self.standing.manifest)
                self.recover()
                if core(self.standing.manifest) != before:
                    raise StoreFailed(f"{self.path} holds a different state than this agent; open it again")
            plan = make_plan(self.standing, state)
            try:
                self._carry_out(plan)
            except BaseException as error:
                self._settle_failure(plan)
                if isinstance(error, OSError) and self.standing.state is state:
                    raise self._saved(error) from error
                raise
        self.standing = plan.new

    def _saved(self, error: OSError) -> StoreFailed:
        saved = StoreFailed(
            f"{self.path} could not be written: {error.strerror or error}. "
            "The request itself is saved; what is left to do is done when the store is next opened"
        )
        saved.errno = error.errno
        return saved

    def _carry_out(self, plan: StorePlan) -> None:
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

    def _settle_failure(self, plan: StorePlan) -> None:
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
