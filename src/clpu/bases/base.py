"""Bases: frozen, public feature extractors that are never trained and know nothing private."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from clpu.bases import public
from clpu.bases.integers import MAX_VALUE, expanded, quantised
from clpu.data.loading import Dataset, Split
from clpu.data.mails import texts
from clpu.errors import BadData, BadNetwork
from clpu.settings import setting
from clpu.threads import computing_with

#: One over the step in which raw and random features are given; a power of two, so that nothing is rounded.
STEPS = 64.0
#: Gains at which the numbers of a table are taken, for every scale from thousandths to ten thousands.
TABLE_GAINS = (512.0, 32.0, 2.0, 0.125, 0.0078125)


class Base(ABC):
    """Turns inputs (n, *input) into features (n, d) of float32. A record's features depend on that record alone."""

    #: How `ridge` makes small integers of the features: `quantised(features, scale, root)`.
    scale: float
    root: bool = False
    #: SHA-256 of its weights; empty if it has none.
    sha256: str = ""
    #: Whether it takes integers (tokens).
    integer: ClassVar[bool] = False
    #: Whether all inputs must have one shape.
    one_shape: ClassVar[bool] = False
    #: How many records a worker gets at a time.
    at_once: ClassVar[int] = 65_536
    #: Whether it computes with integers, so that every machine gives the same features.
    exact: ClassVar[bool] = False

    def encoded(self, x: Any) -> Any:
        """Inputs as numbers; a base that reads text makes tokens of it."""
        return x

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Features (n, d) of inputs; `BadNetwork` if it cannot take them."""

    def public_inputs(self, dataset: Dataset, split: Split) -> Any:
        """The inputs of a public data set, as they can be handed in time and again; of text, tokens."""
        return self.encoded(texts(split.x)) if dataset.text and self.integer else split.x


@dataclass(frozen=True)
class RawSettings:
    gains: tuple[float, ...] = setting(
        (), "inputs are multiplied by these, rounded and clipped to ±127; by default 127 for images, five for tables"
    )


class Raw(Base):
    """The inputs themselves, as integers from -127 to 127 at each of a few gains, divided by 64.

    A missing value (NaN) counts as 0; in a table, each column has an indicator of it.
    """

    scale = STEPS
    one_shape = True
    exact = True

    def __init__(self, settings: RawSettings) -> None:
        self.gains = settings.gains

    def features(self, x: Tensor) -> Tensor:
        return self.integers(x).float() / STEPS

    def integers(self, x: Tensor) -> Tensor:
        gains = self.gains or (TABLE_GAINS if x.dim() == 2 else (127.0,))
        flat = floats(x).flatten(1)
        missing = flat.isnan()
        flat = flat.masked_fill(missing, 0.0)
        parts = [quantised(flat, gain) for gain in gains]
        if x.dim() == 2:  # an empty cell of a table carries information too
            parts.append(missing.to(torch.int8) * MAX_VALUE)
        return torch.cat(parts, 1)


@dataclass(frozen=True)
class RandomSettings(RawSettings):
    features: int = setting(1000, "number of random features", at_least=1)


class Random(Raw):
    """ReLU features of a fixed ternary projection of the raw integers: needs no file, and suits any numbers."""

    def __init__(self, settings: RandomSettings) -> None:
        super().__init__(settings)
        self.count = settings.features

    def features(self, x: Tensor) -> Tensor:
        return expanded(self.integers(x), self.count).float() / STEPS


class OneAtATime(Base):
    """A float network that sees one record at a time, so that its batch has no influence on a record's features.

    Sums of floats depend on the order of their terms, and libraries choose it by the size of a batch.
    """

    at_once = 512

    #: One record at a time is looked at.
    network: torch.nn.Module

    #: The key under which features of public data are kept; nothing is kept without one.
    key = ""

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        known = public.known(self.key) if self.key else {}
        with torch.inference_mode(), computing_with(1):
            rows = [self._known_row(one, known) if known else self.row(one) for one in x.split(1)]
        return torch.cat(rows).clone()

    def _known_row(self, x: Tensor, known: dict[bytes, Any]) -> Tensor:
        found = known.get(public.hash_of(x[0]))
        return self.row(x) if found is None else torch.from_numpy(np.array(found[None]))

    def keep_public(self, dataset: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Keep the features of a public data set on disk."""
        with torch.inference_mode(), computing_with(1):
            public.prepare(self.key, self.row, self.public_inputs, dataset, progress)

    def row(self, x: Tensor) -> Tensor:
        """Features (1, d) of one input (1, *input)."""
        out: Tensor = self.network(x)
        return out

    def check(self, x: Tensor) -> None:
        """Refuse inputs that the network cannot take."""


def floats(x: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1; anything else as it is."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def check_images(x: Tensor, name: str) -> None:
    """Refuse what is not colour images."""
    if x.dim() != 4 or x.shape[1] != 3:
        raise BadNetwork(f"{name} takes colour images (n, 3, height, width), got inputs of shape {tuple(x.shape)}")


def is_tokens(x: Any) -> bool:
    """Whether text was made tokens before: an array or a tensor of 64-bit integers."""
    return getattr(x, "ndim", 0) == 2 and x.dtype in (np.dtype(np.int64), torch.int64)


def check_text(x: Any, name: str) -> list[str]:
    """The strings of a list or an array; `BadData` if it is anything else."""
    texts = x.tolist() if hasattr(x, "tolist") else list(x) if isinstance(x, (list, tuple)) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise BadData(f"{name} takes text: a list of strings, got {type(x).__name__}")
    return texts
