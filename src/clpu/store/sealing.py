"""Encryption and signatures: what has a random key (AES-256-GCM), what is deterministic (AES-SIV), and Ed25519."""

from __future__ import annotations

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from clpu.errors import BadStore
from clpu.store.format import MAX_FILE_BYTES

NONCE, TAG = 12, 16
#: A file is padded to a multiple of this, so that its size reveals little.
STEP = 4096


def new_key() -> bytes:
    return os.urandom(32)


def derived(key: bytes, purpose: str) -> bytes:
    """64 bytes for one purpose, from which neither the key nor those for other purposes follow."""
    return hmac.digest(key, purpose.encode(), hashlib.sha512)


def keyed_name(key: bytes, content: bytes) -> str:
    """A file's name that follows from its content, for those who have the key."""
    return hmac.digest(key, content, hashlib.sha256).hex()[:32]


def seal(key: bytes, label: str, data: bytes, step: int = STEP) -> bytes:
    """Encrypt under a random nonce, after padding to a multiple of `step` bytes; `label` says what it is.

    >>> key = new_key()
    >>> unseal(key, "greeting", seal(key, "greeting", b"hello", 64))
    b'hello'
    """
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, _framed(data, NONCE + TAG, step), label.encode())


def unseal(key: bytes, label: str, sealed: bytes) -> bytes:
    """Decrypt what `seal` gave; `BadStore` if one bit, the key or the label differs."""
    try:
        framed = AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], label.encode())
    except (InvalidTag, ValueError):
        raise BadStore(f"{label} cannot be decrypted: wrong key, or the data was modified") from None
    return _unframed(framed, label)


def seal_always(key: bytes, label: str, data: bytes) -> bytes:
    """Encrypt so that equal content gives equal bytes (SIV): for parts without their own random key.

    >>> key = new_key()
    >>> seal_always(key, "greeting", b"hello") == seal_always(key, "greeting", b"hello")
    True
    """
    return AESSIV(derived(key, "permanent")).encrypt(_framed(data, TAG, STEP), [label.encode()])


def unseal_always(key: bytes, label: str, sealed: bytes) -> bytes:
    """Decrypt what `seal_always` gave; `BadStore` if one bit, the key or the label differs."""
    try:
        framed = AESSIV(derived(key, "permanent")).decrypt(sealed, [label.encode()])
    except (InvalidTag, ValueError):
        raise BadStore(f"{label} cannot be decrypted: wrong key, or the data was modified") from None
    return _unframed(framed, label)


def _framed(data: bytes, overhead: int, step: int) -> bytes:
    size = 8 + len(data)
    size += -(size + overhead) % step
    if size + overhead > MAX_FILE_BYTES:
        raise BadStore(f"{len(data)} bytes are too many for one file of a store; the limit is {MAX_FILE_BYTES}")
    return (len(data).to_bytes(8, "little") + data).ljust(size, b"\0")


def _unframed(framed: bytes, label: str) -> bytes:
    size = int.from_bytes(framed[:8], "little")
    if size > len(framed) - 8:
        raise BadStore(f"{label} is damaged: its length is impossible")
    return framed[8 : 8 + size]


def public_key(signing: bytes) -> str:
    """The public half of a signing key."""
    return Ed25519PrivateKey.from_private_bytes(signing).public_key().public_bytes_raw().hex()


def sign(signing: bytes, message: bytes) -> str:
    return Ed25519PrivateKey.from_private_bytes(signing).sign(message).hex()


def signed_by(identity: str, signature: bytes, message: bytes) -> bool:
    """Whether the holder of the signing key whose public half is `identity` signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
