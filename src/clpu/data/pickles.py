"""Read CIFAR's Python version, which is a pickle, without running the code that a pickle may contain.

Only the opcodes and the three NumPy names that occur in such files are allowed. The names are replaced by inert classes
of this module, so not even NumPy sees the file's content.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Collection, Mapping
from typing import Any

from clpu.data.errors import DamagedFile, UnsafeFile


class Dtype:
    """Replaces `numpy.dtype`; stores its code."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("ascii", "replace") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class Array:
    """Replaces `numpy.ndarray` and the function with which a pickled array begins."""

    def __init__(self, *_: object) -> None:
        self.shape: object = None
        self.dtype: object = None
        self.data: object = None
        self.by_column = False

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) == 5:
            _, self.shape, self.dtype, self.by_column, self.data = state


# Only classes that define `__setstate__`: on all others, a pickle can set attributes.
NAMES = {
    ("numpy", "dtype"): Dtype,
    ("numpy", "ndarray"): Array,
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,  # as NumPy 2 writes it
}


_OPCODES = {
    "PROTO",
    "FRAME",
    "STOP",
    "MARK",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "EMPTY_TUPLE",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "APPEND",
    "APPENDS",
    "SETITEM",
    "SETITEMS",
    "SHORT_BINSTRING",
    "BINSTRING",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "SHORT_BINBYTES",
    "BINBYTES",
    "BINPUT",
    "LONG_BINPUT",
    "MEMOIZE",
    "BINGET",
    "LONG_BINGET",
    "GLOBAL",
    "STACK_GLOBAL",
    "REDUCE",
    "BUILD",
}
_MAX_MEMO = 2**20  # a large index into the unpickler's memo makes it reserve that much memory


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise Forbidden(f"{module}.{name}") from None


class Forbidden(pickle.UnpicklingError):
    """A pickle asks for more than plain data need."""


def unpickle(data: bytes, origin: str, names: Mapping[tuple[str, str], Any] = NAMES, also: Collection[str] = ()) -> Any:
    """Read a pickle with these names only, each of which is ours, and the usual opcodes and `also` some others."""
    allowed = {*_OPCODES, *also}
    try:
        for opcode, value, _ in pickletools.genops(data):
            far = opcode.name == "LONG_BINPUT" and (value is None or value > _MAX_MEMO)
            if far or opcode.name not in allowed:
                raise Forbidden(f"opcode {opcode.name}")
        return _Unpickler(data, names).load()
    except Forbidden as error:
        raise UnsafeFile(
            f"{origin} asks for {error}, which no data file needs: refused, and no part of it was run"
        ) from error
    except Exception as error:  # a damaged pickle can raise almost anything
        raise DamagedFile(f"{origin} is truncated or not a pickle ({error!r:.200})") from error


def read_batch(data: bytes, labels: str, origin: str) -> tuple[bytes, bool, list[int]]:
    """Read one CIFAR batch: the pixels, whether they are in column-major order, and the labels.

    Anything but plain data is refused.
    """
    batch = unpickle(data, origin)
    if not isinstance(batch, dict):
        raise DamagedFile(f"{origin} contains a {type(batch).__name__}, expected a dictionary")
    plain = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    pixels, values = plain.get("data"), plain.get(labels)
    if not isinstance(pixels, Array) or not isinstance(pixels.data, bytes):
        raise DamagedFile(f"{origin} has no array 'data'")
    if not isinstance(pixels.dtype, Dtype) or pixels.dtype.code != "u1":
        raise DamagedFile(f"{origin}: 'data' is not an array of unsigned bytes")
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise DamagedFile(f"{origin} has no list {labels!r} of small integers")
    return pixels.data, bool(pixels.by_column), values
