"""Keys: one for each temporary task (AES-256-GCM), and one that signs receipts (Ed25519); all in one small file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clpu.errors import BadKeys, BadStore
from clpu.store.format import LONGEST_FILE, checked_json, is_hex, to_json

FORMAT = "clpu-keys"
VERSION = 1
NONCE, TAG = 12, 16


@dataclass(frozen=True)
class Keys:
    """The signing key, and each temporary task's key by its file's random name."""

    signing: bytes
    tasks: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Keys:
        return cls(secrets.token_bytes(32))

    @property
    def identity(self) -> str:
        """The public half of the signing key; it is stored in the manifest, and binds the key file to the store."""
        return Ed25519PrivateKey.from_private_bytes(self.signing).public_key().public_bytes_raw().hex()

    def __repr__(self) -> str:  # never a key in a log
        return f"<Keys of store {self.identity[:8]}, {len(self.tasks)} tasks>"

    def sign(self, message: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.signing).sign(message)

    def to_bytes(self) -> bytes:
        """The key file; equal keys give equal bytes."""
        tasks = {name: key.hex() for name, key in self.tasks.items()}
        return to_json({"format": FORMAT, "version": VERSION, "signing": self.signing.hex(), "tasks": tasks})

    @classmethod
    def from_bytes(cls, data: bytes) -> Keys:
        """Read what `to_bytes` wrote; `BadKeys` for anything else."""
        try:
            content = checked_json(data, FORMAT, VERSION, "key file")
            signing, tasks = content["signing"], content["tasks"]
            if not is_hex(signing, 32) or not all(is_hex(n, 16) and is_hex(k, 32) for n, k in tasks.items()):
                raise ValueError("a key or a name is not what it should be")
            keys = cls(bytes.fromhex(signing), {name: bytes.fromhex(key) for name, key in tasks.items()})
        except (BadStore, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadKeys(f"the key file is damaged: {error!s:.300}") from None
        if keys.to_bytes() != data:
            raise BadKeys("the key file is damaged: it is not written as clpu writes it")
        return keys


def new_key() -> bytes:
    return AESGCM.generate_key(256)


def seal(key: bytes, label: str, data: bytes, step: int) -> bytes:
    """Encrypt, after padding to a multiple of `step` bytes so that the length tells little; `label` says what it is.

    >>> key = new_key()
    >>> unseal(key, "greeting", seal(key, "greeting", b"hello", 64))
    b'hello'
    """
    framed = len(data).to_bytes(8, "little") + data
    framed += bytes(-(len(framed) + NONCE + TAG) % step)
    if len(framed) > LONGEST_FILE:
        raise BadStore(f"a temporary task of {len(data)} bytes is too large to be stored; the limit is {LONGEST_FILE}")
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, framed, label.encode())


def unseal(key: bytes, label: str, sealed: bytes) -> bytes:
    """Decrypt what `seal` gave; `BadStore` if one bit, the key or the label differs."""
    try:
        framed = AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], label.encode())
    except (InvalidTag, ValueError):
        raise BadStore(f"{label} cannot be decrypted: wrong key, or the data was modified") from None
    size = int.from_bytes(framed[:8], "little")
    if size > len(framed) - 8:
        raise BadStore(f"{label} is damaged: its length is impossible")
    return framed[8 : 8 + size]


def signed_by(identity: str, signature: bytes, message: bytes) -> bool:
    """Whether the holder of the key file whose public half is `identity` signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
