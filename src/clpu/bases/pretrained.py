"""Bases with weights: networks that were trained on public data, and answer one record at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clpu.bases import fetch
from clpu.bases.base import OneAtATime, check_images, check_text, floats, is_tokens
from clpu.bases.catalog import WEIGHTS, base_spec
from clpu.bases.efficientnet import EfficientNetLite0
from clpu.bases.minilm import MiniLM
from clpu.bases.public import key_of
from clpu.bases.wordpiece import WordPiece
from clpu.errors import BadData
from clpu.settings import setting
from clpu.state import Leaf


@dataclass(frozen=True)
class ImageSettings:
    size: int = setting(128, "width and height in pixels to which images are resized", at_least=32)


@dataclass(frozen=True)
class TextSettings:
    length: int = setting(128, "tokens of a text that are read, from its beginning", at_least=8)


class Images(OneAtATime):
    """EfficientNet-lite0; its features are averages of ReLU6 outputs, whose roots are spread more evenly."""

    scale, root = 40.0, True

    def __init__(self, settings: ImageSettings, network: EfficientNetLite0 | None = None) -> None:
        if network is None:
            spec = base_spec("efficientnet-lite0")
            network = EfficientNetLite0(settings.size)
            network.load_state_dict(dict(Leaf.from_bytes(fetch.read(spec.name)[WEIGHTS]).tensors))
            self.sha256 = spec.sha256
            self.key = key_of(spec.name, spec.sha256, settings.size)
        self.network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def check(self, x: Tensor) -> None:
        check_images(x, "base:efficientnet-lite0")

    def row(self, x: Tensor) -> Tensor:
        return super().row(floats(x))


class Sentences(OneAtATime):
    """The MiniLM sentence encoder; a feature of a text is about 1/√384 large."""

    scale = 500.0
    integer = True

    def __init__(
        self, settings: TextSettings, network: MiniLM | None = None, vocabulary: list[str] | None = None
    ) -> None:
        self.length = settings.length
        if network is None or vocabulary is None:
            spec = base_spec("minilm")
            files = fetch.read(spec.name)
            network = MiniLM()
            network.load_state_dict(dict(Leaf.from_bytes(files[WEIGHTS]).tensors))
            vocabulary = files["vocab.txt"].decode().splitlines()
            self.sha256 = spec.sha256
            self.key = key_of(spec.name, spec.sha256, settings.length)
        self.network, self.pieces = network.eval().requires_grad_(False), WordPiece(vocabulary)

    def encoded(self, x: Any) -> Any:
        if is_tokens(x):
            return x
        return np.array(self.pieces(check_text(x, "base:minilm"), self.length), dtype=np.int64)

    def check(self, x: Tensor) -> None:
        known = len(self.pieces.numbers)
        if x.dim() != 2 or x.dtype != torch.int64 or not bool(((x >= 0) & (x < known)).all()) or not x[:, 0].all():
            raise BadData(f"base:minilm takes text, got inputs of shape {tuple(x.shape)}")

    def row(self, x: Tensor) -> Tensor:
        return super().row(x[:, : int((x[0] != 0).sum())])  # padding would have a part in the attention
