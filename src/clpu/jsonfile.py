"""Typed JSON files of one canonical form: equal values give equal bytes, and rows of numbers stay on one line.

A kind of file is a dataclass with a class attribute `format`. What is read may come from anywhere, so it is checked
against the dataclass before it is used.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from clpu.errors import BadRun
from clpu.io import write_atomically

#: The version of all our files. Version 1 was never released.
VERSION = 2
# A hundred times what the largest benchmark writes.
MAX_BYTES = 64 << 20
#: No file of ours has more levels.
MAX_DEPTH = 30
#: Bytes, seeds, steps: nothing that is counted is larger.
MAX_INTEGER = 2**63

#: A time span in a file: not negative, and less than thirty thousand years.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]

T = TypeVar("T")


def dumps(value: Any) -> str:
    """The canonical text of a value: sorted keys, one entry per line, arrays of plain values in one line.

    >>> print(dumps({"b": [[1, 2.5], [3, 4]], "a": ("x",)}), end="")
    {
     "a": ["x"],
     "b": [
      [1, 2.5],
      [3, 4]
     ]
    }
    """
    return _text(to_plain(value), "\n") + "\n"


def to_plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses become objects, arrays lists."""

    def plain(value: Any) -> Any:  # torch's version is an instance of a subclass of str
        return str(value) if isinstance(value, str) else value.tolist()

    return msgspec.to_builtins(value, str_keys=True, enc_hook=plain)


def _text(value: Any, newline: str) -> str:
    nested = isinstance(value, dict) or any(isinstance(v, dict | list | tuple) for v in _items(value))
    if not nested or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = newline + " "
    if not isinstance(value, dict):
        return "[" + inner + ("," + inner).join(_text(v, inner) for v in value) + newline + "]"
    entries = (f"{json.dumps(k, ensure_ascii=False)}: {_text(value[k], inner)}" for k in sorted(value))
    return "{" + inner + ("," + inner).join(entries) + newline + "}"


def _items(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else ()


def write(path: Path | str, value: Any) -> Path:
    """Write a value as canonical JSON, atomically; a dataclass that has a format with it and the version."""
    name = getattr(value, "format", None)
    marks = {"format": name, "version": VERSION} if isinstance(name, str) else {}
    return write_text(path, dumps({**marks, **to_plain(value)}))


def write_text(path: Path | str, text: str) -> Path:
    """Write a text file atomically; its folder is created if need be."""
    # A path with bytes that are not UTF-8 holds surrogates, which no encoding has.
    return write_atomically(Path(path), text.encode("utf-8", errors="backslashreplace"))


def read(path: Path | str, kind: type[T]) -> T:
    """Read a file of a kind, or raise `BadRun` with the reason."""
    try:
        content = content_of(Path(path))
    except OSError as error:
        raise BadRun(f"cannot read {path}: {error.strerror}") from None
    return decode(content, kind, path)


def content_of(path: Path) -> bytes:
    """A file's bytes, of a huge file more than `decode` accepts but not all."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def decode(content: bytes | str, kind: type[T], where: object) -> T:
    """The object in a file's content; `BadRun` if it is something else.

    >>> decode('["1"]', list[int], "run.json")
    Traceback (most recent call last):
        ...
    clpu.errors.BadRun: run.json: [0]: expected `int`, got `str`
    """
    if len(content) > MAX_BYTES:
        raise BadRun(f"{where} is larger than {MAX_BYTES >> 20} MiB; a run writes less")
    try:
        value = msgspec.json.decode(content)
        _check(value)
    except (ValueError, RecursionError) as error:
        raise BadRun(f"{where} is damaged, or not a JSON file: {error}") from None
    name = getattr(kind, "format", None)
    if name is not None:
        found = value if isinstance(value, dict) else {}
        if found.get("format") != name:
            raise BadRun(f"{where} is not a file of the format {name}: its format is {found.get('format')!r:.40}")
        if found.get("version") != VERSION:
            raise BadRun(f"{where} has version {found.get('version')!r:.40}; this clpu reads version {VERSION}")
    try:
        return msgspec.convert(value, kind, dec_hook=_array)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        at = re.sub(r"`key` in |[`$]", "", place).removeprefix(".")
        plain = reason if reason[:1] == "'" else reason[:1].lower() + reason[1:]
        raise BadRun(f"{where}: {at}: {plain}" if at else f"{where}: {plain}") from None


def _array(kind: Any, value: Any) -> Any:
    """A list of numbers, or of such lists; whoever has the array checks its shape."""
    if not isinstance(value, list) or not _numeric(value):
        raise ValueError("expected nothing but numbers")
    import numpy as np

    try:
        return np.array(value, dtype=float)
    except ValueError:
        raise ValueError("not an array of numbers: its rows have different lengths") from None


def _numeric(items: list[Any]) -> bool:
    return all(_numeric(item) if isinstance(item, list) else type(item) in (int, float) for item in items)


def _check(value: Any, depth: int = 0) -> None:
    """Refuse what could play tricks on a terminal, could not be written again, or is nested beyond reason."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if not math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError("it contains a number that is out of range")
    if isinstance(value, str):
        odd = next((c for c in value if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"), None)
        if odd is not None:
            raise ValueError(f"it contains a string with the character U+{ord(odd):04X}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check(key, depth)
            _check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth + 1)
