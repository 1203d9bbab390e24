"""The bases by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clpu.bases.base import Base, Random, RandomSettings, Raw, RawSettings
from clpu.bases.pretrained import Images, ImageSettings, Sentences, TextSettings
from clpu.workers import Workers

__all__ = ["SETTINGS", "Base", "features_by", "load"]

#: The bases by the name that `network=` takes, with the class of their settings.
SETTINGS: dict[str, type] = {
    "base:raw": RawSettings,
    "base:random": RandomSettings,
    "base:efficientnet-lite0": ImageSettings,
    "base:minilm": TextSettings,
}


def load(name: str, settings: object) -> Base:
    """Return a base by name; `NotCached` if its weights have not been downloaded."""
    kinds: dict[str, type] = {
        "base:raw": Raw,
        "base:random": Random,
        "base:efficientnet-lite0": Images,
        "base:minilm": Sentences,
    }
    made: Base = kinds[name](settings)
    return made


def features_by(workers: Workers, base: Base, name: str, settings: object, x: Tensor) -> Tensor:
    """A base's features of inputs, made by workers if there are some and enough to do; the same bits either way."""
    pieces = [piece.numpy() for piece in x.split(base.at_once)]
    if not workers.share(pieces):
        return base.features(x)
    made = dict(workers.map(_features, (name, settings), pieces, alike=not base.exact))
    return torch.from_numpy(np.concatenate([made[number] for number in range(len(pieces))]))


def _features(setup: tuple[str, Any], x: NDArray[Any]) -> NDArray[Any]:
    """In a worker: the features of some inputs."""
    return _kept(*setup).features(torch.from_numpy(np.array(x))).numpy()


_kept = lru_cache(maxsize=1)(load)
