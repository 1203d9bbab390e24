"""Load data sets as arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clpu.data import cache_files
from clpu.data.cache import is_cached
from clpu.data.catalog import dataset_spec
from clpu.data.digits import read_digits
from clpu.data.fetch import get


@dataclass(frozen=True, eq=False)
class Split:
    """Images (uint8, channel first, read-only) and their labels (int64); `people` says who each record is about."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    people: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A complete data set in official order; `mean` and `std` are per channel, for pixels scaled to [0, 1].

    Inputs that are 16-bit integers are in units of 1/`unit`; rows of `text` are bytes, with zeros after the end.
    """

    name: str
    train: Split
    test: Split
    classes: int
    sha256: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    unit: float = 0.0
    text: bool = False


def load(name: str, *, root: str | Path | None = None) -> Dataset:
    """Load a data set from the cache, memory-mapped; never uses the network.

    If it is not cached and the environment variable CLPU_DATA is set, it is read from that folder.

    >>> digits = load("digits")
    >>> digits.train.x.shape, digits.test.x.shape
    ((1442, 8, 8), (355, 8, 8))
    """
    entry = dataset_spec(name)
    if entry.embedded:
        arrays = read_digits()
        cache_files.verify(entry, arrays, entry.embedded)
        for array in arrays.values():
            array.flags.writeable = False
    else:
        if os.environ.get("CLPU_DATA") and not is_cached(entry, root):
            get(name, root=root, offline=True)
        arrays = cache_files.read(entry, root)
    return Dataset(
        name=name,
        train=Split(arrays["train_x"], arrays["train_y"], arrays.get("train_people")),
        test=Split(arrays["test_x"], arrays["test_y"], arrays.get("test_people")),
        classes=entry.classes,
        sha256=entry.sha256,
        mean=entry.mean,
        std=entry.std,
        unit=entry.unit,
        text=entry.text,
    )
