"""Reading files and archives from outside without trusting them.

Nothing is ever unpacked to disk: wanted members are read into memory, each up to the size it is known to
have, so neither a path nor a size inside an archive can do harm.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from clpu.data.catalog import RawFile
from clpu.data.errors import DamagedFile, UnsafeFile
from clpu.errors import Error

_MOST_MEMBERS = 10_000
_SLACK = 64 * 2**20  # for whatever else an archive holds: read-mes, scripts, names of classes


def read_file(path: Path, file: RawFile) -> bytes:
    """The content of a file, unpacked if its name ends in `.gz`, and never more than `file.limit` bytes."""
    with _damage_named(str(path)), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return _bounded(stream, file, str(path))


def read_tar_gz(path: Path, wanted: Iterable[RawFile]) -> dict[str, bytes]:
    """Those of the wanted files that a gzipped tar archive holds, in any folder, by their plain name."""
    with _damage_named(str(path)), gzip.open(path) as stream:
        return read_tar(stream, wanted, str(path))


def read_tar(stream: IO[bytes] | gzip.GzipFile, wanted: Iterable[RawFile], origin: str) -> dict[str, bytes]:
    """Read the wanted files from a stream that is a tar archive; `origin` names it in errors.

    A name ending in `.gz` inside the archive stands for its unpacked content.
    """
    by_name = {file.name: file for file in wanted}
    limited = _Limited(stream, sum(file.limit for file in by_name.values()) + _SLACK, origin)
    found: dict[str, bytes] = {}
    with _damage_named(origin), tarfile.open(fileobj=limited, mode="r|") as archive:
        for count, member in enumerate(archive):
            inside = f"{member.name!r} in {origin}"
            path = PurePosixPath(member.name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts:
                raise UnsafeFile(f"{inside} points outside the archive: the whole archive is refused")
            if count >= _MOST_MEMBERS:
                raise UnsafeFile(f"{origin} has more than {_MOST_MEMBERS:,} members: refused")
            plain = path.name.removesuffix(".gz")
            file = by_name.get(plain)
            if file is None or member.isdir():
                continue
            if not member.isreg():
                raise UnsafeFile(f"{inside} is a link or a device, not a file: the whole archive is refused")
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
        while limited.read(io.DEFAULT_BUFFER_SIZE):  # to the end, where gzip keeps its own checksum
            pass
    return found


class _Limited(io.RawIOBase):
    """A stream that refuses to be a decompression bomb: it gives out only so many bytes."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, allowance: int, origin: str) -> None:
        self._stream, self._allowance, self._origin = stream, allowance, origin
        self._asked_at_end = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._allowance -= len(data)
        if self._allowance < 0:
            raise UnsafeFile(f"{self._origin} unpacks to far more than its data set: refused")
        if not data and size:
            # To skip a member that claims an exabyte, tarfile would ask an ended stream for ever.
            self._asked_at_end += 1
            if self._asked_at_end > 10:
                raise DamagedFile(f"{self._origin} is truncated: it ends before what it announces")
        return data


def _bounded(stream: IO[bytes] | gzip.GzipFile, file: RawFile, origin: str) -> bytes:
    data = stream.read(file.limit + 1)
    if len(data) > file.limit:
        raise UnsafeFile(f"{origin} holds more than the {file.limit:,} bytes that {file.name} has: refused")
    return data


@contextmanager
def _damage_named(origin: str) -> Iterator[None]:
    """Turn what the standard library says about a broken or unreadable file into one typed error."""
    try:
        yield
    except Error:
        raise
    except Exception as error:  # hostile headers make the standard library raise many kinds
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DamagedFile(f"{origin} cannot be read: truncated or damaged ({reason})") from error
