"""The cache of verified data sets: one folder each, four `.npy` files and a manifest.

A folder appears by one rename when all of it is written and verified, so it is whole or not there. Arrays are
memory-mapped: processes share the pages, and loading copies nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from clpu.data.cache import cache_folder
from clpu.data.catalog import PARTS, Known
from clpu.data.errors import CacheFailed, DamagedFile, NotHere, WrongChecksum
from clpu.data.formats import Arrays, digest

_MANIFEST = "manifest.json"


def place(known: Known, root: str | Path | None = None) -> Path:
    """The folder in which the data set lies, or would lie."""
    return cache_folder(root) / "data" / known.name


def read(known: Known, root: str | Path | None = None) -> Arrays:
    """The data set's arrays, memory-mapped and read-only.

    Files whose size and time are as when they were last verified are trusted; others are verified again.
    """
    folder = place(known, root)
    if not folder.is_dir():
        raise NotHere(f"{known.name} is not in the cache ({folder.parent}); run: clpu data get {known.name}")
    if _read_manifest(folder).get("stamps") != _stamps(folder):
        check(known, root)
        with suppress(OSError):  # a shared cache may be read-only; then the next load verifies again
            _write_manifest(known, folder, str(_read_manifest(folder).get("origin", "unknown")))
    return {part: _map(known, folder, part) for part in PARTS}


def check(known: Known, root: str | Path | None = None) -> None:
    """Compare every byte of the stored data set with the pinned checksums."""
    folder = place(known, root)
    if not folder.is_dir():
        raise NotHere(f"{known.name} is not in the cache ({folder.parent}); run: clpu data get {known.name}")
    for part in PARTS:
        actual = digest(_map(known, folder, part))
        if actual != known.checksums[part]:
            raise WrongChecksum(
                f"{folder / part}.npy has SHA-256 {actual}, expected {known.checksums[part]};"
                f" run: clpu data get {known.name}"
            )


def origin(known: Known, root: str | Path | None = None) -> str:
    """Where the stored data set came from, or an empty text if it is not here."""
    return str(_read_manifest(place(known, root)).get("origin", ""))


def verify(known: Known, arrays: Arrays, came_from: str) -> None:
    """Refuse arrays that are not, bit for bit, the official data set in canonical form."""
    for part, shape in known.shapes.items():
        array = arrays[part]
        kind = np.uint8 if part.endswith("_x") else np.int64
        if array.shape != shape or array.dtype != kind:
            raise DamagedFile(f"{came_from}: {part} is {array.dtype} {array.shape}, expected {np.dtype(kind)} {shape}")
        actual = digest(array)
        if actual != known.checksums[part]:
            raise WrongChecksum(
                f"{came_from}: {part} of {known.name} has SHA-256 {actual}, expected {known.checksums[part]};"
                " it reads well but is not the official data, and was not stored"
            )


def put(known: Known, arrays: Arrays, came_from: str, root: str | Path | None = None) -> Path:
    """Verify a data set and store it in one step; on any failure the cache stays as it was."""
    verify(known, arrays, came_from)
    final = place(known, root)
    with scratch(known, root) as temporary, cache_errors(final, known.bytes):
        for part in PARTS:
            with (temporary / f"{part}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(arrays[part]), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        _write_manifest(known, temporary, came_from)
        _swap(temporary, final)
    return final


def remove(known: Known, root: str | Path | None = None) -> None:
    """Take the data set out of the cache."""
    folder = place(known, root)
    with cache_errors(folder):
        if folder.exists():
            # Renamed first: a removal that is cut short must not leave half a data set behind.
            doomed = _beside(folder)
            folder.rename(doomed)
            shutil.rmtree(doomed)


@contextmanager
def locked(known: Known, root: str | Path | None = None) -> Iterator[bool]:
    """Hold the data set's lock, so that two who ask at once fetch once; tells whether it had to wait."""
    base = place(known, root).parent
    with cache_errors(base):
        base.mkdir(parents=True, exist_ok=True)
        lock = FileLock(base / f".{known.name}.lock")
        try:
            lock.acquire(timeout=0)
            waited = False
        except Timeout:
            lock.acquire()
            waited = True
    try:
        # Whatever a killed process left half-written; nobody else writes while we hold the lock.
        for leftover in base.glob(f".{known.name}-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield waited
    finally:
        lock.release()


@contextmanager
def scratch(known: Known, root: str | Path | None = None) -> Iterator[Path]:
    """A temporary folder on the cache's own disk, gone afterwards."""
    folder = _beside(place(known, root))
    with cache_errors(folder.parent, known.bytes):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cache_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn the operating system's refusals into one typed error that names the path and says what to do."""
    try:
        yield
    except CacheFailed:
        raise
    except OSError as error:
        space = f" about {needed / 1e6:,.0f} MB are needed;" if needed else ""
        raise CacheFailed(
            f"cannot use the cache at {path}: {error.strerror or error};{space}"
            " free some space, or choose another folder with CLPU_CACHE"
        ) from error


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-{uuid.uuid4().hex}.partial")


def _swap(new: Path, final: Path) -> None:
    old = _beside(final)
    replacing = final.exists()
    if replacing:
        final.rename(old)
    try:
        new.rename(final)
    except OSError:
        if replacing:
            old.rename(final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _map(known: Known, folder: Path, part: str) -> NDArray[Any]:
    path = folder / f"{part}.npy"
    kind = np.uint8 if part.endswith("_x") else np.int64
    advice = f"run: clpu data get {known.name}"
    try:
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except PermissionError as error:
        raise CacheFailed(f"cannot read {path}: {error.strerror}") from error
    except (OSError, ValueError, EOFError) as error:
        raise DamagedFile(f"{path} is missing, half-written or damaged ({error}); {advice}") from error
    if array.dtype != kind or array.shape != known.shapes[part] or not array.flags.c_contiguous:
        raise DamagedFile(
            f"{path} holds {array.dtype} {array.shape}, expected {np.dtype(kind)} {known.shapes[part]}; {advice}"
        )
    return array


def _stamps(folder: Path) -> dict[str, list[int]]:
    stamps = {}
    for part in PARTS:
        with suppress(OSError):
            status = (folder / f"{part}.npy").stat()
            stamps[part] = [status.st_size, status.st_mtime_ns]
    return stamps


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _write_manifest(known: Known, folder: Path, came_from: str) -> None:
    manifest = {
        "name": known.name,
        "origin": came_from,
        "sha256": dict(known.checksums),
        "stamps": _stamps(folder),
    }
    temporary = folder / f".{_MANIFEST}.{uuid.uuid4().hex}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / _MANIFEST)
