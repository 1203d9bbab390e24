"""What users hand in, checked and turned into tensors before anything is touched."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from clpu.errors import BadData
from clpu.learning.batches import Examples
from clpu.networks.blueprint import Inputs

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def read_inputs(x: Any, expected: Inputs | None, tokens: bool, device: torch.device) -> Tensor:
    """Inputs (n, *input): bytes stay bytes (images, taken as 0 to 1 later), all else becomes float32.

    With `tokens` (a user's own module), integers other than bytes stay integers.
    """
    tensor = _as_tensor(_from_dataset(x)[0] if isinstance(x, Dataset) else x, "inputs")
    if tensor.dim() < 2:
        raise BadData(f"inputs must have shape (examples, …), got {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise BadData(f"inputs are empty: shape {tuple(tensor.shape)}")
    if expected is not None and tuple(tensor.shape[1:]) != expected.shape:
        raise BadData(
            f"each input must have shape {expected.shape}, as the tasks before had, got {tuple(tensor.shape[1:])}"
        )
    if tensor.dtype in _FLOATS:
        tensor = tensor.to(torch.float32)
        # One pass settles the usual case: a sum of finite numbers that is finite has no NaN and no infinity in it.
        if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).flatten(1).any(1).sum())
            raise BadData(f"{bad} of {len(tensor)} inputs hold NaN, infinity or numbers too large for float32")
    elif tensor.dtype != torch.uint8:
        tensor = tensor.to(torch.int64 if tokens else torch.float32)
    if expected is not None and tokens and (tensor.dtype == torch.int64) != expected.integer:
        wanted = "integers" if expected.integer else "floats or bytes"
        raise BadData(f"inputs must be {wanted}, as the tasks before had, got {tensor.dtype}")
    return tensor.to(device)


def read_labels(y: Any, count: int) -> Tensor:
    """Labels (n,): any integers."""
    if y is None:
        raise BadData("labels are missing: hand in x and y, or a torch Dataset of (x, y) pairs")
    tensor = _as_tensor(y, "labels")
    if tensor.dtype not in _INTEGERS:
        raise BadData(f"labels must be integers, got {tensor.dtype}; convert them with y.astype(int)")
    if tensor.shape != (count,):
        raise BadData(f"expected one label per input, shape ({count},), got {tuple(tensor.shape)}")
    return tensor.to(torch.int64)


def read_examples(x: Any, y: Any, expected: Inputs | None, tokens: bool, device: torch.device) -> Examples:
    """A task's training data, with labels mapped to classes 0, 1, … in ascending order of the label."""
    if isinstance(x, Dataset):
        if y is not None:
            raise BadData("hand in either a Dataset of (x, y) pairs or x and y, not both")
        x, y = _from_dataset(x)
    inputs = read_inputs(x, expected, tokens, device)
    labels, classes = read_labels(y, len(inputs)).unique(return_inverse=True)
    if len(labels) < 2:
        raise BadData(f"a task needs at least two classes, got only label {int(labels[0])}")
    return Examples(inputs, classes.to(device), tuple(labels.tolist()))


def describe(x: Tensor) -> Inputs:
    """What one of these inputs looks like."""
    return Inputs(tuple(x.shape[1:]), x.dtype == torch.int64)


def _as_tensor(data: Any, what: str) -> Tensor:
    if isinstance(data, Tensor):
        tensor = data.detach()
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
            raise BadData(f"{what} must be an ordinary dense tensor, got {tensor.layout} on {tensor.device}")
    elif isinstance(data, np.ma.MaskedArray):
        raise BadData(f"{what} must have no masked values; fill them first")
    else:
        try:
            array = np.asarray(data)
            if array.dtype.kind not in "fiub":
                raise BadData(f"{what} must be numbers, got an array of {array.dtype}")
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:
                if array.dtype.itemsize == 8 and array.size and int(array.max()) > np.iinfo(np.int64).max:
                    raise BadData(f"{what} hold numbers beyond 64 signed bits: {int(array.max())}")
                array = array.astype(np.int64)
            array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
            if array.dtype.kind == "f" and array.dtype.itemsize > 8:
                array = array.astype(np.float64)
            with warnings.catch_warnings():  # a read-only array is fine: nothing is ever written to it
                warnings.simplefilter("ignore", UserWarning)
                tensor = torch.from_numpy(array)
        except (ValueError, TypeError, RuntimeError) as error:
            if isinstance(error, BadData):
                raise
            raise BadData(f"{what} must be a NumPy array or a tensor, got {type(data).__name__}: {error}") from None
    if tensor.dtype not in (*_FLOATS, *_INTEGERS):
        raise BadData(f"{what} must be real numbers, got {tensor.dtype}")
    return tensor


def _from_dataset(dataset: Dataset[Any]) -> tuple[Any, Any]:
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return dataset.tensors
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise BadData("the Dataset must have a length above zero; an iterable one cannot be shuffled")
    pairs = [dataset[i] for i in range(len(dataset))]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise BadData(f"the Dataset must give (x, y) pairs, got {type(pairs[0]).__name__}")
    inputs = [_as_tensor(x, "inputs") for x, _ in pairs]
    labels = [_as_tensor(y, "labels").reshape(-1) for _, y in pairs]
    shapes = {tuple(x.shape) for x in inputs}
    if len(shapes) > 1:
        raise BadData(f"all inputs of the Dataset must have one shape, got {sorted(shapes)[:5]}")
    if any(label.numel() != 1 for label in labels):
        raise BadData("the Dataset must give one integer as label of each input")
    return torch.stack(inputs), torch.cat(labels)
