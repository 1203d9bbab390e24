"""The folder behind a durable agent: how a request becomes durable, and how an interrupted one is completed.

A request is saved in this order, each step durable before the next:
new files; the key file with new keys; the manifest (from here on the request is in); the key file without
old keys; old files away. A forget that changes nothing else destroys its key before the manifest changes.
Whatever is interrupted, two rules complete it when the store is next opened: a key that the manifest does not
mention is destroyed, and a temporary task without a key is forgotten. The rest is files that nobody mentions.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clpu.errors import BadKeys, BadStore, Error, StoreFailed
from clpu.methods.base import State
from clpu.snapshot import Snapshot
from clpu.store.contents import (
    Place,
    pack_main,
    pack_task,
    places,
    same_task,
    seal_place,
    seal_task,
    shared_meta,
    unpack,
    unseal_place,
)
from clpu.store.files import LOCK, PART, TIME, Files
from clpu.store.format import (
    KEYS,
    LONGEST_JSON,
    MANIFEST,
    OURS,
    REMEMBERED,
    TEMPORARY,
    Manifest,
    Piece,
    Remembered,
    Sealed,
    sha256,
)
from clpu.store.keys import Keys, new_key

PATIENCE = 5.0


@dataclass
class Plan:
    """What a request changes."""

    manifest: Manifest
    keys: Keys
    files: dict[str, bytes]
    ids: dict[str, str]
    places: dict[str, Place]


class Store:
    """One agent's folder, open for reading or, with `write`, for writing."""

    def __init__(self, path: str | os.PathLike[str], keys: str | os.PathLike[str] | None, *, write: bool) -> None:
        self.path = Path(path)
        self.write = write
        self.dirty = False
        self.state = State()
        self.ids: dict[str, str] = {}
        self._keys_path = keys
        with failures(self.path, "opened"):
            try:
                self.files = Files(self.path)
            except (FileNotFoundError, NotADirectoryError):
                raise BadStore(f"there is no store at {self.path}; make one with `clpu init {self.path}`") from None
            self._key_files: Files | None = None
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
        if self._key_files is not None:
            self._key_files.close()
            self._key_files = None

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
                        self._read()
                    content = {name: self.content(piece) for name, piece in self.manifest.files.items()}
                    snapshot, self.ids = unpack(self.manifest, self.keys, content)
                    if self.write or self._raw_manifest() == before:
                        return snapshot
            except Error:
                if self.write or time.monotonic() > deadline or not self._changing(before):
                    raise
            time.sleep(0.01)

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
            return self._raw_manifest() != before or self._writer_is_there()

    def _writer_is_there(self) -> bool:
        import fcntl

        try:
            fd = os.open(self.path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def _read(self) -> None:
        """Read manifest and keys as they will be once every interrupted request is completed."""
        self._found_manifest = self._raw_manifest()
        manifest = Manifest.from_bytes(self._found_manifest)
        self._found_keys = self._raw_keys(manifest)
        keys = Keys.from_bytes(self._found_keys)
        if keys.identity != manifest.identity:
            raise BadKeys(f"the key file belongs to another store than {self.path}; nothing was changed")
        alive = [entry for entry in manifest.temporary if entry.id in keys.tasks]
        self.keys = keys.without(keys.tasks.keys() - {entry.id for entry in alive})
        found = {entry.id: unseal_place(entry.place, entry.id, keys.tasks[entry.id]) for entry in alive}
        alive.sort(key=lambda entry: found[entry.id])
        self.places = {entry.id: (found[entry.id][0], rank) for rank, entry in enumerate(alive)}
        closed_up = [
            entry
            if self.places[entry.id] == found[entry.id]
            else replace(entry, place=seal_place(self.places[entry.id], entry.id, keys.tasks[entry.id]))
            for entry in alive
        ]
        self.manifest = replace(manifest, temporary=_by_id(closed_up))

    def _raw_keys(self, manifest: Manifest) -> bytes:
        if self._key_files is None:
            self._key_files, self._key_name = self._locate_keys(manifest)
        try:
            return self._key_files.read(self._key_name, limit=LONGEST_JSON)
        except FileNotFoundError:
            raise BadKeys(
                f"the key file {self._key_files.path / self._key_name} is missing; nothing was changed"
            ) from None

    def _locate_keys(self, manifest: Manifest) -> tuple[Files, str]:
        inside = self.path.resolve() / KEYS
        given = None if self._keys_path is None else Path(self._keys_path).resolve()
        if manifest.keys_here:
            if given not in (None, inside):
                raise BadKeys(f"the keys of {self.path} live in it; leave the path of the key file out")
            return self.files, KEYS
        if given is None:
            raise BadKeys(f"the keys of {self.path} live elsewhere: give the path of the key file (--keys PATH)")
        try:
            return Files(given.parent, own=False), given.name
        except (FileNotFoundError, NotADirectoryError):
            raise BadKeys(f"the key file {given} is missing; nothing was changed") from None

    # Writing

    def commit(self, state: State) -> None:
        """Make a new state durable. If this raises, `self.state` says whether the old or the new one is saved."""
        plan = self._plan(state)
        with failures(self.path, "written"):
            if self.dirty:
                standing = _core(self.manifest)
                self.recover()
                if _core(self.manifest) != standing:
                    raise StoreFailed(f"{self.path} holds another state than this agent; open it again")
                plan = self._plan(state)
            try:
                self._carry_out(plan)
            except BaseException:
                self.dirty = True
                before = self.manifest
                # What stands on the disk decides, and what is half-done is completed, if the disk allows.
                with suppress(BaseException):
                    self.recover()
                if self.manifest is before and self._decided(plan):
                    self._adopt(plan)
                if _core(self.manifest) == _core(plan.manifest):
                    self.state, self.ids = state, plan.ids
                raise
        self._adopt(plan)
        self.state, self.ids = state, plan.ids

    def _adopt(self, plan: Plan) -> None:
        self.manifest, self.keys, self.places = plan.manifest, plan.keys, plan.places

    def _decided(self, plan: Plan) -> bool:
        """Whether the step was made that decides that a request is in, as far as can be told without the disk."""
        assert self._key_files is not None
        return MANIFEST in self.files.replaced or (
            self._only_forgets(plan) and self._key_name in self._key_files.replaced
        )

    def _only_forgets(self, plan: Plan) -> bool:
        """Whether nothing changes but that temporary tasks go."""
        return not plan.files and _core(plan.manifest)[:-1] == _core(self.manifest)[:-1]

    def _plan(self, state: State) -> Plan:
        files: dict[str, bytes] = {}

        def piece(content: bytes | None) -> Piece | None:
            if content is None:
                return None
            made = Piece.of(content)
            files[made.name] = content
            return made

        old = self.manifest
        main = old.main if state.main is self.state.main else piece(pack_main(state))
        known = {task.task: task.piece for task in old.remembered}
        remembered = []
        for task in state.ledger.remembered:
            about = state.ledger[task]
            unchanged = task in known and same_task(state, self.state, task)
            own = known[task] if unchanged else piece(pack_task(state, task))
            remembered.append(Remembered(task, about.labels, about.steps, own))

        keys = replace(self.keys, tasks={})
        ids, placed, temporary = {}, {}, []
        entries = {entry.id: entry for entry in old.temporary}
        for task, place in places(state).items():
            id = self.ids.get(task)
            if id is not None and same_task(state, self.state, task):
                key, entry = self.keys.tasks[id], entries[id]
                if place != self.places[id]:
                    entry = replace(entry, place=seal_place(place, id, key))
            else:
                id, key = secrets.token_hex(16), new_key()
                content = seal_task(state, task, id, key)
                entry = Sealed(id, sha256(content), len(content), seal_place(place, id, key))
                files[entry.name] = content
            keys, ids[task], placed[id] = keys.with_task(id, key), id, place
            temporary.append(entry)
        manifest = replace(
            old,
            agent=shared_meta(old.agent, state),
            main=main,
            remembered=tuple(remembered),
            temporary=_by_id(temporary),
        )
        return Plan(manifest, keys, files, ids, placed)

    def _carry_out(self, plan: Plan) -> None:
        assert self._key_files is not None
        self.files.replaced.clear()
        self._key_files.replaced.clear()
        for name, content in plan.files.items():
            self.files.put(name, content)
        self.files.settle()
        written = self.keys
        if plan.keys.tasks.keys() - written.tasks.keys():
            written = replace(written, tasks={**written.tasks, **plan.keys.tasks})
            self._write_keys(written)
        if written != plan.keys and self._only_forgets(plan):
            written = plan.keys
            self._write_keys(written)
        self.files.put(MANIFEST, plan.manifest.to_bytes())
        self.files.settle()
        if written != plan.keys:
            self._write_keys(plan.keys)
        self._tidy(plan.manifest)

    def _write_keys(self, keys: Keys) -> None:
        assert self._key_files is not None
        self._key_files.replace_and_wipe(self._key_name, keys.to_bytes())

    def recover(self) -> None:
        """Complete whatever was interrupted. A store in which nothing was is only read."""
        self._read()
        self.dirty = True
        manifest, keys = self.manifest.to_bytes(), self.keys.to_bytes()
        if manifest != self._found_manifest or keys != self._found_keys or self._strays(self.manifest):
            self.files.settle("")  # what was seen must be durable before anything is done because of it
        if manifest != self._found_manifest:
            self.files.put(MANIFEST, manifest)
            self.files.settle()
        if keys != self._found_keys:
            self._write_keys(self.keys)
        assert self._key_files is not None
        if self._key_files is not self.files and self._key_name + PART in self._key_files.names():
            self._key_files.remove(self._key_name + PART)
            self._key_files.settle()
        self._tidy(self.manifest)
        self._set_times()
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

    def _set_times(self) -> None:
        present = self.files.names()
        folders = [folder for folder in (REMEMBERED, TEMPORARY) if folder in present]
        files = [name for name in (MANIFEST, KEYS, LOCK) if name in present]
        for name in [*files, *self.manifest.files]:
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


def _by_id(entries: list[Sealed]) -> tuple[Sealed, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.id))


def _core(manifest: Manifest) -> tuple[Any, ...]:
    """What a manifest says, whatever the nonces of the places."""
    return manifest.agent, manifest.main, manifest.remembered, {entry.id for entry in manifest.temporary}
