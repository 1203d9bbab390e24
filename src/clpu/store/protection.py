"""Protect the master keys at rest: not at all, by a passphrase, or by a command that you name.

A command is a key service in a separate process: it is started with the further argument `wrap` or `unwrap`, reads
bytes in base64 from its standard input, and writes the answer in base64 to its standard output. The store never
remembers the command: who can write to a store must not be able to have a program run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clpu.errors import BadKeys, BadStore
from clpu.store.format import is_hex
from clpu.store.sealing import seal, unseal

#: Seconds that a key service may take.
PATIENCE = 60
#: scrypt: 128 MiB and some tenths of a second for each guess.
COST = {"n": 2**17, "r": 8, "p": 1}
LABEL = "master keys"


@dataclass(frozen=True)
class Unlock:
    """The secret that opens protected master keys; nothing of it is stored."""

    passphrase: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if self.passphrase is not None and self.command is not None:
            raise BadKeys("keys are protected by a passphrase or by a command, not by both")
        if self.passphrase == "":
            raise BadKeys("the passphrase is empty")

    def __repr__(self) -> str:  # never a passphrase in a log
        return f"<Unlock by {'passphrase' if self.passphrase else 'command' if self.command else 'nothing'}>"

    def protect(self, secret: bytes) -> dict[str, Any]:
        """A secret as `master.json` holds it."""
        if self.passphrase is not None:
            salt = os.urandom(16)
            sealed = seal(_stretched(self.passphrase, salt), LABEL, secret, 16)
            return {"protection": "passphrase", "salt": salt.hex(), "secret": sealed.hex()}
        if self.command is not None:
            return {"protection": "command", "secret": _ask(self.command, "wrap", secret).hex()}
        return {"protection": "none", "secret": secret.hex()}

    def unprotect(self, content: dict[str, Any], where: str) -> bytes:
        """The opposite of `protect`; `BadKeys` says what is missing."""
        kind, secret = content.get("protection"), content.get("secret")
        if not isinstance(secret, str) or not is_hex(secret, len(secret) // 2):
            raise BadKeys(f"{where} is damaged: it has no secret")
        held = bytes.fromhex(secret)
        if kind == "none":
            return held
        if kind == "passphrase":
            if self.passphrase is None:
                raise BadKeys(f"{where} is protected by a passphrase: give it with --passphrase-file FILE")
            if not is_hex(content.get("salt"), 16):
                raise BadKeys(f"{where} is damaged: it has no salt")
            try:
                return unseal(_stretched(self.passphrase, bytes.fromhex(content["salt"])), LABEL, held)
            except BadStore:
                raise BadKeys(f"the passphrase does not open {where}; nothing was changed") from None
        if kind == "command":
            if self.command is None:
                raise BadKeys(f"{where} is protected by a key service: name it with --key-command COMMAND")
            return _ask(self.command, "unwrap", held)
        raise BadKeys(f"{where} is damaged: unknown protection {kind!r:.40}")


def _stretched(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=salt, maxmem=1 << 28, dklen=32, **COST)


def _ask(command: str, verb: str, data: bytes) -> bytes:
    """Ask a key service, and return its answer."""
    try:
        words = [*shlex.split(command), verb]
        done = subprocess.run(words, input=base64.b64encode(data), capture_output=True, timeout=PATIENCE, check=True)
        return base64.b64decode(done.stdout.strip(), validate=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip() or f"exit code {error.returncode}"
        raise BadKeys(f"the key service refused to {verb} the master keys: {said[:200]}") from None
    except subprocess.TimeoutExpired:
        raise BadKeys(f"the key service did not {verb} the master keys within {PATIENCE} s") from None
    except (OSError, ValueError, binascii.Error) as error:
        raise BadKeys(f"the key command cannot be used: {error!s:.200}") from None


def read_passphrase(path: Path) -> str:
    """The first line of a file."""
    try:
        with path.open("rb") as file:  # a pipe is waited for: a shell's <(command) is one
            return file.readline(4096).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeys(f"the passphrase cannot be read from {path}: {error!s:.200}") from None
