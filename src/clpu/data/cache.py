"""Locate the cache and check whether a data set is in it, cheaply enough for a listing."""

from __future__ import annotations

import os
from pathlib import Path

from clpu.data.catalog import DatasetSpec


def cache_folder(root: str | Path | None = None) -> Path:
    """Return the cache folder: `root`, else the environment variable CLPU_CACHE, else the user's cache folder.

    >>> str(cache_folder("somewhere"))
    'somewhere'
    """
    if root is None:
        root = os.environ.get("CLPU_CACHE") or None
    if root is not None:
        return Path(root).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("clpu", appauthor=False)


def is_cached(spec: DatasetSpec, root: str | Path | None = None) -> bool:
    """Return whether all files of a data set are in the cache. Does not read them; see `fetch.recheck`."""
    folder = cache_folder(root) / "data" / spec.name
    return all((folder / f"{part}.npy").is_file() for part in spec.shapes)
