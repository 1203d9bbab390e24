"""A leaf of the state: named tensors that are kept and removed together.

Nothing here imports torch before tensors are asked for, so that a leaf can be read, hashed, written and removed
without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors

from clpu.errors import BadState
from clpu.io import canonical

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

V = TypeVar("V")

#: Types of numbers as safetensors abbreviates them, with the names that torch and NumPy give them.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
#: Bytes per number.
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}
#: The same for the module `struct`.
_STRUCT = dict(zip(("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "F32", "F64"), "?Bbhiqefd"))
_CODES = {name: code for code, name in DTYPES.items()}


@dataclass(frozen=True)
class Spec:
    """The type and shape of a tensor; `None` in a shape stands for any size."""

    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {tuple('any' if size is None else size for size in self.shape)}"

    def admits(self, other: Spec) -> bool:
        """Whether a tensor of the other type and shape is one of these."""
        same_length = len(self.shape) == len(other.shape)
        return (
            self.dtype == other.dtype and same_length and all(a in (None, b) for a, b in zip(self.shape, other.shape))
        )


@dataclass(frozen=True)
class _Stored:
    """A tensor as it was read: its type, its shape and its bytes."""

    spec: Spec
    data: bytes | bytearray


class Deriving:
    """Something that never changes, with a cache of what is derived from it alone; the cache is not state."""

    _derived: dict[str, Any]

    def derived(self, name: str, make: Callable[[], V]) -> V:
        """Return what is derived under that name, computed once."""
        if name not in self._derived:
            self._derived[name] = make()
        found: V = self._derived[name]
        return found


class Leaf(Deriving):
    """Named tensors, never changed. Two leaves with the same names and bits are equal.

    >>> import torch
    >>> leaf = Leaf({"head": torch.zeros(2, 3)})
    >>> leaf.size, leaf == Leaf.from_bytes(leaf.to_bytes())
    (24, True)
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors: dict[str, Tensor] | None = {name: t.detach() for name, t in sorted(tensors.items())}
        self._stored: dict[str, _Stored] = {}
        self._unread: bytes | None = None
        self._sha256: str | None = None
        self._derived = {}

    @classmethod
    def from_bytes(cls, content: bytes) -> Leaf:
        """Read what `to_bytes` wrote; `BadState` for anything else."""
        leaf = cls.of_stored(read_tensors(content))
        if leaf.to_bytes() != content:
            raise BadState("a file of tensors that is not written as clpu writes it")
        return leaf

    @classmethod
    def deferred(cls, content: bytes) -> Leaf:
        """As `from_bytes`, but the content is read, and `BadState` raised, when it is first needed."""
        leaf = cls({})
        leaf._tensors, leaf._unread = None, content
        return leaf

    @classmethod
    def of_stored(cls, stored: Mapping[str, _Stored]) -> Leaf:
        """A leaf of tensors as `read_tensors` returns them."""
        leaf = cls({})
        leaf._tensors, leaf._stored = None, dict(sorted(stored.items()))
        return leaf

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Leaf:
        """A leaf of NumPy arrays; needs no torch."""
        return cls.of_stored({n: _Stored(Spec(_CODES[a.dtype.name], a.shape), a.tobytes()) for n, a in arrays.items()})

    def array(self, name: str) -> NDArray[Any]:
        """One of the tensors as a NumPy array, which must not be changed; needs no torch."""
        import numpy as np

        for found, spec, data in self.parts():
            if found == name:
                return np.frombuffer(data, dtype=DTYPES[spec.dtype]).reshape([int(size or 0) for size in spec.shape])
        raise KeyError(name)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name; they must not be changed in place."""
        stored, tensors = self._content()
        if tensors is None:
            self._tensors = tensors = {name: _tensor(found) for name, found in stored.items()}
            self._stored = {}
        return MappingProxyType(tensors)

    @property
    def specs(self) -> dict[str, Spec]:
        """The type and shape of every tensor."""
        stored, tensors = self._content()
        if tensors is None:
            return {name: found.spec for name, found in stored.items()}
        return {name: _spec(tensor) for name, tensor in tensors.items()}

    @property
    def empty(self) -> bool:
        """Whether it has no tensors; one that is not read yet has some."""
        return self._unread is None and not self.specs

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(len(data) for _, _, data in self.parts())

    @property
    def sha256(self) -> str:
        """SHA-256 of every name, type, shape and bit."""
        if self._sha256 is None:
            sha = hashlib.sha256()
            for name, spec, data in self.parts():
                sha.update(canonical([name, spec.dtype, spec.shape]).encode() + b"\n")
                sha.update(data)
            self._sha256 = sha.hexdigest()
        return self._sha256

    def to_bytes(self) -> bytes:
        """One safetensors file. Equal leaves give equal bytes."""
        return write_tensors({name: (spec, data) for name, spec, data in self.parts()})

    def rows(self) -> Iterator[tuple[str, str, list[int], list[Any]]]:
        """Name, type, shape and numbers of every tensor, in plain Python; needs neither torch nor NumPy."""
        for name, spec, data in self.parts():
            yield name, spec.dtype, [int(size or 0) for size in spec.shape], _numbers(spec.dtype, bytes(data))

    def parts(self) -> Iterator[tuple[str, Spec, Any]]:
        """Name, type and shape, and bytes of every tensor."""
        stored, tensors = self._content()
        if tensors is None:
            for name, found in stored.items():
                yield name, found.spec, found.data
        else:
            for name, tensor in tensors.items():
                yield name, _spec(tensor), _data(tensor)

    def _content(self) -> tuple[dict[str, _Stored], dict[str, Tensor] | None]:
        """The tensors as they were read, or as torch has them once a thread asked for that; looked up in this order,
        because `tensors` sets the second before it clears the first."""
        unread = self._unread
        if unread is not None:
            self._stored = Leaf.from_bytes(unread)._stored
            if not self._stored:
                raise BadState("a leaf without tensors")
            self._unread = None
        stored = self._stored
        return stored, self._tensors

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Leaf) and self.sha256 == other.sha256)

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        return f"<Leaf of {len(self.specs)} tensors, {self.size:,} bytes>"


def read_tensors(content: bytes) -> dict[str, _Stored]:
    """The tensors of a safetensors file; `BadState` if it is not one."""
    try:
        found = safetensors.deserialize(content)
        return {name: _Stored(Spec(_known(t["dtype"]), tuple(t["shape"])), t["data"]) for name, t in found}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadState(f"not a safetensors file: {error!s:.200}") from None


def write_tensors(tensors: Mapping[str, tuple[Spec, Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file: the length of a header, the header in JSON, the tensors' bytes.

    Written here, not by the library, so that equal tensors give equal bytes whatever its version. Wide types come
    first, so that every tensor is aligned.
    """
    header: dict[str, Any] = {} if not metadata else {"__metadata__": dict(metadata)}
    order = sorted(tensors, key=lambda name: (-_WIDTHS[tensors[name][0].dtype], name))
    position = 0
    for name in order:
        spec, data = tensors[name]
        offsets = [position, position + len(data)]
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        position += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(tensors[name][1] for name in order)])


def _numbers(dtype: str, data: bytes) -> list[Any]:
    import struct

    if dtype == "BF16":  # the upper half of a float32
        data, dtype = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2)), "F32"
    return [value for (value,) in struct.iter_unpack(f"<{_STRUCT[dtype]}", data)]


def _known(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ValueError(f"tensors of type {dtype} are not supported")
    return dtype


def _spec(tensor: Tensor) -> Spec:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _CODES:
        raise BadState(f"tensors of type {name} cannot be kept; convert them to one of {', '.join(_CODES)}")
    return Spec(_CODES[name], tuple(tensor.shape))


def _data(tensor: Tensor) -> memoryview:
    import torch

    array = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    data: memoryview = array.data
    return data


def _tensor(stored: _Stored) -> Tensor:
    import torch

    dtype, shape = getattr(torch, DTYPES[stored.spec.dtype]), [int(size or 0) for size in stored.spec.shape]
    if not stored.data:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(stored.data), dtype=dtype).reshape(shape)
