"""A part of a task's data that is held out, to say how good the task was learned.

Which records are held out is decided for each by itself, from a hash of its numbers with a key of the agent's seed and
the task's name: what else is in the data makes no difference, and equal records are on the same side.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clpu.errors import BadSetting
from clpu.io import canonical
from clpu.outcome import HeldOut


def check_share(share: Any) -> float:
    """The part to hold out, or a refusal."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise BadSetting(f"holdout must be a share from 0 to below 1, such as 0.1, got {share!r:.40}")
    return float(share)


def chosen(x: Tensor, share: float, seed: int, task: str) -> NDArray[np.bool_]:
    """Choose which of the records x (n, *input) are held out.

    >>> bool((chosen(torch.ones(4, 2), 0.5, 0, "1") == chosen(torch.ones(4, 2), 0.5, 0, "1")[0]).all())
    True
    """
    key = hashlib.blake2b(canonical(["holdout", seed, task]).encode(), digest_size=32).digest()
    rows = np.ascontiguousarray(x.detach().cpu().numpy()).reshape(len(x), -1)
    limit = int(share * 2**64)
    numbers = (hashlib.blake2b(row.tobytes(), key=key, digest_size=8).digest() for row in rows)
    return np.array([int.from_bytes(number, "big") < limit for number in numbers], dtype=np.bool_)


def with_every_class(held: NDArray[np.bool_], y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The same, but a class all of whose records would be held out is learned from them."""
    taught = np.unique(y[~held])
    return held & np.isin(y, taught)


def measured(logits: Tensor, y: Tensor, taught: Tensor) -> HeldOut:
    """Count the correct answers for held-out records, from outputs (replicas, n, classes); `taught` are labels."""
    right = float((logits.argmax(-1).cpu() == y.cpu()).sum(-1).double().mean())
    most = int(torch.bincount(taught.cpu()).argmax())
    return HeldOut(len(y), right, int((y.cpu() == most).sum()))
