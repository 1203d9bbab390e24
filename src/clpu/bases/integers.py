"""Integers from numbers, by constants that no data were asked about: the same bits on every machine.

Everything here is elementwise arithmetic, or sums of integers small enough for floats to hold them exactly.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import torch
from torch import Tensor

#: Rows hold integers from -LARGEST to LARGEST.
LARGEST = 127
#: How many rows are worked on at once.
ROWS_AT_ONCE = 1024
#: Products with fewer rows or columns are computed in floats: torch 2.13 leaves those with one row unwritten.
SMALLEST_SIDE = 8


def quantised(features: Tensor, scale: float, root: bool = False) -> Tensor:
    """clip(rint(scale · φ), ±127) as int8, or of sign(φ)·√|φ| with `root`.

    >>> quantised(torch.tensor([[0.25, -9.0]]), 40.0, root=True)
    tensor([[  20, -120]], dtype=torch.int8)
    """
    if root:
        features = features.sign() * features.abs().sqrt()
    return (features * scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)


def expanded(rows: Tensor, count: int) -> Tensor:
    """`count` further features of int8 rows (n, d): clip(rint((φP + b) / √(2d/3)), 0, 127), with a fixed ternary P."""
    projection, offsets = _projection(rows.shape[1], count)
    spread = math.sqrt(2 * rows.shape[1] / 3)
    parts = []
    for some in rows.split(ROWS_AT_ONCE):
        sums = exact_product(some, projection, rows.shape[1] * LARGEST).double() + offsets
        parts.append((sums / spread).round().clamp(0, LARGEST).to(torch.int8))
    return torch.cat(parts)


def exact_product(a: Tensor, b: Tensor, largest: int) -> Tensor:
    """a·b of matrices of int8, in whole numbers, none of whose sums of products can exceed `largest` < 2⁵³.

    >>> exact_product(torch.tensor([[127, -127]], dtype=torch.int8), torch.tensor([[2], [1]], dtype=torch.int8), 381)
    tensor([[127]])
    """
    if largest >= 2**24:
        return (a.double() @ b.double()).to(torch.int64)
    if a.device.type == "cpu" and min(len(a), b.shape[1]) >= SMALLEST_SIDE and _multiplies_int8_exactly():
        product = torch._int_mm(a, b).to(torch.int64)
        if _adds_up(a, b, product):
            return product
    return (a.float() @ b.float()).to(torch.int64)  # a float32 holds every integer below 2**24


def _adds_up(a: Tensor, b: Tensor, product: Tensor) -> bool:
    """Whether the columns of a·b have the sums that they must have: (1·a)·b. Every fast product is checked by it."""
    left = a.sum(0, dtype=torch.int64).double()
    parts = zip(left.split(128), b.split(128))  # so much stays in the CPU's cache
    sums = torch.stack([some @ rows.double() for some, rows in parts]).sum(0)
    return torch.equal(product.sum(0), sums.to(torch.int64))


@lru_cache(maxsize=1)
def _multiplies_int8_exactly() -> bool:
    """Whether torch multiplies int8 fast here, and without rounding: tried out on the largest sums there can be.

    oneDNN does so, about nine times as fast as in float32, where the CPU has instructions for it (AVX-512 VNNI).
    Without them it adds pairs of products in 16 bits, which do not hold them (huggingface/optimum-quanto#309).
    """
    has_instructions = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    if not hasattr(torch, "_int_mm") or not has_instructions():
        return False
    try:
        return all(_is_exact_for(*shape) for shape in ((1, 5, 3), (40, 7, 64), (ROWS_AT_ONCE, 130, 257)))
    except (RuntimeError, NotImplementedError):
        return False


def _is_exact_for(n: int, rows: int, columns: int) -> bool:
    """Whether an integer product over n terms, as sums of records are, is right, with the signs that strain it most."""
    signs = torch.arange(n)[:, None] * torch.arange(1, rows + columns + 1) // 3 % 2 * 2 - 1
    signs[:, ::4] = 1
    a, b = (signs * LARGEST).to(torch.int8).split([rows, columns], 1)
    return torch.equal(torch._int_mm(a.mT, b).double(), a.mT.double() @ b.double())


@lru_cache(maxsize=4)
def _projection(inputs: int, count: int) -> tuple[Tensor, Tensor]:
    """P (inputs, count) of -1, 0, 1 and b (count,), the same for ever: drawn from a hash function, not a generator."""
    drawn = bytearray(hashlib.shake_256(f"clpu ternary {inputs} {count}".encode()).digest(inputs * count))
    ternary = torch.frombuffer(drawn, dtype=torch.uint8).reshape(inputs, count) % 3
    offsets = bytearray(hashlib.shake_256(f"clpu offsets {inputs} {count}".encode()).digest(count))
    centred = torch.frombuffer(offsets, dtype=torch.uint8).double() - 128
    bias = (centred / 4 * math.sqrt(2 * inputs / 3)).round()
    return ternary.to(torch.int8) - 1, bias
