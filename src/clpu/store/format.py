"""The layout of a store, its small JSON files, and its limits; docs/store-format.md describes it for people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clpu.errors import BadStore
from clpu.io import canonical, sha256

FORMAT = "clpu-store"
VERSION = 3
ABOUT = "about.json"
HEAD = "head"
ROOT = "root"
INTENT = "intent"
#: Parts that can be forgotten, each file under its own key.
LEAVES = "leaves"
#: Parts that the method can never forget.
PERMANENT = "permanent"
KEYS = "keys"
MASTER = "master.json"
PLACE = "place.json"
#: The manifest of the formats before this one.
OLD_MANIFEST = "store.json"

MAX_JSON_BYTES = 1 << 20
MAX_FILE_BYTES = (1 << 31) - (1 << 20)
_NAME = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True)
class About:
    """The content of `about.json`: the public key of the store's receipts, and whether the keys are in the store."""

    identity: str
    keys_here: bool

    def to_bytes(self) -> bytes:
        place = "here" if self.keys_here else "elsewhere"
        return to_json({"format": FORMAT, "version": VERSION, "identity": self.identity, "keys": place})

    @classmethod
    def from_bytes(cls, data: bytes) -> About:
        """Read what `to_bytes` wrote; `BadStore` for anything else."""
        content = checked_json(data, FORMAT, VERSION, ABOUT)
        identity, keys = content.get("identity"), content.get("keys")
        if not is_hex(identity, 32) or keys not in ("here", "elsewhere"):
            raise BadStore(f"{ABOUT} is damaged: it needs an identity, and where the keys are")
        about = cls(str(identity), keys == "here")
        if about.to_bytes() != data:
            raise BadStore(f"{ABOUT} is damaged: it is not written as clpu writes it")
        return about


def path_of(folder: str, name: str) -> str:
    """Return a file's path: `leaves/1f/1f…`. Many small folders, so that none stays large after much forgetting."""
    return f"{folder}/{name[:2]}/{name}" if folder else f"{name[:2]}/{name}"


def is_shard(name: str) -> bool:
    return _SHARD.fullmatch(name) is not None


def is_name(name: object, shard: str = "") -> bool:
    """Whether this is the name of a file of leaves, in the folder where it belongs."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name.startswith(shard)


def is_hex(value: object, size: int) -> bool:
    """Whether this is that many bytes in lower-case hexadecimal."""
    return isinstance(value, str) and len(value) == 2 * size and set(value) <= set("0123456789abcdef")


def to_json(content: Mapping[str, Any]) -> bytes:
    """JSON of one form only, with a checksum; one line for each name.

    >>> print(to_json({"b": [1], "a": 2}).decode(), end="")
    {
    "a": 2,
    "b": [1],
    "checksum": "bdb8cdb92ae21dcbfef3be933411f3644bc1a6668cd15181c0038b2eaa118caf"
    }
    """
    whole = {**content, "checksum": sha256(canonical(content))}
    lines = (f"{json.dumps(name)}: {json.dumps(whole[name], sort_keys=True)}" for name in sorted(whole))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def checked_json(data: bytes, format: str, version: int, what: str) -> dict[str, Any]:
    """Read JSON that `to_json` wrote, of a format and version that we know."""
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadStore(f"{what} is damaged: {error!s:.200}") from None
    if not isinstance(content, dict) or content.get("format") != format:
        raise BadStore(f"{what} is not of the format {format}")
    check_version(content.get("version"), version, what)
    checksum = content.pop("checksum", None)
    try:
        good = checksum == sha256(canonical(content))
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise BadStore(f"{what} is damaged: its checksum does not match")
    return content


def check_version(found: object, version: int, what: str) -> None:
    """Refuse a different version, and say what to do."""
    if type(found) is not int:
        raise BadStore(f"{what} is damaged: version {found!r:.40} is not an integer")
    if found > version:
        raise BadStore(f"{what} was written by a newer clpu (format {found}, this one reads {version}): upgrade clpu")
    if found < version:
        raise BadStore(
            f"{what} was written by an older clpu (format {found}, this one reads {version}): "
            "it was never released, so create a new store and learn again"
        )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
