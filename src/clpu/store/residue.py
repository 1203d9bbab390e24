"""Search files and file names for a text or an array, in every form that we know."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

CHUNK = 1 << 20


@dataclass(frozen=True)
class Trace:
    """Where something was found: in a file at an offset, or, if that is None, in the path's name."""

    path: Path
    offset: int | None
    what: str


def text_forms(text: str) -> dict[str, bytes]:
    """The bytes as which a text may occur in a file.

    >>> sorted(text_forms("é"))
    ['base64', 'hex', 'json', 'percent', 'utf-16-le', 'utf-8']
    """
    plain = text.encode()
    return {
        "utf-8": plain,
        "utf-16-le": text.encode("utf-16-le"),
        "percent": quote(text, safe="").encode(),
        "json": json.dumps(text)[1:-1].encode(),
        "hex": plain.hex().encode(),
        "base64": base64.b64encode(plain).rstrip(b"="),
    }


def number_forms(values: Any) -> dict[str, bytes]:
    """The bytes as which a run of numbers may occur in a file: common types, both byte orders, and as text.

    Give two or more numbers that are unlikely elsewhere: a single one of four bytes is found by chance.

    >>> sorted(number_forms([1.5, 2.5]))[:3]
    ['<f2', '<f4', '<f8']
    """
    array = np.asarray(values).reshape(-1)
    kinds = ("f2", "f4", "f8") if array.dtype.kind == "f" else ("i4", "i8")
    forms = {}
    for kind in kinds:
        for order in "<>":
            with np.errstate(over="ignore"):
                forms[f"{order}{kind}"] = array.astype(f"{order}{kind}").tobytes()
    forms["text"] = ", ".join(str(value) for value in array.tolist()).encode()
    return forms


def search(paths: Iterable[str | os.PathLike[str]], needles: Mapping[str, bytes]) -> list[Trace]:
    """Every place where a needle occurs, in the names and contents of all files in and below the paths.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a").write_bytes(b"..secret..")
    ...     [(t.offset, t.what) for t in search([folder], {"word": b"secret"})]
    [(2, 'word')]
    """
    traces: list[Trace] = []
    sought = {what: needle for what, needle in needles.items() if needle}
    for path in _all_files(paths):
        name = os.fsencode(path.name)
        traces += [Trace(path, None, what) for what, needle in sought.items() if needle in name]
        if path.is_file() and not path.is_symlink():
            traces += _search_file(path, sought)
    return traces


def _all_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    for start in map(Path, paths):
        yield start
        for folder, folders, files in os.walk(start):
            yield from (Path(folder) / name for name in [*folders, *files])


def _search_file(path: Path, needles: Mapping[str, bytes]) -> Iterator[Trace]:
    longest = max(map(len, needles.values()), default=0)
    kept, start = b"", 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            window = kept + chunk
            for what, needle in needles.items():
                at = window.find(needle)
                while at >= 0:
                    if at + len(needle) > len(kept):  # a match within the kept part was reported before
                        yield Trace(path, start + at, what)
                    at = window.find(needle, at + 1)
            kept = window[-(longest - 1) :] if longest > 1 else b""
            start += len(window) - len(kept)
