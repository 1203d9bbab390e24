"""Labels as users give them: integers, booleans or text. Inside, they are classes 0, 1, … in ascending order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clpu.errors import BadData
from clpu.requests import Label

#: The longest text that can be a label.
MAX_LABEL_LENGTH = 200


def read_labels(y: Any, count: int | None = None) -> NDArray[Any]:
    """Labels (n,) as an array of int64, of booleans or of text; `BadData` for anything else.

    >>> read_labels(["cat", "dog"]).tolist(), read_labels([True, False]).tolist()
    (['cat', 'dog'], [True, False])
    """
    if y is None:
        raise BadData("labels are missing: hand in x and y, or a torch Dataset of (x, y) pairs")
    array = _array(y)
    if count is not None and array.shape != (count,):
        raise BadData(f"expected one label per input, shape ({count},), got {array.shape}{_advice(array, count)}")
    if array.dtype.kind == "O":
        array = _of_one_kind(array)
    if array.dtype.kind == "U":
        longest = max(map(len, array.ravel().tolist()), default=0)
        if longest > MAX_LABEL_LENGTH:
            raise BadData(f"a label has at most {MAX_LABEL_LENGTH} characters, got one of {longest}")
        if any("\ud800" <= c <= "\udfff" for text in np.unique(array).tolist() for c in text):
            raise BadData("labels hold text that is not valid Unicode (lone surrogates)")
        return array
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "f":
        raise BadData(_about_floats(array))
    if array.dtype.kind not in "iu":
        raise BadData(f"labels must be integers, booleans or text, got an array of {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise BadData(f"labels hold numbers beyond 64 signed bits: {int(array.max())}")
    return array.astype(np.int64)


def classes(y: NDArray[Any]) -> tuple[tuple[Label, ...], NDArray[np.int64]]:
    """The distinct labels in ascending order, and the class of each of these labels.

    >>> classes(np.array(["dog", "cat", "dog"]))
    (('cat', 'dog'), array([1, 0, 1]))
    """
    found, codes = np.unique(y, return_inverse=True)
    return tuple(found.tolist()), codes.astype(np.int64)


def encode(y: NDArray[Any], labels: Sequence[Label], task: str) -> NDArray[np.int64]:
    """The class of each of these labels in a task that has `labels`; `BadData` names those that it does not have."""
    known = {label: number for number, label in enumerate(labels)}
    found, codes = classes(y)
    strange = [label for label in found if label not in known]
    if strange:
        raise BadData(
            f"task {task!r} was not taught the label{'s' if len(strange) > 1 else ''} {listed(strange)}; "
            f"its labels are {listed(labels)}"
        )
    return np.array([known[label] for label in found], dtype=np.int64)[codes]


def decode(codes: NDArray[np.int64], labels: Sequence[Label]) -> NDArray[Any]:
    """The labels of these classes, as they were given."""
    return np.array(labels)[codes]


def listed(labels: Iterable[object], most: int = 10) -> str:
    """Labels for a message.

    >>> listed(["cat", "dog"]), listed(range(20), 3)
    ("'cat', 'dog'", '0, 1, 2 …')
    """
    shown = [f"{label!r:.60}" for label in labels]
    return ", ".join(shown[:most]) + (" …" if len(shown) > most else "")


def _array(y: Any) -> NDArray[Any]:
    if isinstance(y, np.ma.MaskedArray):
        raise BadData("labels must have no masked values; fill them first")
    try:
        if hasattr(y, "detach"):  # a tensor
            y = y.detach().cpu()
        array = np.asarray(y)
        # NumPy would take the number 7 in a list of text for the text "7", and True among integers for 1.
        if isinstance(y, (list, tuple)) and array.dtype.kind in "Uiu":
            truths = any(isinstance(one, (bool, np.bool_)) for one in y)
            return np.array(y, dtype=object) if truths or array.dtype.kind == "U" else array
        return array
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadData(f"labels must be one array of labels, got {type(y).__name__}: {error!s:.200}") from None


def _of_one_kind(array: NDArray[Any]) -> NDArray[Any]:
    """An array of Python objects as one of text, booleans or integers, if they are all of one kind."""
    values = array.ravel().tolist()
    missing = sum(value is None or value != value for value in values)
    if missing:
        raise BadData(f"{missing} of {len(values)} labels are missing; leave those rows out")
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in values}
    if kinds in ({str}, {bool}):
        return np.array(values, dtype=kinds.pop()).reshape(array.shape)
    if kinds == {int} and all(abs(value) < 2**63 for value in values):
        return array.astype(np.int64)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise BadData(f"labels must be all integers, all booleans or all text, got {names}")


def _advice(array: NDArray[Any], count: int) -> str:
    """What makes labels of a wrong shape right, if that can be told."""
    if array.shape == (count, 1):
        return "; write np.ravel(y)"
    if array.ndim == 2 and len(array) == count and array.dtype.kind in "fiub" and (array.sum(1) == 1).all():
        return "; write y.argmax(1) if these are one-hot"
    return ""


def _about_floats(array: NDArray[Any]) -> str:
    if not np.isfinite(array).all():
        return f"{int((~np.isfinite(array)).sum())} of {array.size} labels are NaN or infinite; leave those rows out"
    if (array == np.round(array)).all():
        return f"labels must be integers, booleans or text, got {array.dtype}; write y.astype(int)"
    return (
        f"labels must be integers, booleans or text, got {array.dtype} with values such as {array.ravel()[0]!s:.20}; "
        "clpu learns classes, so cut a measured quantity into ranges first: np.digitize(y, edges)"
    )
