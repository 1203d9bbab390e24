"""Words of a text, counted in a fixed number of places: needs no file, and is the same on every machine."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clpu.bases.base import Base, check_text, is_tokens
from clpu.bases.wordpiece import words
from clpu.errors import BadData
from clpu.settings import setting


@dataclass(frozen=True)
class WordSettings:
    features: int = setting(1000, "places in which words are counted; two words may share one", at_least=1)
    length: int = setting(200, "words of a text that are read, from its beginning", at_least=1)


class Words(Base):
    """How often the words of each place occur; a word's place is given by its CRC-32."""

    scale, root = 32.0, True
    integer = True
    exact = True

    def __init__(self, settings: WordSettings) -> None:
        self.count, self.length = settings.features, settings.length

    def encoded(self, x: Any) -> Any:
        """Places from 1, with zeros after the end of a text."""
        if is_tokens(x):
            return x
        rows = np.zeros((len(x), self.length), dtype=np.int64)
        for row, text in zip(rows, check_text(x, "base:words")):
            places = [1 + zlib.crc32(word.encode()) % self.count for word, _ in zip(words(text), row)]
            row[: len(places)] = places
        return rows

    def features(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.dtype != torch.int64 or not bool(((x >= 0) & (x <= self.count)).all()):
            raise BadData(f"base:words takes text, got inputs of shape {tuple(x.shape)}")
        counts = torch.zeros(len(x), self.count + 1)
        return counts.scatter_add_(1, x, torch.ones(x.shape))[:, 1:]
