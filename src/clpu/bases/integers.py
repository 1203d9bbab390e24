"""Integers from numbers, by constants that no data were asked about: the same bits on every machine.

Everything here is elementwise arithmetic, or sums of integers small enough for floats to hold them exactly.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import torch
from torch import Tensor

#: Rows hold integers from -MAX_VALUE to MAX_VALUE.
MAX_VALUE = 127
#: How many rows are worked on at once.
ROWS_AT_ONCE = 1024


def quantised(features: Tensor, scale: float, root: bool = False) -> Tensor:
    """clip(rint(scale · φ), ±127) as int8, or of sign(φ)·√|φ| with `root`.

    >>> quantised(torch.tensor([[0.25, -9.0]]), 40.0, root=True)
    tensor([[  20, -120]], dtype=torch.int8)
    """
    if root:
        features = features.sign() * features.abs().sqrt()
    return (features * scale).round().clamp(-MAX_VALUE, MAX_VALUE).to(torch.int8)


def expanded(rows: Tensor, count: int) -> Tensor:
    """`count` further features of int8 rows (n, d): clip(rint((φP + b) / √(2d/3)), 0, 127), with a fixed ternary P."""
    projection, offsets = _projection(rows.shape[1], count)
    spread = math.sqrt(2 * rows.shape[1] / 3)
    parts = []
    for some in rows.split(ROWS_AT_ONCE):
        sums = exact_product(some, projection, rows.shape[1] * MAX_VALUE).double() + offsets
        parts.append((sums / spread).round().clamp(0, MAX_VALUE).to(torch.int8))
    return torch.cat(parts)


def exact_product(a: Tensor, b: Tensor, largest: int) -> Tensor:
    """a·b of matrices of int8, in whole numbers, none of whose sums of products can exceed `largest` < 2⁵³.

    >>> exact_product(torch.tensor([[127, -127]], dtype=torch.int8), torch.tensor([[2], [1]], dtype=torch.int8), 381)
    tensor([[127]])
    """
    # A float32 holds every integer below 2**24. torch's own product of int8 is faster but wrong: on CPUs with VNNI for
    # the transpose of a single column (torch 2.13), on CPUs without by saturation.
    wide = torch.float32 if largest < 2**24 else torch.float64
    return (a.to(wide) @ b.to(wide)).to(torch.int64)


@lru_cache(maxsize=4)
def _projection(inputs: int, count: int) -> tuple[Tensor, Tensor]:
    """P (inputs, count) of -1, 0, 1 and b (count,), the same for ever: drawn from a hash function, not a generator."""
    drawn = bytearray(hashlib.shake_256(f"clpu ternary {inputs} {count}".encode()).digest(inputs * count))
    ternary = torch.frombuffer(drawn, dtype=torch.uint8).reshape(inputs, count) % 3
    offsets = bytearray(hashlib.shake_256(f"clpu offsets {inputs} {count}".encode()).digest(count))
    centred = torch.frombuffer(offsets, dtype=torch.uint8).double() - 128
    bias = (centred / 4 * math.sqrt(2 * inputs / 3)).round()
    return ternary.to(torch.int8) - 1, bias
