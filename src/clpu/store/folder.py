"""Reading the folder behind a durable agent: which files count, and the state that they hold.

Readers take no lock. They look at what changes whenever a request is saved, before and after they read, and read again
if it changed meanwhile; files never change under their names, so what was read once is not read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clpu.errors import BadStore, Error
from clpu.io import sha256
from clpu.state import State
from clpu.store.contents import Part, assemble, check_whole
from clpu.store.files import failures, open_folder
from clpu.store.format import (
    ABOUT,
    HEAD,
    INTENT,
    KEYS,
    LEAVES,
    MASTER,
    MAX_FILE_BYTES,
    MAX_JSON_BYTES,
    OLD_MANIFEST,
    PERMANENT,
    ROOT,
    About,
    check_version,
    is_name,
    is_shard,
    path_of,
)
from clpu.store.keyring import Keyring, Secrets, keys_folder, unwrap
from clpu.store.plan import (
    File,
    Intent,
    StoredState,
    open_permanent,
    permanent_hash,
    read_root,
)
from clpu.store.protection import Unlock
from clpu.store.sealing import unseal

if TYPE_CHECKING:
    from typing_extensions import Self

#: Seconds that a reader waits for a writer that is just changing the folder.
PATIENCE = 5.0
#: Seconds after which a reader asks writers to pause.
STARVING = 0.3
#: Seconds that a writer waits for another one to finish.
WAIT = 5.0


@dataclass(frozen=True)
class Access:
    """The access to a store: where its keys are, what opens them, how long to wait for another writer."""

    keys: str | os.PathLike[str] | None = None
    unlock: Unlock = field(default_factory=Unlock)
    shared_keys: bool = False
    wait: float = WAIT


class Changing(Error):
    """The folder is being changed by a writer; look again."""


@dataclass(frozen=True)
class View:
    """The content of a folder: the files that count, those of an interrupted request, and what does not fit."""

    about: Mapping[str, object]
    keys: Mapping[str, bytes]
    permanent: frozenset[str]
    intent: Intent | None
    committed: bool
    #: Files whose key is not in the keys folder, and keys whose file is not in the store.
    without_key: frozenset[str]
    without_file: frozenset[str]


class Folder:
    """One agent's folder, open for reading."""

    standing: StoredState
    secrets: Secrets
    keyring: Keyring
    #: Whether this process is the one writer.
    write = False
    #: Why this folder can only be read, if that is so.
    read_only_because: str | None = None

    def __init__(self, path: str | os.PathLike[str], access: Access | None = None) -> None:
        self.path = Path(path)
        self.access = access or Access()
        self._head: int | None = None
        self._parts: dict[str, Part] = {}
        self._entries: dict[str, bytes] = {}
        with failures(self.path, "opened"):
            self.files = open_folder(self.path)
            try:
                self.about = self._read_about()
                self._open_keys()
            except BaseException:
                self.close()
                raise

    def _read_about(self) -> About:
        try:
            return About.from_bytes(self.files.read(ABOUT, MAX_JSON_BYTES))
        except FileNotFoundError:
            if OLD_MANIFEST in self.files.names():
                check_version(2, 3, str(self.path))
            raise BadStore(f"{self.path} is not a store; create one with `clpu init {self.path}`") from None

    def _open_keys(self) -> None:
        here = self.about.keys_here
        self.keyring = Keyring(keys_folder(self.path, here, self.access.keys, KEYS), here=here)
        if not self.access.shared_keys:
            self.keyring.check_mode()
        self._master = self.keyring.files.signature(MASTER)
        self.secrets = self.keyring.secrets(self.about.identity, self.access.unlock)

    def _refresh_secrets(self) -> None:
        """Read the master keys again if they were rotated."""
        if self.keyring.files.signature(MASTER) != self._master:
            self._master = self.keyring.files.signature(MASTER)
            self.secrets = self.keyring.secrets(self.about.identity, self.access.unlock)
            self._entries = {}

    @property
    def closed(self) -> bool:
        return self.files.closed

    def close(self) -> None:
        """Let another writer in."""
        self.files.close()
        if hasattr(self, "keyring"):
            self.keyring.close()
        if self._head is not None:
            os.close(self._head)
            self._head = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Reading

    @property
    def is_copy(self) -> bool:
        """Whether the keys belong to a different folder than this one."""
        return not self.keyring.belongs_to(self.files.place)

    def load(self) -> State:
        """Read the state; a reader waits for a writer that is just changing the folder."""
        if self.write:
            with failures(self.path, "read"):
                return self.assemble(self.view())
        start = since = time.monotonic()
        said = ""
        with self._asking_writers_to_pause() as pause:
            while True:
                version: object = None
                try:
                    with failures(self.path, "read"):
                        version = self._version()
                        self._refresh_secrets()
                        state = self.assemble(self.view())
                        if self._version() == version:
                            return state
                except Error as error:
                    moved = self._version() != version
                    # A file that a writer removes while we read is not the same twice.
                    if moved and (isinstance(error, Changing) or str(error) != said):
                        said, since = str(error), time.monotonic()
                    elif not (moved or self.files.has_writer()) or time.monotonic() - since > PATIENCE:
                        raise
                if time.monotonic() - start > STARVING:
                    pause()
                time.sleep(0.005)

    def follow(self) -> bool:
        """Whether the store has moved on since it was read, at the price of one `stat`."""
        try:
            found = os.stat(self.path / HEAD, follow_symlinks=False)  # noqa: PTH116
        except OSError:
            raise BadStore(f"{self.path} is gone, or is not a store any more") from None
        return (found.st_dev, found.st_ino) != self._seen

    def reload(self) -> State:
        """Read the state again, after `follow` said that it has changed; what did not change is not read again."""
        if self.files.moved():
            self.close()
            self.files = open_folder(self.path)
            self.about = self._read_about()
            self._open_keys()
        return self.load()

    def _version(self) -> tuple[object, ...]:
        """Return a mark that changes whenever a request is saved, and before it begins."""
        if self._head is not None:
            os.close(self._head)
            self._head = None
        with failures(self.path, "read"):
            self._head = self.files.hold(HEAD)
            found = [self.files.signature(name) for name in (INTENT, ROOT)]
        head = os.fstat(self._head)
        self._seen = head.st_dev, head.st_ino
        return (*self._seen, *found)

    @contextmanager
    def _asking_writers_to_pause(self) -> Iterator[Callable[[], None]]:
        """A function that asks writers to wait a moment before their next request, until the end of the block."""
        import fcntl

        asked: list[int] = []

        def pause() -> None:
            if not asked:
                asked.append(self.files.hold(ABOUT))
                with suppress(OSError):
                    fcntl.flock(asked[0], fcntl.LOCK_SH | fcntl.LOCK_NB)

        try:
            yield pause
        finally:
            for fd in asked:
                os.close(fd)

    def view(self, strict: bool = True) -> View:
        """Find out which files count; `Changing` if a writer is at work just now."""
        try:
            sealed = self.files.read(INTENT, MAX_FILE_BYTES)
            intent: Intent | None = Intent.unseal(self.secrets, sealed)
        except FileNotFoundError:
            intent = None
        try:
            root = self.files.read(ROOT, MAX_JSON_BYTES)
        except FileNotFoundError:
            raise BadStore(f"{self.path} is damaged: {ROOT} is missing; restore the store from a copy") from None
        about, expected = read_root(root, self.secrets)
        entries = self._entries = self.keyring.scan(self._entries)
        present, permanent = self._scan(LEAVES), self._scan(PERMANENT)
        keyed, committed = set(entries), False
        if intent is not None:
            committed = (intent.root is None or intent.root == sha256(root)) and keyed.issuperset(intent.add)
            if self.is_copy:  # made in the middle of a request that has its keys by now, and not all of its files
                committed = committed and present.issuperset(intent.add)
            elif not committed and not keyed.issuperset(intent.remove):
                raise Changing(f"{self.path} is being changed")
            keyed -= set(intent.remove if committed else intent.add)
            permanent -= set(intent.permanent_remove if committed else intent.permanent_add)
            present -= {*intent.remove} if committed else {*intent.add}
        if permanent_hash(permanent) != expected:
            raise BadStore(
                f"{self.path} is damaged: a file in {PERMANENT} is missing or does not belong there; restore a copy"
            )
        view = View(
            about,
            {name: entries[name] for name in keyed if name in present},
            frozenset(permanent),
            intent,
            committed,
            frozenset(present - keyed),
            frozenset(keyed - present),
        )
        self.read_only_because = self._misfit(view, strict)
        return view

    def _misfit(self, view: View, strict: bool) -> str | None:
        """Why store and keys do not fit together; a writer refuses them."""
        way_out = "Put back what belongs together, or let `clpu adopt` go on with what can be read"
        if self.is_copy:
            return "it is a copy, or was moved or restored: its keys belong to a different folder"
        if view.without_file and strict:
            raise BadStore(
                f"{self.path} is damaged: {len(view.without_file)} files are missing whose keys are there, such as "
                f"{path_of(LEAVES, min(view.without_file))}. {way_out}"
            )
        if view.without_key:
            return (
                f"the keys of {len(view.without_key)} of its files are missing: the keys folder is older or newer than "
                f"the store. {way_out}"
            )
        return None

    def _scan(self, folder: str) -> set[str]:
        found: set[str] = set()
        for shard in filter(is_shard, self.files.names(folder)):
            found.update(name for name in self.files.names(f"{folder}/{shard}") if is_name(name, shard))
        return found

    def assemble(self, view: View) -> State:
        """The state that the files hold."""
        parts = dict(self._read_parts(view))
        before = getattr(self, "standing", None)
        state = assemble(view.about, ((path, part) for path, part in parts.items()), before and before.state)
        files = {part.item: File(path.rpartition("/")[2], path.startswith(PERMANENT)) for path, part in parts.items()}
        check_whole(state)
        self._parts = parts
        self.standing = StoredState(state, files, view.keys)
        return state

    def _read_parts(self, view: View) -> Iterator[tuple[str, Part]]:
        wanted = [path_of(LEAVES, name) for name in view.keys] + [path_of(PERMANENT, name) for name in view.permanent]
        shards: dict[str, list[str]] = {}
        for path in sorted(wanted):
            if path in self._parts:
                yield path, self._parts[path]
            else:
                folder, _, name = path.rpartition("/")
                shards.setdefault(folder, []).append(name)
        for folder, names in shards.items():
            for name, sealed in self.files.read_all(folder, names, MAX_FILE_BYTES):
                path = f"{folder}/{name}"
                # Kept even if a writer is in between, so that a slow reader gets on with each attempt.
                part = self._parts[path] = Part.from_bytes(self.unsealed(path, name, sealed, view.keys), path)
                yield path, part

    def unsealed(self, path: str, name: str, sealed: bytes, keys: Mapping[str, bytes]) -> bytes:
        if path.startswith(LEAVES):
            return unseal(unwrap(self.secrets, name, keys[name]), f"leaf {name}", sealed)
        return open_permanent(self.secrets, f"permanent {name}", sealed)
