"""One of each: canonical JSON, SHA-256, the hash of a tensor's bits, and the atomic write of a file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def canonical(value: Any) -> str:
    """JSON in one form only: equal values give equal text.

    >>> canonical({"b": 1, "a": [True, None]})
    '{"a":[true,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256(data: bytes | bytearray | memoryview | str) -> str:
    """SHA-256 of bytes, or of text in UTF-8, in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> Path:
    """Write a file so that it has either its old content or the new one, whatever is interrupted.

    With `private` it is readable by its owner alone, whatever the umask, and durable when this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(part, "wb", opener=_private if private else None) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        if private:
            sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)
    return path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _private(path: str, flags: int) -> int:
    fd = os.open(path, flags, 0o600)
    os.fchmod(fd, 0o600)
    return fd
