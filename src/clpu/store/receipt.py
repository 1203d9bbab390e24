"""A signed statement for the person who asked to be forgotten. The store keeps nothing of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clpu.errors import BadReceipt, BadStore
from clpu.io import canonical
from clpu.store.files import Files, failures
from clpu.store.format import LONGEST_JSON, MANIFEST, Manifest, is_hex
from clpu.store.keys import Keys, signed_by

FORMAT = "clpu-receipt"
VERSION = 1
LONGEST = 1 << 16

PROVES = (
    "The holder of this store's signing key states that the task named here was forgotten at the time given: the key "
    "and the encrypted file of a temporary task, or the unencrypted file of a permanent one, named here by their "
    "SHA-256, were removed from the store, and the agent's digest changed as given.",
    "If `exact` is true, the method is one whose state after forgetting equals, bit for bit, the state of an agent "
    "that never learned the task; whoever can rebuild that agent can compare its digest with `digest_after`.",
)
DOES_NOT_PROVE = (
    "That no copy exists: of the data, of the key file, of the store (a backup, a file-system snapshot), "
    "of predictions made earlier, in memory, in swap, or in spare blocks of a flash disk.",
    "That the statement is honest: it is signed by the party that operates the store.",
    "That the task was never learned elsewhere or under another name.",
)


@dataclass(frozen=True)
class Receipt:
    """`statement` is what was signed; `identity` is the public key that signed it."""

    statement: dict[str, Any]
    identity: str
    signature: str

    @classmethod
    def sign(cls, keys: Keys, facts: dict[str, Any]) -> Receipt:
        """Sign facts about a forget, with the time and what it all proves."""
        statement = {
            "format": FORMAT,
            "version": VERSION,
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **facts,
            "proves": list(PROVES),
            "does_not_prove": list(DOES_NOT_PROVE),
        }
        return cls(statement, keys.identity, keys.sign(canonical(statement).encode()).hex())

    def to_json(self) -> str:
        return json.dumps(vars(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read a receipt without verifying it; `BadReceipt` if it is not one."""
        try:
            if len(text) > LONGEST:
                raise ValueError("too long")
            content = json.loads(text)
            receipt = cls(content["statement"], content["identity"], content["signature"])
            if not is_hex(receipt.identity, 32) or not is_hex(receipt.signature, 64):
                raise ValueError("no public key or no signature")
            if receipt.statement["format"] != FORMAT:
                raise ValueError("it has a different format")
            canonical(receipt.statement)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadReceipt(f"not a clpu receipt: {error!s:.200}") from None
        return receipt

    def verify(self, identity: str | None = None) -> None:
        """Raise `BadReceipt` unless the statement is as it was signed and, if given, by the store of that identity."""
        if not signed_by(self.identity, bytes.fromhex(self.signature), canonical(self.statement).encode()):
            raise BadReceipt("the receipt was changed after it was signed")
        if identity is not None and identity != self.identity:
            raise BadReceipt(f"the receipt was signed by {self.identity}, not by {identity}")


def read_receipt(path: Path) -> Receipt:
    """A receipt from a file."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        return Receipt.from_json(content.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise BadReceipt(f"{path} cannot be read as a receipt: {error!s:.200}") from None


def store_identity(path: Path) -> str:
    """The public key with which a store signs."""
    with failures(path, "read"):
        try:
            files = Files(path)
        except (FileNotFoundError, NotADirectoryError):
            raise BadStore(f"there is no store at {path}") from None
        try:
            return Manifest.from_bytes(files.read(MANIFEST, limit=LONGEST_JSON)).identity
        except FileNotFoundError:
            raise BadStore(f"{path} is not a store: {MANIFEST} is missing") from None
        finally:
            files.close()
