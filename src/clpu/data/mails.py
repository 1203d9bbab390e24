"""Read mails as bytes: who sent them, and the text that they begin with.

Python's own parser of mails changes from version to version. What is read here must be the same for ever, because its
checksum is pinned, so it is cut out of the bytes by a few rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

#: Bytes of a mail's body that are looked at; a longer one does not get past the text's length anyway.
_BODY = 20_000
_HEADER = rb"(?im)^%s:[ \t]*(.*(?:\r?\n[ \t].*)*)"
_FROM, _SUBJECT = (re.compile(_HEADER % name) for name in (b"from", b"subject"))
_IN_BRACKETS = re.compile(rb"<([^<>@\s]+@[^<>@\s]+)>")
_BARE = re.compile(rb"[^\s<>()\",;:]+@[^\s<>()\",;:]+")
_PART = re.compile(rb"(?im)^(--|content-).*$")
_UNSEEN = re.compile(rb"(?is)<(style|script|title)\b.{0,5000}?</\1>")
_TAG = re.compile(rb"(?s)<[^<>]{0,1000}>")
_BYTE = re.compile(rb"=([0-9A-Fa-f]{2})")
_GAP = re.compile(rb"[^\x21-\x7e]+")


def read_mail(content: bytes) -> tuple[bytes, bytes]:
    r"""Return the sender's address, in small letters, and the text: the subject, then the body without markup.

    The text is printable ASCII. Of the header nothing but the subject is in it. Without an address the sender is b"".

    >>> read_mail(b"From: Ann <Ann@Example.org>\nSubject: Hello\n\nDear <b>Bob</b>,\n  how are you?")
    (b'ann@example.org', b'Hello Dear Bob , how are you?')
    """
    head, _, body = content.replace(b"\r\n", b"\n").partition(b"\n\n")
    body = body[:_BODY]
    found, subject = _FROM.search(head), _SUBJECT.search(head)
    address = None if found is None else _IN_BRACKETS.search(found[1]) or _BARE.search(found[1])
    sender = b"" if address is None else address[address.lastindex or 0].lower()
    if b"quoted-printable" in (head + body).lower():
        body = _BYTE.sub(lambda code: bytes((int(code[1], 16),)), body.replace(b"=\n", b""))
    body = _TAG.sub(b" ", _UNSEEN.sub(b" ", _PART.sub(b" ", body)))
    text = (subject[1] if subject else b"") + b" " + body
    return sender, _GAP.sub(b" ", text).strip()


def to_rows(texts: Iterable[bytes], size: int) -> NDArray[np.uint8]:
    """Return texts as rows of bytes, cut to `size`, with zeros after their end."""
    return np.array([np.frombuffer(text[:size].ljust(size, b"\0"), np.uint8) for text in texts])


def texts(rows: NDArray[np.uint8]) -> list[str]:
    """Return the texts in rows of bytes.

    >>> texts(to_rows([b"Hello", b""], 8))
    ['Hello', '']
    """
    return [bytes(row).rstrip(b"\0").decode("ascii", "replace") for row in np.asarray(rows, dtype=np.uint8)]
