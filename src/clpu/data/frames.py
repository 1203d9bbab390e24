"""Read tables that pandas pickled, without pandas and without running the code that a pickle may contain.

Such a file names twelve functions and classes of pandas, NumPy and Python. Each is replaced by an inert one of this
module or of `pickles`, which only keeps what it is given.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clpu.data.errors import DamagedFile
from clpu.data.pickles import NAMES, Array, Dtype, Forbidden, unpickle

#: What a table is kept under in the state of a pickled frame, since that version of pandas.
_VERSION = "0.14.1"


class _Kept:
    """Keeps what it is called with, and its state."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Frame(_Kept):
    """Replaces `DataFrame`."""


class _Manager(_Kept):
    """Replaces `BlockManager`, which has a frame's blocks of columns of one type."""


class _Index(_Kept):
    """Replaces the function with which a pickled index begins; called with a class and what the index has."""


class _Slice(_Kept):
    """Replaces `slice`."""


class _Function:
    """A function of a pickle; unlike Python's, it has nothing that a pickle can set."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise Forbidden("a function with a state")


class _Encode(_Function):
    """Replaces `codecs.encode`: older pickles have bytes as text in latin-1."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object = None) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise Forbidden(f"an encoding {encoding!r:.40}")
        return text.encode("latin-1")


class _Reconstruct(_Function):
    """Replaces the function that makes an object of a class, for the two classes that have a state here."""

    __slots__ = ()

    def __call__(self, kind: object, *_: object) -> _Kept:
        if kind not in (_Frame, _Manager):
            raise Forbidden("an object of a class that is not a table's")
        made: _Kept = kind()
        return made


_FRAME_NAMES = {
    **NAMES,
    ("pandas.core.frame", "DataFrame"): _Frame,
    ("pandas.core.internals.managers", "BlockManager"): _Manager,
    ("pandas.core.indexes.base", "_new_Index"): _Index,
    ("pandas.core.indexes.base", "Index"): _Kept,
    ("pandas.core.indexes.range", "RangeIndex"): _Kept,
    ("__builtin__", "slice"): _Slice,
    ("__builtin__", "object"): _Kept,
    ("_codecs", "encode"): _Encode(),
    ("copy_reg", "_reconstructor"): _Reconstruct(),
}


def read_frames(data: bytes, origin: str) -> dict[int, list[dict[str, NDArray[Any]]]]:
    """Read {number: [table, …]}, each table as {column: numbers}; anything but plain numbers is refused."""
    content = unpickle(data, origin, _FRAME_NAMES, also={"INT"})
    try:
        if not isinstance(content, dict) or not all(type(key) is int for key in content):
            raise ValueError("no dictionary by numbers")
        return {key: [_table(frame) for frame in frames] for key, frames in content.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DamagedFile(f"{origin} does not hold tables as expected ({error!s:.100})") from error


def _table(frame: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(frame, _Frame):
        raise ValueError(f"a {type(frame).__name__} in place of a table")
    kept = frame.state["_data"].state[3][_VERSION]  # type: ignore[index]
    names = kept["axes"][0].arguments[1]["data"].data
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise ValueError("columns without names")
    columns: dict[str, NDArray[Any]] = {}
    for block in kept["blocks"]:
        first, last, step = block["mgr_locs"].arguments
        which = range(first, last, step)
        values = _numbers(block["values"])
        if len(which) != len(values) or which[0] < 0 or which[-1] >= len(names):
            raise ValueError("a block that is not where its columns are")
        columns |= {names[i]: row for i, row in zip(which, values)}
    if len(columns) != len(names) or len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of different lengths")
    return columns


def _numbers(array: Any) -> NDArray[Any]:
    """A pickled array (columns, rows) of 64-bit numbers."""
    if not isinstance(array, Array) or not isinstance(array.data, bytes) or not isinstance(array.dtype, Dtype):
        raise ValueError("a block that is not an array of numbers")
    shape, code = array.shape, array.dtype.code
    if not isinstance(shape, tuple) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError("a block that is not a table")
    if code not in ("f8", "i8") or len(array.data) != 8 * math.prod(shape):
        raise ValueError(f"a block of {len(array.data)} bytes for {shape} numbers {code!r:.20}")
    return np.frombuffer(array.data, f"<{code}").reshape(shape, order="F" if array.by_column else "C")
