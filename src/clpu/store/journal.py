"""A journal of forgets, for those who want one: a file outside the store to which lines are only ever appended.

Each line commits to one receipt, to the line before it, and has a number and a signature, so that none can be removed,
changed or put in between. It holds no names: a receipt's hash cannot be guessed, because of its salt.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clpu.errors import BadReceipt
from clpu.io import canonical, sha256, sync_folder
from clpu.store.format import is_hex
from clpu.store.receipt import Receipt, read_text, strict_json
from clpu.store.sealing import public_key, sign, signed_by

FORMAT = "clpu-journal"
VERSION = 1
MAX_BYTES = 1 << 30
#: The hash to which the first line commits in place of a line before it.
START = "0" * 64


class Journal:
    """A journal to which one store's receipts are added; made at the first."""

    def __init__(self, path: Path, signing: bytes) -> None:
        """Refuse, before anything is forgotten, a place that cannot hold the journal, or somebody else's file."""
        self.path, self.signing = path, signing
        if path.exists() or path.is_symlink():
            with self._open(os.O_RDWR) as file:
                _refuse_other_signers(entries_of("".join(self._read(file))), public_key(signing), path)
        elif not path.parent.is_dir():
            raise BadReceipt(f"the journal {path} cannot be written: there is no folder {path.parent}")

    def append(self, receipts: Iterable[Receipt]) -> None:
        """Add receipts, durably; one that is in it already is not added again."""
        new = not self.path.exists()
        with self._open(os.O_RDWR | os.O_CREAT) as file:
            lines = self._read(file)
            os.ftruncate(file, sum(map(len, lines)))  # an append that was interrupted
            os.lseek(file, 0, os.SEEK_END)
            known = {strict_json(line)["receipt"] for line in lines}
            for receipt in receipts:
                if receipt.sha256 not in known:
                    lines.append(self._line(receipt, lines))
                    _write(file, lines[-1].encode())
            os.fsync(file)
            if new:
                os.fchmod(file, 0o600)
                sync_folder(self.path.parent)

    def _line(self, receipt: Receipt, before: list[str]) -> str:
        entry = {
            "format": FORMAT,
            "version": VERSION,
            "number": len(before) + 1,
            "previous": sha256(before[-1].removesuffix("\n")) if before else START,
            "receipt": receipt.sha256,
            "done": receipt.statement["done"],
            "identity": public_key(self.signing),
        }
        return canonical({**entry, "signature": sign(self.signing, canonical(entry).encode())}) + "\n"

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        """The file, locked; it is its owner's alone if it is made."""
        try:
            file = os.open(self.path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise BadReceipt(f"the journal {self.path} is not a plain file")
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise BadReceipt(f"the journal {self.path} cannot be written: {error.strerror or error}") from None

    def _read(self, file: int) -> list[str]:
        """Its complete lines."""
        size = os.fstat(file).st_size
        if size > MAX_BYTES:
            raise BadReceipt(f"the journal {self.path} has more than {MAX_BYTES} bytes; begin a new one")
        try:
            lines = os.pread(file, size, 0).decode("ascii").splitlines(keepends=True)
        except UnicodeDecodeError:
            raise BadReceipt(f"{self.path} is not a journal") from None
        return lines[:-1] if lines and not lines[-1].endswith("\n") else lines


def _write(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _refuse_other_signers(entries: list[dict[str, Any]], identity: str | None, path: Path) -> None:
    signers = sorted({entry["identity"] for entry in entries})
    if len(signers) > 1:
        raise BadReceipt(f"{path} has entries by {len(signers)} signers; a journal belongs to one store")
    if identity is not None and signers and signers != [identity.lower()]:
        raise BadReceipt(f"the journal was signed by {signers[0]}, not by {identity}")


def entries_of(text: str) -> list[dict[str, Any]]:
    """The entries of a journal; `BadReceipt` if its chain is broken."""
    entries: list[dict[str, Any]] = []
    previous = START
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = strict_json(line)
            signature = entry.get("signature")
            said = {name: value for name, value in entry.items() if name != "signature"}
            names = {"format", "version", "number", "previous", "receipt", "done", "identity"}
            if said.keys() != names or said["format"] != FORMAT or said["version"] != VERSION:
                raise ValueError("it is not a line of a journal")
            if said["number"] != number or said["previous"] != previous:
                raise ValueError("lines before it are missing or were changed")
            if not (is_hex(said["receipt"], 32) and is_hex(said["identity"], 32) and is_hex(signature, 64)):
                raise ValueError("it has no receipt or no signature")
            if not signed_by(said["identity"], bytes.fromhex(str(signature)), canonical(said).encode()):
                raise ValueError("it was changed after it was signed")
        except (ValueError, TypeError, RecursionError) as error:
            raise BadReceipt(f"line {number} of the journal is not good: {error!s:.200}") from None
        previous = sha256(line.encode())
        entries.append(entry)
    return entries


def verify_journal(path: Path, identity: str | None = None, receipts: Path | None = None) -> list[dict[str, Any]]:
    """The entries of a journal, if none is missing or changed, all are by one signer, and every receipt is in it."""
    text = read_text(path, MAX_BYTES)
    if text and not text.endswith("\n"):
        raise BadReceipt(f"the last line of {path} is not complete: an append was interrupted; repeat that request")
    entries = entries_of(text)
    if not entries:
        raise BadReceipt(f"{path} has no entries")
    _refuse_other_signers(entries, identity, path)
    if receipts is not None:
        known = {entry["receipt"] for entry in entries}
        for file in sorted(receipts.glob("*.json")):
            found = Receipt.from_json(read_text(file))
            found.verify(identity)
            if found.sha256 not in known:
                raise BadReceipt(f"{file} is not in the journal")
    return entries
