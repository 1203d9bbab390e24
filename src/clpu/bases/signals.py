"""Statistics and spectra of windows of signals: what is usually made of accelerometers, in integers.

Samples are rounded to integers first. Sums of products of integers are exact in float64, and roots and quotients of
single numbers are rounded alike everywhere, so equal windows give equal features on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from clpu.bases.base import Base
from clpu.errors import BadNetwork
from clpu.settings import setting

#: Cosines are integers of this size, and samples have 16 bits, so that sums over a window are exact.
_COSINE, _SAMPLE = 1024, 2**15 - 1
_LONGEST = 1024


@dataclass(frozen=True)
class SignalSettings:
    resolution: float = setting(2048.0, "samples are multiplied by this and rounded to 16 bits", above=0)
    frequencies: int = setting(
        32, "so many frequencies of the spectrum, from the lowest; at most half a window", at_least=1
    )
    lengths: bool = setting(True, "where channels come in threes, the length of each such vector is a channel too")


class Signals(Base):
    """Of each channel: mean, deviation, extremes, mean step, and the amplitudes of the lowest frequencies."""

    scale, root = 40.0, True
    one_shape = True
    exact = True

    def __init__(self, settings: SignalSettings) -> None:
        self.settings = settings

    def features(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or not 2 <= x.shape[2] <= _LONGEST or not x.is_floating_point():
            raise BadNetwork(
                f"base:signals takes windows (n, channels, samples) of floats, got {x.dtype} {tuple(x.shape)}"
            )
        whole = (x.double() * self.settings.resolution).nan_to_num().round().clamp(-_SAMPLE, _SAMPLE)
        if self.settings.lengths and not x.shape[1] % 3:
            squares = whole.square().unflatten(1, (-1, 3)).sum(2)
            whole = torch.cat([whole, squares.sqrt().round()], 1)
        size = whole.shape[2]
        total = whole.sum(2)
        deviation = (size * whole.square().sum(2) - total.square()).sqrt() / size
        step = whole.diff(dim=2).abs().sum(2) / (size - 1)
        parts = [total / size, deviation, whole.amin(2), whole.amax(2), step]
        cosines, sines = _waves(size, min(self.settings.frequencies, size // 2))
        squared = (whole @ cosines).square() + (whole @ sines).square()
        amplitudes = squared.sqrt() / (_COSINE * size / 2)
        found = torch.cat([torch.stack(parts, 2), amplitudes], 2) / self.settings.resolution
        return found.flatten(1).float()


@lru_cache(maxsize=4)
def _waves(size: int, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (size, count) of the frequencies 1 … count, as integers."""
    angles = [[2 * math.pi * (k * t % size) / size for k in range(1, count + 1)] for t in range(size)]
    made = ([[round(_COSINE * wave(a)) for a in row] for row in angles] for wave in (math.cos, math.sin))
    cosines, sines = (torch.tensor(table, dtype=torch.float64).reshape(size, count) for table in made)
    return cosines, sines
