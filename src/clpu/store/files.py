"""The disk below the store: one folder, and every change to it, one system call at a time.

All calls that can fail go through `Files.call`, so that a test can make any one of them fail.
Names are checked by the caller; no symbolic link is ever followed below the folder.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from clpu.errors import BadStore, Error, StoreFailed, StoreLocked

T = TypeVar("T")

#: The modification time of every file and folder (1980-01-01), so that none shows when a task was learned or forgotten.
TIME = 315_532_800 * 10**9
PART = ".part"
LOCK = "lock"


class Files:
    """A folder and the files in it, by names such as `store.json` or `temporary/1f`.

    `own` says whether the folder itself is ours, so that its time may be set.
    """

    def __init__(self, path: str | os.PathLike[str], *, own: bool = True) -> None:
        self.path = Path(path)
        self.own = own
        self._root: int | None = None
        if os.name != "posix":
            raise StoreFailed("a durable agent needs the file system calls of Linux or macOS")
        self._root = self.call("open", os.open, self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: int | None = None
        self._touched: set[str] = set()
        self.replaced: set[str] = set()

    def call(self, operation: str, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make one system call; the place where tests inject faults."""
        return function(*args, **options)

    # Questions

    def read(self, name: str, size: int | None = None, limit: int = 0) -> bytes:
        """A file's content, which must be `size` bytes long, or at most `limit` if no size is known."""
        with self._folder(name) as (folder, leaf):
            # Without O_NONBLOCK a planted pipe would hold us for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                fd = self.call("open", os.open, leaf, flags, dir_fd=folder)
            except OSError as error:
                raise self._not_plain(error, name) from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise BadStore(f"{self.path / name} is not a plain file")
            if found.st_size != size if size is not None else found.st_size > limit:
                expected = f"{size}" if size is not None else f"at most {limit}"
                raise BadStore(f"{self.path / name} has {found.st_size} bytes, expected {expected}")
            chunks = []
            while chunk := self.call("read", os.read, fd, 1 << 24):
                chunks.append(chunk)
                if sum(map(len, chunks)) > found.st_size:
                    raise BadStore(f"{self.path / name} grows while it is read")
            return b"".join(chunks)
        finally:
            os.close(fd)

    def names(self, folder: str = "") -> list[str]:
        """The names in the folder or in a folder below it, none if that does not exist."""
        try:
            with self._folder(f"{folder}/x" if folder else "x") as (fd, _):
                return sorted(self.call("list", os.listdir, fd))
        except FileNotFoundError:
            return []

    def changed(self, name: str) -> int:
        """When a file or folder says it was changed, in nanoseconds; `""` is the folder itself."""
        with self._folder(name) as (folder, leaf):
            return os.stat(leaf or ".", dir_fd=folder, follow_symlinks=False).st_mtime_ns

    # Changes; they are durable after `settle`.

    def put(self, name: str, content: bytes) -> None:
        """Replace a file in one step: written beside it, flushed, renamed over it."""
        with self._folder(name, make=True) as (folder, leaf):
            part = leaf + PART
            with suppress(FileNotFoundError):  # and never through a link that someone planted
                self.call("unlink", os.unlink, part, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = self.call("open", os.open, part, flags, 0o600, dir_fd=folder)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[self.call("write", os.write, fd, rest) :]
                self.call("utime", os.utime, fd, ns=(TIME, TIME))
                self.call("fsync", _flush, fd)
            finally:
                os.close(fd)
            self.call("rename", os.rename, part, leaf, src_dir_fd=folder, dst_dir_fd=folder)
            self.replaced.add(name)
        self._touch(name)

    def replace_and_wipe(self, name: str, content: bytes) -> None:
        """Replace a file durably, then overwrite the replaced content where it lay on the disk."""
        with self._folder(name) as (folder, leaf):
            try:
                old = self.call("open", os.open, leaf, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                old = None
        try:
            self.put(name, content)
            self.settle()
            # A hard link to the old file is somebody's copy outside the store: not ours to write to.
            if old is not None and (found := os.fstat(old)).st_nlink == 0:
                rest = memoryview(bytes(found.st_size))
                while rest:
                    rest = rest[self.call("wipe", os.write, old, rest) :]
                self.call("fsync", _flush, old)
        finally:
            if old is not None:
                os.close(old)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError), self._folder(name) as (folder, leaf):
            self.call("unlink", os.unlink, leaf, dir_fd=folder)
            self._touch(name)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder, if it is there."""
        with suppress(FileNotFoundError), self._folder(name) as (folder, leaf):
            self.call("rmdir", os.rmdir, leaf, dir_fd=folder)
            self._touched.discard(name)
            self._touch(name)

    def settle(self, *folders: str) -> None:
        """Make all changes durable, and set the times of the changed folders and of those named."""
        self._touched |= set(folders)
        for folder in sorted(self._touched, reverse=True):
            with suppress(FileNotFoundError), self._folder(f"{folder}/" if folder else "") as (fd, _):
                if self.own or folder:
                    self.call("utime", os.utime, fd, ns=(TIME, TIME))
                self.call("fsync", _flush, fd)
        self._touched.clear()

    def set_time(self, name: str) -> None:
        """Give a file the time that all of them bear."""
        with self._folder(name) as (folder, leaf):
            self.call("utime", os.utime, leaf, ns=(TIME, TIME), dir_fd=folder, follow_symlinks=False)
        self._touch(name)

    # One writer at a time

    def lock(self) -> None:
        """Become the one writer, or raise `StoreLocked`; the lock ends with `close` or with the process."""
        import fcntl

        assert self._root is not None
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        new = LOCK not in self.names()
        fd = self.call("open", os.open, LOCK, flags, 0o600, dir_fd=self._root)
        for attempt in range(5):  # a reader that asks whether there is a writer holds the lock for a moment
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 4:
                    os.close(fd)
                    raise StoreLocked(
                        f"{self.path} is open for writing elsewhere; "
                        "wait until that request is done, or close() that agent"
                    ) from None
                time.sleep(0.02)
        self._lock = fd
        if new:
            self.set_time(LOCK)

    def has_writer(self) -> bool:
        """Whether somebody else is the writer; a reader asks, so nothing is made or changed."""
        import fcntl

        try:
            fd = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._root)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    @property
    def locked(self) -> bool:
        """Whether this object is the writer."""
        return self._lock is not None

    def close(self) -> None:
        """Let go of the lock and of the folder."""
        for fd in (self._lock, self._root):
            if fd is not None:
                os.close(fd)
        self._lock = self._root = None

    def __del__(self) -> None:
        if getattr(self, "_root", None) is not None:
            self.close()

    # Inside

    @contextmanager
    def _folder(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder in which a name lives, and the name in it."""
        if self._root is None:
            raise StoreFailed(f"{self.path} was closed; open it again")
        folder, slash, leaf = name.rpartition("/")
        if not slash:
            yield self._root, leaf
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = self.call("open", os.open, folder, flags, dir_fd=self._root)
        except FileNotFoundError:
            if not make:
                raise
            self.call("mkdir", os.mkdir, folder, 0o700, dir_fd=self._root)
            self._touch(folder)
            fd = self.call("open", os.open, folder, flags, dir_fd=self._root)
        except OSError as error:
            raise self._not_plain(error, folder) from None
        try:
            yield fd, leaf
        finally:
            os.close(fd)

    def _touch(self, name: str) -> None:
        self._touched.add(name.rpartition("/")[0])

    def _not_plain(self, error: OSError, name: str) -> Exception:
        import errno

        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK):
            return BadStore(f"{self.path / name} is a link or not what it should be; nothing was read or written")
        return error


def _flush(fd: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync stops at the drive's own cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


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
