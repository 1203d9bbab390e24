"""Random numbers that depend on (seed, task, purpose) and on nothing else.

No generator is shared and no global one is read or written. That is what lets a stream and its
counterfactual draw the same numbers, whatever was learned and forgotten in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from clpu.errors import BadSetting


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds of an agent's replicas; `BadSetting` unless they are different integers."""
    try:
        listed = list(seeds)
    except TypeError:
        raise BadSetting(f"seeds must be a list of integers, got {seeds!r:.80}") from None
    if not listed or any(isinstance(s, bool) or not isinstance(s, (int, np.integer)) for s in listed):
        raise BadSetting(f"seeds must be one or more integers, got {listed!r:.80}")
    if any(abs(int(s)) >= 2**63 for s in listed):
        raise BadSetting("seeds must fit into 64 bits")
    if len(set(listed)) < len(listed):
        raise BadSetting(f"seeds must differ from each other, got {listed!r:.80}")
    return tuple(int(s) for s in listed)


def generator(seed: int, task: str | None, purpose: str) -> torch.Generator:
    """A generator for one purpose of one task (`None`: the main network's own) of one replica.

    >>> a, b = generator(0, "1", "order"), generator(0, "1", "order")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    key = json.dumps([int(seed), task, purpose], ensure_ascii=True).encode()
    number = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1
    return torch.Generator("cpu").manual_seed(number)


def generators(seeds: Sequence[int], task: str | None, purpose: str) -> list[torch.Generator]:
    """One generator for each replica."""
    return [generator(seed, task, purpose) for seed in seeds]


def rand(*shape: int, source: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers from U(0, 1), whatever torch's default type and device may be."""
    return torch.rand(shape, generator=source, dtype=dtype, device="cpu")


def uniform(shape: Sequence[int], bound: float, sources: Sequence[torch.Generator]) -> Tensor:
    """Numbers from U(-bound, bound) of shape (replicas, *shape), replica k's from source k."""
    draws = [rand(*shape, source=source) for source in sources]
    return torch.stack(draws).mul_(2 * bound).sub_(bound)
