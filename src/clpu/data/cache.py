"""Where the cache is, and whether a data set is in it; cheap enough for a listing."""

from __future__ import annotations

import os
from pathlib import Path

from clpu.data.catalog import PARTS, Known


def cache_folder(root: str | Path | None = None) -> Path:
    """The cache: the folder given, else the environment's CLPU_CACHE, else the user's cache folder.

    >>> str(cache_folder("somewhere"))
    'somewhere'
    """
    if root is None:
        root = os.environ.get("CLPU_CACHE") or None
    if root is not None:
        return Path(root).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("clpu", appauthor=False)


def is_here(known: Known, root: str | Path | None = None) -> bool:
    """Whether all files of the data set are in the cache; whether they are whole, `verify` tells."""
    folder = cache_folder(root) / "data" / known.name
    return all((folder / f"{part}.npy").is_file() for part in PARTS)
