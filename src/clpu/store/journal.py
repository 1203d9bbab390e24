"""A journal of forgets, for those who want one: a file outside the store to which lines are only ever appended.

Each line commits to one receipt, to the line before it, and has a number and a signature, so that none can be removed,
changed or put in between. It holds no names: a receipt's hash cannot be guessed, because of its salt.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clpu.errors import BadReceipt
from clpu.io import canonical, sha256
from clpu.store.format import is_hex
from clpu.store.receipt import Receipt, read_text, strict_json
from clpu.store.sealing import public_key, sign, signed_by

FORMAT = "clpu-journal"
VERSION = 1
LONGEST = 1 << 30
#: What the first line commits to in place of a line before it.
START = "0" * 64


def append(path: Path, receipt: Receipt, signing: bytes) -> None:
    """Add a receipt to a journal, durably; one that is in it already is not added again."""
    try:
        with _locked(path) as file:
            text = read_text(path, LONGEST)
            whole, newline, torn = text.rpartition("\n")
            entries = entries_of(whole + newline)
            if any(entry["receipt"] == receipt.sha256 for entry in entries):
                return
            if torn:  # an append was interrupted
                os.ftruncate(file, len((whole + newline).encode()))
            last = (whole.rpartition("\n")[2]).encode()
            entry = {
                "format": FORMAT,
                "version": VERSION,
                "number": len(entries) + 1,
                "previous": sha256(last) if last else START,
                "receipt": receipt.sha256,
                "done": receipt.statement["done"],
                "identity": public_key(signing),
            }
            line = canonical({**entry, "signature": sign(signing, canonical(entry).encode())}) + "\n"
            os.lseek(file, 0, os.SEEK_END)
            os.write(file, line.encode())
            os.fsync(file)
    except OSError as error:
        raise BadReceipt(f"the journal {path} cannot be written: {error.strerror}") from None


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        os.fchmod(file, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


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
    text = read_text(path, LONGEST)
    if text and not text.endswith("\n"):
        raise BadReceipt(f"the last line of {path} is not complete: an append was interrupted; repeat that request")
    entries = entries_of(text)
    if not entries:
        raise BadReceipt(f"{path} has no entries")
    signers = {entry["identity"] for entry in entries}
    if len(signers) > 1:
        raise BadReceipt(f"{path} has entries by {len(signers)} signers; a journal belongs to one store")
    if identity is not None and signers != {identity.lower()}:
        raise BadReceipt(f"the journal was signed by {signers.pop()}, not by {identity}")
    if receipts is not None:
        known = {entry["receipt"] for entry in entries}
        for file in sorted(receipts.glob("*.json")):
            found = Receipt.from_json(read_text(file))
            found.verify(identity)
            if found.sha256 not in known:
                raise BadReceipt(f"{file} is not in the journal")
    return entries
