"""Read CIFAR's Python version, which is a pickle, without running the code that a pickle may contain.

Only the opcodes and the three NumPy names that occur in such files are allowed. The names are replaced by inert classes
of this module, so not even NumPy sees the file's content.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from clpu.data.errors import DamagedFile, UnsafeFile


class _Dtype:
    """Replaces `numpy.dtype`; stores its code."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("ascii", "replace") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Replaces `numpy.ndarray` and the function with which a pickled array begins."""

    def __init__(self, *_: object) -> None:
        self.dtype: object = None
        self.data: object = None
        self.by_column = False

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) == 5:
            _, _, self.dtype, self.by_column, self.data = state


# Only classes that define `__setstate__`: on all others, a pickle can set attributes.
_NAMES = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # as NumPy 2 writes it
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
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None


class _Forbidden(pickle.UnpicklingError):
    pass


def read_batch(data: bytes, labels: str, origin: str) -> tuple[bytes, bool, list[int]]:
    """Read one CIFAR batch: the pixels, whether they are in column-major order, and the labels.

    Anything but plain data is refused.
    """
    try:
        for opcode, value, _ in pickletools.genops(data):
            far = opcode.name == "LONG_BINPUT" and (value is None or value > _MAX_MEMO)
            if far or opcode.name not in _OPCODES:
                raise _Forbidden(f"opcode {opcode.name}")
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except _Forbidden as error:
        raise UnsafeFile(
            f"{origin} asks for {error}, which no data file needs: refused, and no part of it was run"
        ) from error
    except Exception as error:  # a damaged pickle can raise almost anything
        raise DamagedFile(f"{origin} is truncated or not a pickle ({error!r})") from error
    if not isinstance(batch, dict):
        raise DamagedFile(f"{origin} contains a {type(batch).__name__}, expected a dictionary")
    plain = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    pixels, values = plain.get("data"), plain.get(labels)
    if not isinstance(pixels, _Array) or not isinstance(pixels.data, bytes):
        raise DamagedFile(f"{origin} has no array 'data'")
    if not isinstance(pixels.dtype, _Dtype) or pixels.dtype.code != "u1":
        raise DamagedFile(f"{origin}: 'data' is not an array of unsigned bytes")
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise DamagedFile(f"{origin} has no list {labels!r} of small integers")
    return pixels.data, bool(pixels.by_column), values
