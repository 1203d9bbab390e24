"""The disk below the store: one folder, and every change to it, one system call at a time.

All calls that can fail go through `Files.call`, so that a test can make any one of them fail.
Names are checked by the caller; no symbolic link is ever followed below the folder.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from clpu.errors import BadRequest, BadStore, Error, StoreFailed, StoreLocked

T = TypeVar("T")

#: The modification time of every file and folder (1980-01-01), so that none shows when a task was learned or forgotten.
TIME = 315_532_800 * 10**9
#: Whatever the umask says: a store is for its owner alone.
FILE_MODE, FOLDER_MODE = 0o600, 0o700
PART = ".part"
#: Files whose content is of no use after a power cut.
UNFLUSHED = frozenset({"head"})

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a planted pipe would hold us for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Files:
    """A folder and the files in it, by names such as `about.json` or `leaves/1f/1f…`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._root: int | None = None
        if os.name != "posix":
            raise StoreFailed("a durable agent needs the file system calls of Linux or macOS")
        self._root = self.call("open", os.open, self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.locked = False
        self._touched: set[str] = set()
        self.replaced: set[str] = set()

    def call(self, operation: str, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make one system call; the place where tests inject faults."""
        return function(*args, **options)

    # Questions

    def read(self, name: str, limit: int) -> bytes:
        """A file's content, of at most `limit` bytes."""
        with self._folder(name) as (folder, leaf):
            return self._read(folder, leaf, name, limit)

    def read_all(self, folder: str, names: list[str], limit: int) -> Iterator[tuple[str, bytes]]:
        """The contents of many files in one folder."""
        with self._folder(f"{folder}/x") as (fd, _):
            for name in names:
                yield name, self._read(fd, name, f"{folder}/{name}", limit)

    def _read(self, folder: int, leaf: str, name: str, limit: int) -> bytes:
        try:
            fd = self.call("open", os.open, leaf, _READ, dir_fd=folder)
        except OSError as error:
            raise self._not_plain(error, name) from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise BadStore(f"{self.path / name} is not a plain file")
            if found.st_size > limit:
                raise BadStore(f"{self.path / name} has {found.st_size} bytes, expected at most {limit}")
            content = self.call("read", os.read, fd, found.st_size + 1)
            while chunk := self.call("read", os.read, fd, 1 << 24) if 0 < len(content) < found.st_size else b"":
                content += chunk
            if len(content) > found.st_size:
                raise BadStore(f"{self.path / name} grows while it is read")
            return content
        finally:
            os.close(fd)

    def names(self, folder: str = "") -> list[str]:
        """The names in the folder or in a folder below it, none if that does not exist."""
        try:
            # Opened anew for each listing: on btrfs a descriptor does not show names that are newer than itself.
            with self._folder(f"{folder or '.'}/x") as (fd, _):
                return sorted(self.call("list", os.listdir, fd))
        except FileNotFoundError:
            return []

    def about(self, name: str) -> os.stat_result:
        """Return the file system's record of a file or folder; `""` is the folder itself."""
        with self._folder(name) as (folder, leaf):
            return os.stat(leaf or ".", dir_fd=folder, follow_symlinks=False)

    def hold(self, name: str) -> int:
        """A descriptor of a file: as long as it is open, no other file has the same inode."""
        return self.call("open", os.open, name, _READ, dir_fd=self._root)

    def signature(self, name: str) -> tuple[int, ...]:
        """Identify a file, so that one of the same name that replaced it differs; empty if there is none."""
        try:
            found = self.about(name)
        except FileNotFoundError:
            return ()
        return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode of the folder: no copy of it has the same."""
        found = self.about("")
        return found.st_dev, found.st_ino

    def moved(self) -> bool:
        """Whether the path names a different folder by now."""
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self.place

    # Changes; they are durable after `settle`.

    def put(self, name: str, content: bytes, *, wipe: bool = False) -> None:
        """Replace a file in one step: written next to it, flushed, renamed over it.

        With `wipe`, the replaced content is then overwritten in place on the disk, and so is what a failure leaves.
        """
        self.prepare(name, content, wipe=wipe)
        self.install(name, wipe=wipe)

    def prepare(self, name: str, content: bytes, *, wipe: bool = False) -> None:
        """Write a file next to the one that `install` will replace, so that this needs no more space."""
        with self._folder(name, make=True) as (folder, leaf):
            part = leaf + PART
            self._unlink(folder, part, wipe)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = self.call("open", os.open, part, flags, FILE_MODE, dir_fd=folder)
            try:
                os.fchmod(fd, FILE_MODE)
                rest = memoryview(content)
                while rest:
                    rest = rest[self.call("write", os.write, fd, rest) :]
                self.call("utime", os.utime, fd, ns=(TIME, TIME))
                if name not in UNFLUSHED:
                    self.call("fsync", _flush, fd)
            finally:
                os.close(fd)

    def install(self, name: str, *, wipe: bool = False) -> None:
        """Rename a file that was prepared over the one that it replaces."""
        with self._folder(name) as (folder, leaf), self._wiping(folder, leaf) if wipe else nullcontext():
            self.call("rename", os.rename, leaf + PART, leaf, src_dir_fd=folder, dst_dir_fd=folder)
            self.replaced.add(name)
            self._touch(name)

    def remove(self, name: str, *, wipe: bool = False) -> None:
        """Remove a file, if it exists; with `wipe`, its content is first overwritten in place on the disk."""
        with suppress(FileNotFoundError), self._folder(name) as (folder, leaf):
            self._unlink(folder, leaf, wipe)
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
                self.call("utime", os.utime, fd, ns=(TIME, TIME))
                self.call("fsync", _flush, fd)
        self._touched.clear()

    def tidy(self, name: str) -> None:
        """Give a file or folder the time and the mode that all of them have; `""` is the folder itself."""
        with self._folder(name) as (folder, leaf):
            found = os.stat(leaf or ".", dir_fd=folder, follow_symlinks=False)
            is_folder = stat.S_ISDIR(found.st_mode)
            mode = FOLDER_MODE if is_folder else FILE_MODE
            if not is_folder and (found.st_nlink > 1 or not stat.S_ISREG(found.st_mode)):
                return  # it has another name outside, or is not ours
            if stat.S_IMODE(found.st_mode) != mode:
                self.call("chmod", os.chmod, leaf or ".", mode, dir_fd=folder)
                self._touch(name)
            if found.st_mtime_ns != TIME:
                if is_folder:
                    self._touched.add(name)
                else:
                    self.call("utime", os.utime, leaf, ns=(TIME, TIME), dir_fd=folder, follow_symlinks=False)
                    self._touch(name)

    def _unlink(self, folder: int, leaf: str, wipe: bool) -> None:
        with suppress(FileNotFoundError):  # and never through a link that someone planted
            if wipe:
                self._overwrite(folder, leaf)
            self.call("unlink", os.unlink, leaf, dir_fd=folder)

    def _overwrite(self, folder: int, leaf: str) -> None:
        try:
            fd = self.call("open", os.open, leaf, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # planted: nothing of ours
                return
            raise
        try:
            self._zero(fd, 1)
        finally:
            os.close(fd)

    @contextmanager
    def _wiping(self, folder: int, leaf: str) -> Iterator[None]:
        """Overwrite the old content of a file that is replaced within the block."""
        try:
            old = self.call("open", os.open, leaf, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            yield
            return
        try:
            yield
            self.settle()
            self._zero(old, 0)
        finally:
            os.close(old)

    def _zero(self, fd: int, links: int) -> None:
        found = os.fstat(fd)
        # A hard link to the file is somebody's copy outside the store: not ours to write to.
        if found.st_nlink == links and stat.S_ISREG(found.st_mode):
            rest = memoryview(bytes(found.st_size))
            while rest:
                rest = rest[self.call("wipe", os.write, fd, rest) :]
            self.call("fsync", _flush, fd)

    # One writer at a time

    def lock(self, wait: float = 0.0) -> None:
        """Become the one writer, or raise `StoreLocked`; the lock ends with `close` or with the process.

        It is on the folder itself, so that no file can be deleted to get around it.
        """
        import fcntl

        assert self._root is not None
        deadline = time.monotonic() + max(wait, 0.1)
        while True:
            try:
                fcntl.flock(self._root, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    waited = f" (waited {wait:g} s; --wait SECONDS waits longer)" if wait else ""
                    raise StoreLocked(
                        f"another process is writing to {self.path}{waited}; "
                        "try again when its request is done, or close() that agent"
                    ) from None
                time.sleep(0.02)
        self.locked = True

    def close(self) -> None:
        """Let go of the lock and of the folder."""
        if self._root is not None:
            os.close(self._root)
        self._root, self.locked = None, False

    def has_writer(self) -> bool:
        """Whether another process is the writer; a reader asks, and nothing is made or changed."""
        import fcntl

        assert self._root is not None
        try:
            fcntl.flock(self._root, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._root, fcntl.LOCK_UN)
        return False

    @property
    def closed(self) -> bool:
        return self._root is None

    def __del__(self) -> None:
        if getattr(self, "_root", None) is not None:
            self.close()

    # Inside

    @contextmanager
    def _folder(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder in which a name lives, and the name in it."""
        if self._root is None:
            raise StoreFailed(f"{self.path} was closed; open it again")
        *folders, leaf = name.split("/")
        fd, opened = self._root, None
        try:
            for depth, folder in enumerate(folders):
                fd = self._enter(fd, folder, "/".join(folders[: depth + 1]), make)
                if opened is not None:
                    os.close(opened)
                opened = fd
            yield fd, leaf
        finally:
            if opened is not None:
                os.close(opened)

    def _enter(self, parent: int, folder: str, name: str, make: bool) -> int:
        try:
            return self.call("open", os.open, folder, _FOLDER, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            raise self._not_plain(error, name) from None
        self.call("mkdir", os.mkdir, folder, FOLDER_MODE, dir_fd=parent)
        self._touch(name)
        fd = self.call("open", os.open, folder, _FOLDER, dir_fd=parent)
        os.fchmod(fd, FOLDER_MODE)
        return fd

    def _touch(self, name: str) -> None:
        self._touched.add(name.rpartition("/")[0])

    def _not_plain(self, error: OSError, name: str) -> Exception:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK):
            return BadStore(f"{self.path / name} is a link or not what it should be; nothing was read or written")
        return error


def open_folder(path: Path) -> Files:
    """The folder of a store; `BadStore` if there is none."""
    try:
        return Files(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadStore(f"there is no store at {path}; create one with `clpu init {path}`") from None


def make_folders(folder: Path, made: list[Path]) -> None:
    """Make a folder and its missing parents, each durable; those that were made are added to `made`."""
    for path in [*reversed(folder.absolute().parents), folder.absolute()]:
        if path.is_dir():
            continue
        with suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
            made.append(path)
            path.chmod(FOLDER_MODE)
            fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _flush(fd)
            finally:
                os.close(fd)


def refuse_inside(store: Path, path: Path) -> None:
    """Refuse a place in the store for a file that is something else: a forget would not reach it there."""
    if store.resolve() in (path.resolve(), *path.resolve().parents):
        raise BadRequest(f"{path} is inside the store, which holds nothing but itself; choose a different path")
    if path.is_dir():
        raise BadRequest(f"{path} is a folder; give the path of a file")


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
