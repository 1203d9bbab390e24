"""The layout of a store and its manifest; docs/store-format.md describes it for people.

The manifest is a function of what is remembered and, while there are any, of the temporary tasks'
random names and ciphertexts. Nothing else goes in: no time, no counter, no history.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from clpu.errors import BadRequest, BadStore
from clpu.io import canonical, sha256
from clpu.requests import check_name

FORMAT = "clpu-store"
VERSION = 2
MANIFEST = "store.json"
KEYS = "keys.json"
REMEMBERED = "remembered"
TEMPORARY = "temporary"
LONGEST_JSON = 16 << 20
LONGEST_FILE = (1 << 31) - (1 << 20)
#: The files that are ours to remove when a request was interrupted; anything else is left alone.
OURS = re.compile(
    r"(store|keys)\.json\.part|remembered/[0-9a-f]{64}\.safetensors(\.part)?|temporary/[0-9a-f]{32}(\.part)?"
)


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors, named by the SHA-256 of its content."""

    sha256: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> TensorFile:
        return cls(sha256(content), len(content))

    @property
    def name(self) -> str:
        return f"{REMEMBERED}/{self.sha256}.safetensors"


@dataclass(frozen=True)
class PermanentTask:
    """A permanent task and its file, which holds all there is of it."""

    task: str
    file: TensorFile


@dataclass(frozen=True)
class EncryptedTask:
    """A temporary task, of which the manifest shows nothing but a random name and a ciphertext."""

    id: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        return f"{TEMPORARY}/{self.id}"


@dataclass(frozen=True)
class Manifest:
    """What `store.json` says."""

    identity: str
    keys_here: bool
    agent: dict[str, Any]
    main: TensorFile | None = None
    remembered: tuple[PermanentTask, ...] = ()
    temporary: tuple[EncryptedTask, ...] = ()

    @property
    def files(self) -> dict[str, TensorFile | EncryptedTask]:
        """Every file of tensors by name."""
        found = [self.main, *(task.file for task in self.remembered), *self.temporary]
        return {file.name: file for file in found if file is not None}

    def to_bytes(self) -> bytes:
        """The manifest file; equal manifests give equal bytes."""
        tasks = [{"task": task.task, **vars(task.file)} for task in self.remembered]
        sealed = [vars(entry) for entry in sorted(self.temporary, key=lambda entry: entry.id)]
        return to_json(
            {
                "format": FORMAT,
                "version": VERSION,
                "identity": self.identity,
                "keys": "here" if self.keys_here else "elsewhere",
                "agent": self.agent,
                "main": None if self.main is None else vars(self.main),
                "remembered": tasks,
                "temporary": sealed,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what `to_bytes` wrote; `BadStore` for anything else."""
        content = checked_json(data, FORMAT, VERSION, MANIFEST)
        try:
            manifest = cls(
                _expect(content["identity"], is_hex(content["identity"], 32)),
                {"here": True, "elsewhere": False}[content["keys"]],
                _expect(content["agent"], isinstance(content["agent"], dict)),
                None if content["main"] is None else _file(**content["main"]),
                tuple(_remembered(**entry) for entry in content["remembered"]),
                tuple(_sealed(**entry) for entry in content["temporary"]),
            )
            same = manifest.to_bytes() == data
        except (KeyError, TypeError, ValueError, BadRequest, RecursionError) as error:
            raise BadStore(f"{MANIFEST} is damaged: {error!r:.200}") from None
        if not same:
            raise BadStore(f"{MANIFEST} is damaged: it is not written as clpu writes it")
        names = [task.task for task in manifest.remembered]
        if names != sorted(set(names)):
            raise BadStore(f"{MANIFEST} is damaged: it lists a task twice, or the tasks out of order")
        if len({t.id for t in manifest.temporary}) < len(manifest.temporary):
            raise BadStore(f"{MANIFEST} is damaged: it lists a file twice")
        return manifest


def is_hex(text: object, size: int) -> bool:
    """Whether a text is so many bytes in lower-case hexadecimal digits."""
    return isinstance(text, str) and re.fullmatch(rf"[0-9a-f]{{{2 * size}}}", text) is not None


def to_json(content: dict[str, Any]) -> bytes:
    """JSON in one form only, with a checksum of itself: a line for each name, and for each entry of a list.

    >>> print(to_json({"b": [{"x": 1}], "a": 2}).decode(), end="")
    {
    "a": 2,
    "b": [
     {"x": 1}
    ],
    "checksum": "57a451af237635e29f2583d98f10b7e42ad6c4f2c4f95ff3348f4af25bf034aa"
    }
    """
    whole = {**content, "checksum": _checksum(content)}
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(whole[name])}" for name in sorted(whole)) + "\n}\n"
    ).encode()


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, sort_keys=True)
    return "[\n " + ",\n ".join(json.dumps(entry, sort_keys=True) for entry in value) + "\n]"


def checked_json(data: bytes, format: str, version: int, what: str) -> dict[str, Any]:
    """Read JSON that `to_json` wrote, of a format and version that we know."""
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadStore(f"{what} is damaged: {error!s:.200}") from None
    if not isinstance(content, dict) or content.get("format") != format:
        raise BadStore(f"{what} is not of the format {format}")
    found = content.get("version")
    if type(found) is not int:
        raise BadStore(f"{what} is damaged: version {found!r:.40} is not an integer")
    if found > version:
        raise BadStore(f"{what} was written by a newer clpu (format {found}, this one reads {version}): upgrade clpu")
    if found < version:
        raise BadStore(
            f"{what} was written by an older clpu (format {found}, this one reads {version}): "
            "it was never released, so create a new store and learn again"
        )
    checksum = content.pop("checksum", None)
    try:
        good = checksum == _checksum(content)
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise BadStore(f"{what} is damaged: its checksum does not match")
    return content


def _checksum(content: dict[str, Any]) -> str:
    return sha256(canonical(content))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _expect(value: Any, good: bool) -> Any:
    if not good:
        raise ValueError(f"unexpected {value!r:.80}")
    return value


def _count(value: Any, least: int) -> int:
    return int(_expect(value, type(value) is int and least <= value <= LONGEST_FILE))


def _file(sha256: Any, size: Any) -> TensorFile:
    return TensorFile(_expect(sha256, is_hex(sha256, 32)), _count(size, 8))


def _remembered(task: Any, sha256: Any, size: Any) -> PermanentTask:
    return PermanentTask(check_name(task), _file(sha256, size))


def _sealed(id: Any, sha256: Any, size: Any) -> EncryptedTask:
    return EncryptedTask(_expect(id, is_hex(id, 16)), _expect(sha256, is_hex(sha256, 32)), _count(size, 28))
