"""Check users' data and turn them into tensors, before anything is changed."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from clpu.errors import BadData, BadRequest
from clpu.labels import classes, read_labels
from clpu.learning.batches import Examples
from clpu.networks.blueprint import Inputs
from clpu.requests import Scope, check_id
from clpu.tables import MANY, is_table, take

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def read_inputs(x: Any, expected: Inputs | None, tokens: bool, device: torch.device, *, wide: bool = False) -> Tensor:
    """Inputs (n, *input): bytes stay bytes (images, taken as 0 to 1 later), all else becomes float32.

    With `tokens` (a user's own module), integers other than bytes stay integers. With `wide`, numbers become float64,
    and NaN means a missing one, which scaling fills.
    """
    x = _unloaded(x)
    tensor = _as_tensor(_from_dataset(x)[0] if isinstance(x, Dataset) else x)
    if tensor.dim() < 2:
        one = "; of a single example, write x[None]" if tensor.dim() else ""
        raise BadData(f"inputs must have shape (examples, …), got {tuple(tensor.shape)}{one}")
    if tensor.numel() == 0:
        raise BadData(f"inputs are empty: shape {tuple(tensor.shape)}")
    if expected is not None and tuple(tensor.shape[1:]) != expected.shape:
        raise BadData(
            f"each input must have shape {expected.shape}, as the tasks before had, got {tuple(tensor.shape[1:])}"
        )
    if tensor.dtype in _FLOATS:
        tensor = tensor.to(torch.float64 if wide else torch.float32)
        # One pass settles the usual case: a sum of finite numbers that is finite has no NaN and no infinity in it.
        if wide or not bool(tensor.sum().isfinite()):
            _check_finite(tensor, wide)
    elif tensor.dtype != torch.uint8:
        tensor = tensor.to(torch.int64 if tokens else torch.float64 if wide else torch.float32)
    if expected is not None and tokens and (tensor.dtype == torch.int64) != expected.integer:
        wanted = "integers" if expected.integer else "floats or bytes"
        raise BadData(f"inputs must be {wanted}, as the tasks before had, got {tensor.dtype}")
    return tensor.to(device)


def _check_finite(x: Tensor, missing: bool) -> None:
    """Refuse infinity and, unless values may be missing, NaN."""
    usable = x.abs() <= torch.finfo(torch.float32).max
    usable = usable | x.isnan() if missing else usable
    bad = int((~usable).flatten(1).any(1).sum())
    if bad:
        what = "infinity" if missing else "NaN, infinity"
        raise BadData(f"{bad} of {len(x)} inputs hold {what} or numbers too large for float32")


def read_examples(
    x: Any,
    y: Any,
    expected: Inputs | None,
    tokens: bool,
    device: torch.device,
    *,
    wide: bool = False,
    fewest: int = 2,
) -> Examples:
    """A task's training data, with labels mapped to classes 0, 1, … in ascending order of the label.

    `fewest` is the number of classes that it must have.
    """
    x, y = read_pairs(x, y)
    inputs = read_inputs(x, expected, tokens, device, wide=wide)
    if wide and inputs.is_floating_point() and bool(inputs.isnan().all()):
        raise BadData("every value of every input is missing (NaN)")
    labels, codes = classes(read_labels(y, len(inputs)))
    if len(labels) < fewest:
        raise BadData(f"a task needs at least two classes, got only label {labels[0]!r:.60}")
    if fewest > 1 and len(codes) >= MANY and len(labels) > len(codes) / 2 and not isinstance(labels[0], str):
        raise BadData(
            f"{len(codes)} examples have {len(labels)} different labels, {labels[0]} to {labels[-1]}: clpu learns "
            "classes, so cut a measured quantity into ranges first (np.digitize(y, edges)); hand in names as text"
        )
    return Examples(inputs, torch.from_numpy(codes).to(device), labels)


def read_pairs(x: Any, y: Any) -> tuple[Any, Any]:
    """Inputs and labels, which a Dataset or a DataLoader brings together."""
    x = _unloaded(x)
    if not isinstance(x, Dataset):
        return x, y
    if y is not None:
        raise BadData("hand in either a Dataset of (x, y) pairs or x and y, not both")
    return _from_dataset(x)


def read_people(people: Any, count: int) -> tuple[tuple[str, ...], ...]:
    """Return the people whom each record is about, sorted: one id or a list of ids each; `None` or NaN is nobody."""
    listed = _per_record(people, count, "people")
    return tuple(_people(one) for one in listed)


def _people(one: Any) -> tuple[str, ...]:
    if one is None or type(one).__name__ == "NAType" or (isinstance(one, float) and one != one):
        return ()
    several = isinstance(one, (list, tuple, set, frozenset, np.ndarray)) and getattr(one, "ndim", 1) > 0
    try:
        return tuple(sorted({check_id(person) for person in (one if several else [one])}))
    except BadRequest as error:
        raise BadData(str(error)) from None


def read_ids(records: Any, count: int) -> tuple[str, ...]:
    """The id of each record; no two are equal."""
    try:
        ids = tuple(check_id(one, "a record's id") for one in _per_record(records, count, "records"))
    except BadRequest as error:
        raise BadData(str(error)) from None
    if len(set(ids)) < len(ids):
        twice = next(one for one, many in Counter(ids).items() if many > 1)
        raise BadData(f"the record id {twice!r:.60} occurs more than once")
    return ids


def left_in(parts: Sequence[Scope], x: Any, y: Any, people: Any, records: Any) -> tuple[Any, Any, Any, Any]:
    """Data without the records that some scopes name."""
    x = _unloaded(x)
    if isinstance(x, Dataset):
        x, y = _from_dataset(x)
    if is_table(x):
        x, y, people, records = take(x, y, (), people, records)
    labels = y.tolist() if hasattr(y, "tolist") else list(y)
    about = [()] * len(labels) if people is None else read_people(people, len(labels))
    ids = [None] * len(labels) if records is None else read_ids(records, len(labels))
    rows = zip(labels, about, ids)
    keep = [i for i, (label, who, one) in enumerate(rows) if not any(p.covers(label, who, one) for p in parts)]

    def kept(values: Any) -> Any:
        if values is None:
            return None
        if isinstance(values, dict):
            return {name: column[keep] for name, column in values.items()}
        return values[keep] if hasattr(values, "shape") else [values[i] for i in keep]

    return kept(x), kept(y), kept(people), kept(records)


def _per_record(values: Any, count: int, what: str) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise BadData(f"{what} must be a list with one entry per record, got {type(values).__name__}")
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(listed, list) or len(listed) != count:
        found = len(listed) if isinstance(listed, list) else 1
        raise BadData(f"{what} must have one entry for each of the {count} records, got {found}")
    return listed


def _unloaded(x: Any) -> Any:
    """Return the data set of a `DataLoader`: the agent makes its own batches, in an order that its seed decides."""
    if not isinstance(x, DataLoader):
        return x
    if x.collate_fn not in (default_collate, default_convert):
        raise BadData(
            "the DataLoader has a collate_fn, which would not be used: the agent makes its own batches. Let the data "
            "set do what it does, and hand that in"
        )
    sampler = x.batch_sampler.sampler if type(x.batch_sampler) is BatchSampler else x.batch_sampler or x.sampler
    if type(sampler) is SubsetRandomSampler:
        return Subset(x.dataset, list(sampler.indices))
    if type(sampler) not in (SequentialSampler, RandomSampler) and not isinstance(x.dataset, IterableDataset):
        raise BadData(
            f"the DataLoader's {type(sampler).__name__} would not be used: the agent makes its own batches. To leave "
            "examples out, hand in a torch.utils.data.Subset; for rare classes, set class_weight='balanced'"
        )
    return x.dataset


def _as_tensor(data: Any) -> Tensor:
    if isinstance(data, Tensor):
        tensor = data.detach()
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
            raise BadData(f"inputs must be an ordinary dense tensor, got {tensor.layout} on {tensor.device}")
    elif isinstance(data, np.ma.MaskedArray):
        raise BadData("inputs must have no masked values; fill them first")
    elif data is None:
        raise BadData("inputs are missing")
    elif hasattr(data, "toarray"):
        raise BadData(f"inputs must be dense, got a sparse {type(data).__name__}; write x.toarray()")
    elif isinstance(data, (str, os.PathLike)):
        raise BadData(f"inputs must be data, got {data!r:.60}; read the file first, or use `clpu learn --data FILE`")
    else:
        try:
            if isinstance(data, (list, tuple)):
                _refuse_some_bytes(data)
            array = np.asarray(data)
            if array.dtype.kind not in "fiub":
                raise BadData(
                    f"inputs must be numbers, got an array of {array.dtype}; hand in a table with columns of text as a "
                    "data frame or a dictionary of columns, and compute features of sentences first (docs/your-data.md)"
                )
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:
                if array.dtype.itemsize == 8 and array.size and int(array.max()) > np.iinfo(np.int64).max:
                    raise BadData(f"inputs hold numbers beyond 64 signed bits: {int(array.max())}")
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
            raise BadData(f"inputs must be a NumPy array or a tensor, got {type(data).__name__}: {error}") from None
    if tensor.dtype not in (*_FLOATS, *_INTEGERS):
        raise BadData(f"inputs must be real numbers, got {tensor.dtype}")
    return tensor


def _from_dataset(dataset: Dataset[Any]) -> tuple[Any, Any]:
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return dataset.tensors
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise BadData("the Dataset must have a length above zero; an iterable one cannot be shuffled")
    pairs = [dataset[i] for i in range(len(dataset))]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise BadData(f"the Dataset must give (x, y) pairs, got {type(pairs[0]).__name__}")
    inputs = [_as_tensor(x) for x, _ in pairs]
    _refuse_some_bytes(inputs)
    labels = [np.asarray(y).reshape(-1) for _, y in pairs]
    shapes = {tuple(x.shape) for x in inputs}
    if len(shapes) > 1:
        raise BadData(f"all inputs of the Dataset must have one shape, got {sorted(shapes)[:5]}")
    if any(label.size != 1 for label in labels):
        raise BadData("the Dataset must give one label for each input")
    return torch.stack(inputs), [label.item() for label in labels]


def _refuse_some_bytes(inputs: Iterable[Any]) -> None:
    """Refuse inputs of which some are bytes and some are not: what is one would decide how the others are read."""
    kinds = {str(getattr(one, "dtype", "numbers")).removeprefix("torch.") for one in inputs}
    if "uint8" in kinds and len(kinds) > 1:
        other = sorted(kinds - {"uint8"})[0]
        raise BadData(f"some inputs are bytes, which stand for pixels, and others are {other}; make them all the same")
