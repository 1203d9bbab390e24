"""JSON files of one canonical form: equal values give equal bytes, and rows of numbers stay on one line."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from clpu.errors import BadRun
from clpu.io import write_atomically

# A hundred times what the largest benchmark writes.
LARGEST = 64 << 20
#: No file of ours has more levels.
DEEPEST = 30
#: Bytes, seconds, seeds: nothing that is counted is larger.
LARGEST_NUMBER = 2**63


def dumps(value: Any) -> str:
    """The canonical text of a value: sorted keys, one entry a line, arrays of plain values in one line.

    >>> print(dumps({"b": [[1, 2.5], [3, 4]], "a": ("x",)}), end="")
    {
     "a": ["x"],
     "b": [
      [1, 2.5],
      [3, 4]
     ]
    }
    """
    return _text(_plain(value), "\n") + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    # NumPy's arrays and scalars, without importing NumPy.
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def _text(value: Any, newline: str) -> str:
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict | list) for v in value))
    if not nested or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = newline + " "
    if isinstance(value, list):
        return "[" + inner + ("," + inner).join(_text(v, inner) for v in value) + newline + "]"
    entries = (f"{json.dumps(k, ensure_ascii=False)}: {_text(value[k], inner)}" for k in sorted(value))
    return "{" + inner + ("," + inner).join(entries) + newline + "}"


def write(path: Path | str, value: Any) -> Path:
    """Write a value as canonical JSON, whole or not at all."""
    return write_text(path, dumps(value))


def write_text(path: Path | str, text: str) -> Path:
    """Write a text file atomically; its folder is created if need be."""
    # A path with bytes that are not UTF-8 holds surrogates, which no encoding has.
    return write_atomically(Path(path), text.encode("utf-8", errors="backslashreplace"))


def read(path: Path | str) -> Any:
    """Read a JSON file, or raise `BadRun` with the reason."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST:
            raise BadRun(f"{path} is larger than {LARGEST >> 20} MiB; a benchmark writes less")
        value = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse)
        _check(value)
        return value
    except OSError as error:
        raise BadRun(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadRun):
            raise
        raise BadRun(f"{path} is damaged, or no JSON file: {error}") from None


def _check(value: Any, depth: int = 0) -> None:
    """Refuse what could play tricks on a terminal, could not be written again, or is nested beyond reason."""
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it holds a number that is too large")
    if isinstance(value, str):
        odd = next((c for c in value if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"), None)
        if odd is not None:
            raise ValueError(f"it holds a text with the character U+{ord(odd):04X}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check(key, depth)
            _check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth + 1)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is not a number")


@dataclass(frozen=True)
class Fields:
    """An object read from JSON, whose fields are asked for by type; what is missing or of another type is `BadRun`.

    >>> Fields({"seeds": [0, 1]}, "run.json").integers("seeds")
    [0, 1]
    >>> Fields({"seeds": "01"}, "run.json").integers("seeds")
    Traceback (most recent call last):
        ...
    clpu.errors.BadRun: run.json: seeds should be a list, and is a text
    """

    value: dict[str, Any]
    where: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, dict):
            raise BadRun(f"{self.where} should be an object, and is {_kind(self.value)}")

    def optional(self, key: str, default: Any) -> Any:
        return self.value.get(key, default)

    def fields(self, key: str) -> Fields:
        return Fields(self._required(key, dict, "an object"), f"{self.where}: {key}")

    def text(self, key: str) -> str:
        return str(self._required(key, str, "a text"))

    def integer(self, key: str) -> int:
        value = int(self._required(key, int, "an integer"))
        if abs(value) > LARGEST_NUMBER:
            raise BadRun(f"{self.where}: {key} is larger than any number there could be")
        return value

    def number(self, key: str) -> float:
        value = self._required(key, (int, float), "a number")
        if not abs(value) <= LARGEST_NUMBER:
            raise BadRun(f"{self.where}: {key} is larger than any number there could be")
        return float(value)

    def items(self, key: str) -> list[Any]:
        return list(self._required(key, list, "a list"))

    def array(self, key: str) -> Any:
        """A list of numbers, or of such lists."""
        items = self.items(key)
        if not _numeric(items):
            raise BadRun(f"{self.where}: {key} should hold nothing but numbers")
        return items

    def texts(self, key: str) -> list[str]:
        return [Fields({key: item}, self.where).text(key) for item in self.items(key)]

    def integers(self, key: str) -> list[int]:
        return [Fields({key: item}, self.where).integer(key) for item in self.items(key)]

    def numbers(self, key: str) -> list[float]:
        return [Fields({key: item}, self.where).number(key) for item in self.items(key)]

    def _required(self, key: str, types: type | tuple[type, ...], expected: str) -> Any:
        if key not in self.value:
            raise BadRun(f"{self.where} has no {key}")
        value = self.value[key]
        if not isinstance(value, types) or isinstance(value, bool):
            raise BadRun(f"{self.where}: {key} should be {expected}, and is {_kind(value)}")
        return value


def _numeric(items: list[Any]) -> bool:
    return all(_numeric(item) if isinstance(item, list) else type(item) in (int, float) for item in items)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
