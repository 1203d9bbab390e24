"""Inputs of any scale, as networks like them: a task's columns are brought to mean 0 and spread 1.

The constants come from the task's own data, belong to its facts, and go with it. Values in the tails count less: mean
and spread are those of the values cut off at the 1% and 99% quantiles, and what is beyond three spreads grows
with its logarithm only:

    z = (x − mean) / spread,    and sign(z) · 3 · (1 + log(|z| / 3)) where |z| > 3

A missing value (NaN) becomes the mean, 0. A column that is constant says nothing and becomes 0 throughout.

Where single people can leave a task, constants fitted to its data would remember them. There the transform is fixed:
each column becomes asinh(x/100), asinh(x) and asinh(100·x), which distinguish small numbers from large ones at every
scale, and an indicator that is 1 where the value is missing (and the others are 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clpu.errors import BadState

TAILS = (0.01, 0.99)
KNEE = 3.0
GAINS = (0.01, 1.0, 100.0)
#: Quantiles are those of this many evenly spaced examples, if there are more.
EXAMPLES = 10_000


@dataclass(frozen=True, eq=False)
class Scaling:
    """A task's constants, in a shape that broadcasts to an input: one per column, one per channel, or one for all."""

    mean: NDArray[np.float64]
    #: 1 / spread, and 0 for a constant column.
    factor: NDArray[np.float64]

    @classmethod
    def fitted(cls, x: Tensor, network: str) -> Scaling:
        """The constants of a task with inputs x (n, *input): one per column for the MLP and for inputs of one axis.

        A network that looks at neighbours gets one per channel of an image, and one for all other inputs of more axes.
        """
        shape = tuple(x.shape[1:])
        values = x.detach().cpu().to(torch.float64).numpy()
        if network == "mlp" or len(shape) == 1:
            groups, columns = shape, values.reshape(len(x), -1)
        else:
            groups = (shape[0] if len(shape) == 3 else 1, *(1,) * (len(shape) - 1))
            columns = values.reshape(len(x), groups[0], -1).transpose(0, 2, 1).reshape(-1, groups[0])
        mean, factor = _constants(columns)
        return cls(mean.reshape(groups), factor.reshape(groups))

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs (n, *input) as the network sees them, float32."""
        mean, factor = (torch.from_numpy(a).to(x.device) for a in (self.mean, self.factor))
        z = torch.nan_to_num((x.to(torch.float64) - mean) * factor, nan=0.0)
        tail = KNEE * (1 + (z.abs() / KNEE).clamp_min(1).log())
        return torch.where(z.abs() > KNEE, tail * z.sign(), z).to(torch.float32)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse constants that do not fit inputs of a shape; `BadState`."""
        if len(self.mean.shape) != len(shape) or any(m not in (1, n) for m, n in zip(self.mean.shape, shape)):
            raise BadState(f"a task's scaling has constants of shape {self.mean.shape} for inputs of shape {shape}")

    def to_json(self) -> dict[str, Any]:
        named = {"mean": self.mean, "factor": self.factor}
        return {**{name: a.ravel().tolist() for name, a in named.items()}, "shape": list(self.mean.shape)}

    @classmethod
    def from_json(cls, value: Any) -> Scaling:
        """Read what `to_json` made; `BadState` for anything else."""
        try:
            shape = tuple(value["shape"])
            if {*value} != {"mean", "factor", "shape"} or not all(type(n) is int and 0 < n < 2**31 for n in shape):
                raise ValueError(f"not the shape of constants: {shape!r:.80}")
            numbers = {name: value[name] for name in ("mean", "factor")}
            if not all(type(n) is float and math.isfinite(n) for listed in numbers.values() for n in listed):
                raise ValueError("constants must be finite numbers")
            return cls(**{name: np.array(listed).reshape(shape) for name, listed in numbers.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise BadState(f"a task's scaling cannot be read: {error!s:.200}") from None


def _constants(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and 1/spread of each column without its tails; of all of it where nothing varies between the tails."""
    present = ~np.isnan(columns)
    counts = np.maximum(present.sum(0), 1)
    some = columns[:: -(-len(columns) // EXAMPLES)]
    some = np.where(np.isnan(some).all(0), 0.0, some)  # a column without values, which NumPy would warn about
    low, high = np.nanquantile(some, TAILS, axis=0)
    filled = np.where(present, columns, 0.0)

    def moments(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean = np.where(present, values, 0.0).sum(0) / counts
        return mean, np.sqrt((np.where(present, values - mean, 0.0) ** 2).sum(0) / counts)

    mean, spread = moments(np.clip(filled, low, high))
    whole_mean, whole_spread = moments(filled)
    flat = spread <= 1e-9 * np.abs(whole_mean)
    mean, spread = np.where(flat, whole_mean, mean), np.where(flat, whole_spread, spread)
    constant = spread <= 1e-9 * np.abs(mean)
    return mean, np.where(constant, 0.0, 1 / np.where(constant, 1.0, spread))


def fixed(x: Tensor) -> Tensor:
    """Inputs (n, columns) under the fixed transform: (n, 4 · columns)."""
    missing = x.isnan()
    known = torch.where(missing, 0.0, x.to(torch.float64))
    parts = [torch.asinh(gain * known) for gain in GAINS]
    return torch.cat([*parts, missing.to(torch.float64)], 1).to(torch.float32)


def fixed_columns(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an input before the fixed transform."""
    return (shape[0] // (len(GAINS) + 1),)
