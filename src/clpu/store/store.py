"""The folder behind a durable agent: how a request becomes durable, and how an interrupted one is completed.

A request is saved in this order, each step durable before the next: an intent that names the files to come and to go;
the new files; their keys; the root, if anything permanent changes (from here on the request is in); old keys are
overwritten and removed, old files removed; a new head, by which readers notice, and the intent away. A request that
only forgets is in as soon as its intent is. Whatever is interrupted, the intent says how to complete or to undo it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace

from clpu.errors import BadKeys, StoreFailed
from clpu.state import State
from clpu.store.files import PART, TIME, failures
from clpu.store.folder import Access, Folder, View
from clpu.store.format import (
    ABOUT,
    HEAD,
    INTENT,
    LEAVES,
    MASTER,
    MAX_FILE_BYTES,
    MAX_JSON_BYTES,
    PERMANENT,
    PLACE,
    ROOT,
    is_name,
    is_shard,
    path_of,
)
from clpu.store.keyring import remove_empty, unwrap
from clpu.store.plan import (
    File,
    StoredState,
    StorePlan,
    make_plan,
    open_permanent,
    read_root,
    root_bytes,
)
from clpu.store.sealing import seal_always

#: Seconds that a writer waits for a starving reader.
COURTESY = 1.0


class Store(Folder):
    """One agent's folder, open for reading or, with `write`, for writing."""

    def __init__(self, path: str | os.PathLike[str], access: Access | None = None, *, write: bool) -> None:
        super().__init__(path, access)
        self.write = write
        self.dirty = False
        if write:
            try:
                with failures(self.path, "opened"):
                    self._become_writer()
            except BaseException:
                self.close()
                raise

    def _become_writer(self) -> None:
        if self.is_copy:
            raise BadKeys(
                f"{self.path} is a copy, or was moved or restored: its keys belong to a different folder, so it can "
                "only be read. Make an independent store of it with `clpu clone`, or, if it replaces the one that the "
                "keys belong to, `clpu adopt` it"
            )
        self.files.lock(self.access.wait)
        if self.files.moved():
            raise StoreFailed(f"{self.path} was replaced while it was waited for; open it again")
        self.keyring.files.lock(self.access.wait)
        if self.keyring.files.moved():
            raise StoreFailed(f"the keys of {self.path} were replaced while they were waited for; open it again")
        self.secrets = self.keyring.secrets(
            self.about.identity, self.access.unlock
        )  # another writer may have rotated them
        self.recover()
        if len(self.secrets.wrapping) > 1:
            self.finish_rotation()

    # Writing

    def commit(self, state: State) -> None:
        """Make a new state durable. If this raises, `standing.state` is the one that is saved, old or new.

        A `StoreFailed` after the point of no return says that the request is saved.
        """
        with failures(self.path, "written"):
            if self.dirty:
                before = self.standing
                self.recover()
                self.assemble(self.view())
                if self.standing.files != before.files:
                    raise StoreFailed(f"{self.path} holds a different state than this agent; open it again")
                self.standing = before
            plan = make_plan(self.standing, state, self.secrets)
            self.files.replaced.clear()
            self.keyring.files.replaced.clear()
            try:
                self._wait_for_starving_readers()
                self._carry_out(plan)
                self.standing = self._after(plan)
            except BaseException as error:
                saved = self._settle_failure(plan)
                if saved:
                    self.standing = self._after(plan)
                if isinstance(error, OSError):
                    raise self._failed(error, saved) from error
                raise

    def _after(self, plan: StorePlan) -> StoredState:
        gone = {*plan.intent.remove, *plan.intent.permanent_remove}
        self._entries = {name: entry for name, entry in self._entries.items() if name not in gone}
        return StoredState(plan.state, plan.files, self._entries)

    def _failed(self, error: OSError, saved: bool) -> StoreFailed:
        outcome = (
            "The request itself is saved; what is left to do is done when the store is next opened"
            if saved
            else "Nothing was changed: what was to be forgotten is still there"
        )
        failed = StoreFailed(f"{self.path} could not be written: {error.strerror or error}. {outcome}")
        failed.errno = error.errno
        return failed

    def _carry_out(self, plan: StorePlan) -> None:
        intent = plan.intent
        self.files.prepare(HEAD, os.urandom(32))  # a full disk shows before the request is in, not after
        self.files.put(INTENT, intent.seal(self.secrets))
        self.files.settle()
        for path, content in plan.contents.items():
            self.files.put(path, content)
        self.files.settle()
        self._entries = {**self._entries, **self.keyring.put(self.secrets, plan.new_keys)}
        if plan.root is not None:
            self.files.put(ROOT, plan.root)
            self.files.settle()
        self._finish(intent.remove, intent.permanent_remove, prepared=True)

    def _finish(self, keyed: tuple[str, ...], permanent: tuple[str, ...], prepared: bool = False) -> None:
        """Remove files and their keys, the keys first; then let readers know, and remove the intent."""
        self.keyring.destroy(keyed)
        for folder, names in ((LEAVES, keyed), (PERMANENT, permanent)):
            for name in names:
                self.files.remove(path_of(folder, name))
            if names:
                remove_empty(self.files, folder, {name[:2] for name in names})
        self.keyring.files.settle()
        self.files.settle()
        if not prepared:
            self.files.prepare(HEAD, os.urandom(32))
        self.files.install(HEAD)
        self.files.remove(INTENT)
        self.files.settle()

    def _settle_failure(self, plan: StorePlan) -> bool:
        """Whether the request is in; completes or clears what was begun, as far as the disk allows."""
        self.dirty = True
        done = self.files.replaced, self.keyring.files.replaced
        keys = {path_of("", name) for name in plan.intent.add}
        # If the disk cannot be read, what we did decides.
        saved = INTENT in done[0] and keys <= done[1] and (plan.root is None or ROOT in done[0])
        with suppress(BaseException):
            committed = self.recover()
            saved = saved if committed is None else committed
        return saved

    def recover(self) -> bool | None:
        """Complete or undo whatever was interrupted; whether it was completed, `None` if there was nothing.

        A store in which nothing was interrupted is only read.
        """
        self.dirty = True
        view = self.view()
        if self.read_only_because is not None:
            raise BadKeys(f"{self.path}: {self.read_only_because}")
        self.resolve(view)
        self._tidy()
        if HEAD not in self.files.names():
            self.files.put(HEAD, os.urandom(32))
            self.files.settle()
        self.dirty = False
        return None if view.intent is None else view.committed

    def resolve(self, view: View) -> None:
        """Complete the request that was interrupted, if any, or undo it."""
        intent = view.intent
        if intent is not None:
            # What was seen must be durable before anything is done because of it.
            self.files.settle("", *self._folders(LEAVES), *self._folders(PERMANENT))
            self.keyring.files.settle("", *filter(is_shard, self.keyring.files.names()))
            if view.committed:
                self._finish(intent.remove, intent.permanent_remove)
            else:
                self._finish(intent.add, intent.permanent_add)

    def _folders(self, folder: str) -> list[str]:
        """The folders of leaves, and the folder of these folders."""
        top = [folder] if folder in self.files.names() else []
        return top + [f"{folder}/{shard}" for shard in self.files.names(folder) if is_shard(shard)]

    def _tidy(self) -> None:
        """Remove what interrupted writes left, and correct times and modes."""
        self.keyring.clear_parts()
        folders = [*self._folders(LEAVES), *self._folders(PERMANENT)]
        for name in self.strays():
            self.files.remove(name)
        for folder in (LEAVES, PERMANENT):
            if folder in folders:
                empty = [
                    f.rpartition("/")[2] for f in folders if f.startswith(f"{folder}/") and not self.files.names(f)
                ]
                remove_empty(self.files, folder, empty)
        keys = self.keyring.files
        shards = [shard for shard in keys.names() if is_shard(shard)]
        remove_empty(keys, "", [shard for shard in shards if not keys.names(shard)])
        # A copy that lost its times lost that of this file too, which is never written again.
        lost = self.files.about(ABOUT).st_mtime_ns != TIME
        tops = (self.files, folders, {ABOUT, HEAD, ROOT}), (keys, shards, {MASTER, PLACE})
        for files, inside, own in tops:  # what is not ours is left alone
            found = [f"{folder}/{name}" for folder in inside if lost for name in files.names(folder)]
            found = [path for path in found if is_name(*reversed(path.split("/")[-2:]))]
            for name in ["", *inside, *(own & {*files.names()}), *found]:
                with suppress(FileNotFoundError):
                    files.tidy(name)
            files.settle()

    def strays(self) -> list[str]:
        """Our own files that an interrupted write left."""
        ours = {ABOUT, HEAD, ROOT, INTENT}
        found = [name for name in self.files.names() if name.removesuffix(PART) in ours and name.endswith(PART)]
        for folder in [*self._folders(LEAVES), *self._folders(PERMANENT)]:
            shard = folder.partition("/")[2]
            for name in self.files.names(folder) if shard else []:
                if name.endswith(PART) and is_name(name.removesuffix(PART), shard):
                    found.append(f"{folder}/{name}")
        return found

    def finish_rotation(self) -> None:
        """Write every wrapped key, every permanent file and the root anew, then drop the old master keys."""
        entries = self.keyring.scan({})
        for name, entry in entries.items():
            self.keyring.put(self.secrets, {name: unwrap(self.secrets, name, entry)})
        for name in sorted(self._scan(PERMANENT)):
            path, label = path_of(PERMANENT, name), f"permanent {name}"
            content = open_permanent(self.secrets, label, self.files.read(path, MAX_FILE_BYTES))
            self.files.put(path, seal_always(self.secrets.permanent[-1], label, content))
        about, _ = read_root(self.files.read(ROOT, MAX_JSON_BYTES), self.secrets)
        self.files.put(ROOT, root_bytes(about, [File(name, True) for name in self._scan(PERMANENT)], self.secrets))
        self.files.settle()
        last = replace(self.secrets, permanent=self.secrets.permanent[-1:], wrapping=self.secrets.wrapping[-1:])
        self.keyring.put_secrets(last, self.access.unlock)
        self.secrets, self._entries = last, self.keyring.scan({})
        self.files.put(HEAD, os.urandom(32))
        self.files.settle()
        if hasattr(self, "standing"):
            self.standing = replace(self.standing, keys=self._entries)

    def _wait_for_starving_readers(self) -> None:
        """Let a reader that found no quiet moment read, but never for long: it may have been stopped."""
        import fcntl

        fd = self.files.hold(ABOUT)
        try:
            deadline = time.monotonic() + COURTESY
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except OSError:
                    time.sleep(0.01)
        finally:
            os.close(fd)
