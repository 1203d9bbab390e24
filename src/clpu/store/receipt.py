"""A signed statement for the person who asked to be forgotten. The store keeps nothing of it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clpu.errors import BadReceipt, BadStore
from clpu.io import canonical
from clpu.store.contents import FORGETS
from clpu.store.files import failures, open_folder
from clpu.store.format import ABOUT, MAX_JSON_BYTES, About, is_hex
from clpu.store.sealing import public_key, sign, signed_by

FORMAT = "clpu-receipt"
VERSION = 2
#: Enough for a forget that touches some 300,000 files; a longer receipt is refused before anything is forgotten.
MAX_BYTES = 64 << 20
#: The limit of texts that are opaque to us (request id, reason, requester).
MAX_TEXT_LENGTH = 1000

PROVES = (
    "The holder of this store's signing key states that what `scope` names was forgotten between the times given: the "
    "files that held it, and the keys that alone could decrypt them, were removed. `touched` commits to what these "
    "files held, `left` to what took their place, `shared_before` and `shared_after` to what tasks share.",
    "If `exact` is true, the method is one whose state after forgetting equals, bit for bit, the state of an agent "
    "that never learned it; whoever can rebuild that agent can compare the commitments and, if given, the digests.",
)
DOES_NOT_PROVE = (
    "That no copy exists: of the data, of the keys, of the store with its keys (a backup, a file-system snapshot), "
    "of predictions made earlier, in memory, in swap, or in spare blocks of a flash disk.",
    "That the statement or its times are honest: it is signed, and dated, by the party that operates the store.",
    "That the same was never learned elsewhere or under another name.",
)

#: Public keys under which anybody can sign: the points of small order.
_WEAK = {
    "0100000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
}


def _text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT_LENGTH


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _all(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _hash(value: Any) -> bool:
    return is_hex(value, 32)


def _time(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _scope(value: Any) -> bool:
    names = {"task", "person", "labels", "records"}
    return isinstance(value, dict) and bool(value) and value.keys() <= names


#: Every field of a statement, and what it must be.
FIELDS: dict[str, Callable[[Any], bool]] = {
    "format": lambda value: value == FORMAT,
    "version": lambda value: type(value) is int and value == VERSION,
    "request": _text,
    "reason": _optional(_text),
    "requester": _optional(_text),
    "received": _time,
    "done": _time,
    "scope": _scope,
    "method": _text,
    "forgets": lambda value: value in FORGETS,
    "exact": lambda value: isinstance(value, bool),
    "salt": _hash,
    "touched": _all(_hash),
    "left": _all(_hash),
    "shared_before": _optional(_hash),
    "shared_after": _optional(_hash),
    "digest_before": _optional(_hash),
    "digest_after": _optional(_hash),
    "keys_destroyed": _all(_hash),
    "machine": _texts,
    "proves": _all(_text),
    "does_not_prove": _all(_text),
}


@dataclass(frozen=True)
class Receipt:
    """`statement` is what was signed; `identity` is the public key that signed it."""

    statement: dict[str, Any]
    identity: str
    signature: str

    @classmethod
    def sign(cls, signing: bytes, facts: Mapping[str, Any]) -> Receipt:
        """Sign facts about a forget request, with what it all proves."""
        about = {"format": FORMAT, "version": VERSION}
        statement = {**about, **facts, "proves": list(PROVES), "does_not_prove": list(DOES_NOT_PROVE)}
        return cls(statement, public_key(signing), sign(signing, canonical(statement).encode()))

    @property
    def sha256(self) -> str:
        """A hash of the statement, which nobody can guess from what it says: its salt is random."""
        return hashlib.sha256(canonical(self.statement).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(vars(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read a receipt without verifying its signature; `BadReceipt` if it is not one."""
        try:
            content = strict_json(text)
            if "pending" in content:
                raise BadReceipt("this receipt is pending: give the same request again to complete it")
            if content.keys() != {"statement", "identity", "signature"}:
                raise ValueError("it has no statement, no identity or no signature, or something else")
            receipt = cls(content["statement"], content["identity"], content["signature"])
            if not is_hex(receipt.identity, 32) or not is_hex(receipt.signature, 64):
                raise ValueError("no public key or no signature")
            if receipt.identity in _WEAK:
                raise ValueError("its public key is one under which anybody can sign")
            _check(receipt.statement)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, BadReceipt):
                raise
            raise BadReceipt(f"not a clpu receipt: {error!s:.200}") from None
        return receipt

    def verify(self, identity: str | None = None) -> None:
        """Raise `BadReceipt` unless the statement is as it was signed and, if given, by the store of that identity."""
        if self.identity in _WEAK or not signed_by(
            self.identity, bytes.fromhex(self.signature), canonical(self.statement).encode()
        ):
            raise BadReceipt("the receipt was changed after it was signed")
        if identity is not None and identity.lower() != self.identity:
            raise BadReceipt(f"the receipt was signed by {self.identity}, not by {identity}")


def _check(statement: Any) -> None:
    if not isinstance(statement, dict) or statement.get("format") != FORMAT:
        raise ValueError("it has a different format")
    if statement.get("version") != VERSION:
        raise ValueError(f"version {statement.get('version')!r:.40}; this clpu reads version {VERSION}")
    odd = sorted(FIELDS.keys() ^ statement.keys())
    if odd:
        raise ValueError(f"unexpected or missing: {', '.join(odd)}")
    for name, good in FIELDS.items():
        if not good(statement[name]):
            raise ValueError(f"{name} is {statement[name]!r:.80}")


def strict_json(text: str) -> dict[str, Any]:
    """A JSON object in which no name occurs twice; `ValueError` otherwise."""
    if len(text) > MAX_BYTES:
        raise ValueError("too long")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name occurs twice")
        return found

    content = json.loads(text, object_pairs_hook=once)
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


def commitment(salt: bytes, content: bytes) -> str:
    """A hash by which nobody without the salt can confirm a guess of the content."""
    return hmac.digest(salt, hashlib.sha256(content).digest(), hashlib.sha256).hex()


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """A small text file from outside; pipes and devices are refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadReceipt(f"{path} is not a plain file")
            return file.read(limit + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadReceipt(f"{path} cannot be read as a receipt: {error!s:.200}") from None


def read_receipt(path: Path) -> Receipt:
    """A receipt from a file."""
    return Receipt.from_json(read_text(path))


def store_identity(path: Path) -> str:
    """The public key with which a store signs."""
    with failures(path, "read"):
        files = open_folder(path)
        try:
            return About.from_bytes(files.read(ABOUT, MAX_JSON_BYTES)).identity
        except FileNotFoundError:
            raise BadStore(f"{path} is not a store: {ABOUT} is missing") from None
        finally:
            files.close()
