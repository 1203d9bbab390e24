"""The cache of verified data sets: one folder each, four `.npy` files, or six with people, and a manifest.

A folder appears by one rename when all of it is written and verified, so it is complete or absent. Arrays are
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
from clpu.data.catalog import DatasetSpec
from clpu.data.errors import CacheFailed, DamagedFile, NotCached, WrongChecksum
from clpu.data.formats import Arrays, digest

_MANIFEST = "manifest.json"


def place(spec: DatasetSpec, root: str | Path | None = None) -> Path:
    """Return the data set's folder, whether or not it exists."""
    return cache_folder(root) / "data" / spec.name


def read(spec: DatasetSpec, root: str | Path | None = None) -> Arrays:
    """Map the data set's arrays into memory, read-only.

    Files whose size and modification time have not changed since they were verified are trusted; the others are
    verified again.
    """
    folder = place(spec, root)
    if not folder.is_dir():
        raise NotCached(f"{spec.name} is not in the cache ({folder.parent}); run: clpu data get {spec.name}")
    if _read_manifest(folder).get("stamps") != _stamps(spec, folder):
        check(spec, root)
        with suppress(OSError):  # a shared cache may be read-only; the next load then verifies it again
            _write_manifest(spec, folder, str(_read_manifest(folder).get("origin", "unknown")))
    return {part: _map(spec, folder, part) for part in spec.shapes}


def check(spec: DatasetSpec, root: str | Path | None = None) -> None:
    """Compare every byte of the cached data set with the pinned checksums."""
    folder = place(spec, root)
    if not folder.is_dir():
        raise NotCached(f"{spec.name} is not in the cache ({folder.parent}); run: clpu data get {spec.name}")
    for part in spec.shapes:
        actual = digest(_map(spec, folder, part))
        if actual != spec.checksums[part]:
            raise WrongChecksum(
                f"{folder / part}.npy has SHA-256 {actual}, expected {spec.checksums[part]};"
                f" run: clpu data get {spec.name}"
            )


def origin(spec: DatasetSpec, root: str | Path | None = None) -> str:
    """Return where the cached data set came from, or "" if it is not cached."""
    return str(_read_manifest(place(spec, root)).get("origin", ""))


def verify(spec: DatasetSpec, arrays: Arrays, came_from: str) -> None:
    """Refuse arrays that are not, bit for bit, the official data set in canonical form."""
    for part, shape in spec.shapes.items():
        array = arrays[part]
        kind = spec.type_of(part)
        if array.shape != shape or array.dtype != kind:
            raise DamagedFile(f"{came_from}: {part} is {array.dtype} {array.shape}, expected {kind} {shape}")
        actual = digest(array)
        if actual != spec.checksums[part]:
            raise WrongChecksum(
                f"{came_from}: {part} of {spec.name} has SHA-256 {actual}, expected {spec.checksums[part]};"
                " it is readable but not the official data, and was not cached"
            )


def put(spec: DatasetSpec, arrays: Arrays, came_from: str, root: str | Path | None = None) -> Path:
    """Verify a data set and add it to the cache atomically; on failure the cache is unchanged."""
    verify(spec, arrays, came_from)
    final = place(spec, root)
    with scratch(spec, root) as temporary, cache_errors(final, spec.bytes):
        for part in spec.shapes:
            with (temporary / f"{part}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(arrays[part]), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        _write_manifest(spec, temporary, came_from)
        _swap(temporary, final)
    return final


def remove(spec: DatasetSpec, root: str | Path | None = None) -> None:
    """Remove the data set from the cache."""
    folder = place(spec, root)
    with cache_errors(folder):
        if folder.exists():
            # Renamed first: an interrupted removal must not leave half a data set behind.
            doomed = _sibling(folder)
            folder.rename(doomed)
            shutil.rmtree(doomed)


@contextmanager
def locked(spec: DatasetSpec, root: str | Path | None = None) -> Iterator[bool]:
    """Hold the data set's lock, so that two processes download it only once; yields whether it had to wait."""
    base = place(spec, root).parent
    with cache_errors(base):
        base.mkdir(parents=True, exist_ok=True)
        lock = FileLock(base / f".{spec.name}.lock")
        try:
            lock.acquire(timeout=0)
            waited = False
        except Timeout:
            lock.acquire()
            waited = True
    try:
        # Half-written folders of killed processes: nobody else writes while we hold the lock.
        for leftover in base.glob(f".{spec.name}-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield waited
    finally:
        lock.release()


@contextmanager
def scratch(spec: DatasetSpec, root: str | Path | None = None) -> Iterator[Path]:
    """Create a temporary folder on the same disk as the cache; removed afterwards."""
    folder = _sibling(place(spec, root))
    with cache_errors(folder.parent, spec.bytes):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cache_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn OSError into one typed error that names the path and says what to do."""
    try:
        yield
    except CacheFailed:
        raise
    except OSError as error:
        space = f" about {needed / 1e6:,.0f} MB are needed;" if needed else ""
        raise CacheFailed(
            f"cannot use the cache at {path}: {error.strerror or error};{space}"
            " free some space, or choose a different folder with CLPU_CACHE"
        ) from error


def _sibling(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-{uuid.uuid4().hex}.partial")


def _swap(new: Path, final: Path) -> None:
    old = _sibling(final)
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


def _map(spec: DatasetSpec, folder: Path, part: str) -> NDArray[Any]:
    path = folder / f"{part}.npy"
    kind = spec.type_of(part)
    advice = f"run: clpu data get {spec.name}"
    try:
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except PermissionError as error:
        raise CacheFailed(f"cannot read {path}: {error.strerror}") from error
    except (OSError, ValueError, EOFError) as error:
        raise DamagedFile(f"{path} is missing, half-written or damaged ({error}); {advice}") from error
    if array.dtype != kind or array.shape != spec.shapes[part] or not array.flags.c_contiguous:
        raise DamagedFile(f"{path} contains {array.dtype} {array.shape}, expected {kind} {spec.shapes[part]}; {advice}")
    return array


def _stamps(spec: DatasetSpec, folder: Path) -> dict[str, list[int]]:
    stamps = {}
    for part in spec.shapes:
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


def _write_manifest(spec: DatasetSpec, folder: Path, came_from: str) -> None:
    manifest = {
        "name": spec.name,
        "origin": came_from,
        "sha256": dict(spec.checksums),
        "stamps": _stamps(spec, folder),
    }
    temporary = folder / f".{_MANIFEST}.{uuid.uuid4().hex}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / _MANIFEST)
