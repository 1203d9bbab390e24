"""Features of public benchmark data, on disk: computed once for a base, a machine's kind of CPU and a data set.

A private record's features are written nowhere. A record is looked up by a hash of its bytes, and because a record's
features depend on that record alone, what is found is what would be computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clpu.data.cache import cache_folder
from clpu.data.loading import Dataset, Split, load
from clpu.io import canonical, sha256, write_atomically

_HASH = 16  # bytes
#: Changes with the hash and the files, so that a table is never read by what does not understand it.
_FORM = 2


def key_of(name: str, weights: str, options: object) -> str:
    """Hash all that features depend on besides the record: base, settings, torch, and the CPU's instructions."""
    capability = torch.backends.cpu.get_cpu_capability()
    return sha256(canonical([name, weights, options, torch.__version__, capability, _FORM]))[:24]


def folder(key: str) -> Path:
    return cache_folder() / "features" / key


@lru_cache(maxsize=4)
def table(key: str, place: str) -> dict[bytes, NDArray[np.float32]]:
    """The features that are on disk for a key, by the hashes of their records; empty if there are none."""
    found: dict[bytes, NDArray[np.float32]] = {}
    for path in sorted(Path(place).glob("*.hashes.npy")):
        hashes = np.load(path, allow_pickle=False)
        features = np.load(path.with_name(path.name.replace(".hashes", "")), mmap_mode="r", allow_pickle=False)
        found |= {row.tobytes(): features[i] for i, row in enumerate(hashes)}
    return found


def known(key: str) -> dict[bytes, NDArray[np.float32]]:
    """The same for the cache folder of now."""
    place = folder(key)
    return table(key, str(place)) if place.is_dir() else {}


def hash_of(record: Tensor) -> bytes:
    """A hash of one input's type, shape and bytes."""
    about = f"{record.dtype} {tuple(record.shape)}\n".encode()
    return hashlib.blake2b(about + record.cpu().contiguous().numpy().tobytes(), digest_size=_HASH).digest()


def prepare(
    key: str,
    compute: Callable[[Tensor], Tensor],
    inputs: Callable[[Dataset, Split], Any],
    dataset: str,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Compute and keep the features of all records of a public data set, unless they are there."""
    place = folder(key)
    if (place / f"{dataset}.hashes.npy").is_file():
        return
    data = load(dataset)
    images = torch.cat([torch.from_numpy(np.array(inputs(data, part))) for part in (data.train, data.test)])
    rows, hashes = [], []
    for number, one in enumerate(images.split(1)):
        rows.append(compute(one).numpy())
        hashes.append(np.frombuffer(hash_of(one[0]), dtype=np.uint8))
        if progress is not None:
            progress(number + 1, len(images))
    save(place, dataset, np.concatenate(rows), np.stack(hashes))


def save(place: Path, dataset: str, features: NDArray[np.float32], hashes: NDArray[np.uint8]) -> None:
    """Write a table: the features first, because the hashes say that they are complete."""
    import io

    for name, array in ((f"{dataset}.npy", features), (f"{dataset}.hashes.npy", hashes)):
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_atomically(place / name, content.getvalue())
    table.cache_clear()
