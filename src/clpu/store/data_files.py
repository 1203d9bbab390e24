"""Data from files: `.npz` (x, y), `.csv` or `.tsv` (with a label column), or a folder of images, one subfolder a class.

The files come from outside, so each is measured before it is loaded, and nothing in them is executed.
"""

from __future__ import annotations

import os
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from clpu.errors import BadData
from clpu.labels import read_labels
from clpu.store.images import SUFFIXES, load_images, most, plain_file
from clpu.tables import read_delimited, take

#: The most bytes that a file may have once it is unpacked.
LIMIT = 4 << 30
#: The same for text, of which each value takes many times its size in memory while it is read.
TEXT_LIMIT = 256 << 20

Array = np.ndarray[Any, Any]

#: Errors of NumPy and zlib at damaged arrays; the header is a Python literal, so Python's parser raises some too.
_DAMAGE = (
    ValueError,
    TypeError,
    SyntaxError,
    EOFError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Table:
    """Inputs (an array, or columns by name), labels and people if there are any, and what the file's form is."""

    x: Any
    y: Array | None = None
    people: list[list[str]] | None = None
    records: Array | None = None
    notes: tuple[str, ...] = ()
    #: The column of labels, if there is one.
    label: str | None = None

    @property
    def examples(self) -> int:
        return len(next(iter(self.x.values()))) if isinstance(self.x, dict) else len(self.x)


def read(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    labelled: bool = True,
    ignore: Sequence[str] = (),
    people: Sequence[str] = (),
    records: str | None = None,
    text: Sequence[str] = (),
    inputs: Collection[str] = (),
    labels: type | None = None,
    limit: int = LIMIT,
) -> Table:
    """Read a file or folder of data.

    Of a .csv or .tsv, `label` names the column of labels (the last one by default), `people` and `records` those of the
    people and ids of records, which are taken as they stand in the file (an empty cell is nobody), `text` those that
    stay text, and `ignore` columns to leave out; columns that a task takes as `inputs` are not taken for labels, and
    labels of a task whose `labels` are of type `str` stay text. With `labelled=False` labels may be missing: a table
    then has no column of labels unless `label` names one, and a folder may hold its images directly.
    """
    file = Path(path)
    try:
        if file.exists() and not file.is_dir() and not file.is_file():
            raise BadData(f"{file} is neither a file nor a folder")
        if file.is_dir():
            found = _images(file, labelled, limit)
        elif not file.exists():
            raise BadData(f"there is no file {file}")
        elif file.suffix.lower() == ".npz":
            found = _npz(file, labelled, limit)
        elif file.suffix.lower() in (".csv", ".tsv", ".txt"):
            most_bytes = min(limit, TEXT_LIMIT)
            return _delimited(file, label, labelled, ignore, people, records, text, inputs, labels, most_bytes)
        else:
            raise BadData(f"{file} is neither .npz nor .csv or .tsv nor a folder of images")
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}") from None
    if label or ignore or people or records:
        raise BadData(f"{file} has no columns with names; options that name columns are for .csv and .tsv")
    return found


def _npz(file: Path, labelled: bool, limit: int) -> Table:
    try:
        with plain_file(file) as content, zipfile.ZipFile(content) as archive:
            allowed = most(os.fstat(content.fileno()).st_size, limit)
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            wanted = ["x", "y"] if labelled or "y.npy" in sizes else ["x"]
            for name in wanted:
                if f"{name}.npy" not in sizes:
                    raise BadData(f"{file} holds {', '.join(sorted(sizes))[:200] or 'nothing'}; expected x and y")
            if sum(sizes[f"{name}.npy"] for name in wanted) > allowed:
                raise BadData(f"{file} unpacks to more than {allowed} bytes; save it uncompressed if that is right")
            arrays = []
            for name in wanted:
                with archive.open(f"{name}.npy") as member:
                    kinds = "fiub" if name == "x" else "fiubU"
                    arrays.append(_npy(member, sizes[f"{name}.npy"], f"{name} in {file}", kinds))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{file} is not an .npz file: {error!s:.200}") from None
    return Table(arrays[0], arrays[1] if len(arrays) > 1 else None)


def _npy(member: IO[bytes], size: int, what: str, kinds: str) -> Array:
    """One array; its header is held against the file's size before memory is taken for it."""
    form = np.lib.format
    try:
        version = form.read_magic(member)
        if version == (1, 0):
            shape, fortran, dtype = form.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, fortran, dtype = form.read_array_header_2_0(member)
        else:
            raise ValueError(f"version {version} of the format")
        if dtype.hasobject or dtype.kind not in kinds:
            raise ValueError(f"expected numbers, got {dtype}")
        count = 1
        for axis in shape:
            count *= axis
        if any(axis < 0 for axis in shape) or count * dtype.itemsize != size - member.tell():
            raise ValueError(f"shape {shape!s:.80} of {dtype} does not fit its {size} bytes")
        flat = np.empty(count, dtype)
        if count and _fill(member, flat.data.cast("B")) < flat.nbytes:
            raise ValueError("it ends too early")
        return flat.reshape(shape, order="F" if fortran else "C")
    except _DAMAGE as error:
        raise BadData(f"{what} is not an array of numbers: {error!s:.200}") from None


def _fill(member: IO[bytes], place: memoryview) -> int:
    """Unpack into memory that is there; how much came."""
    at = 0
    while at < len(place) and (chunk := member.read(min(1 << 20, len(place) - at))):
        place[at : at + len(chunk)] = chunk
        at += len(chunk)
    return at


def _delimited(
    file: Path,
    label: str | None,
    labelled: bool,
    ignore: Sequence[str],
    people: Sequence[str],
    records: str | None,
    text: Sequence[str],
    inputs: Collection[str],
    labels: type | None,
    limit: int,
) -> Table:
    if file.stat().st_size > limit:
        raise BadData(f"{file} has more than {limit} bytes, which is much for text; make an .npz file of it")
    try:
        verbatim = {*people, *text, *([records] if records else [])}
        whole = file.read_text(encoding="utf-8-sig")
        content = read_delimited(whole, str(file), verbatim)
    except UnicodeDecodeError:
        raise BadData(f"{file} is not a text file in UTF-8; save it as one (in a spreadsheet: CSV UTF-8)") from None
    columns, notes = content.columns, content.notes
    if label is None and labelled:
        named = {*ignore, *people, *filter(None, [records]), *inputs}
        label = next((name for name in reversed(columns) if name not in named), list(columns)[-1])
        if not inputs:
            notes = [*notes, f"labels are taken from column {label!r:.60} (--label-column names a different one)"]
    if labels is str and label in columns and not all(isinstance(cell, str) for cell in columns[label].tolist()):
        columns = {**columns, label: read_delimited(whole, str(file), {label}).columns[label]}
    x, y, _, ids = take(columns, label, [*ignore, *people], None, records)
    who = [[one for one in row if one is not None] for row in zip(*(columns[name] for name in people))]
    if (people or records) and labels is None and label not in text and y is not None and y.dtype.kind == "O":
        number = next((cell for cell in y.tolist() if isinstance(cell, str) and cell.lstrip("+-").isdecimal()), None)
        if number is not None:  # without whoever has the other labels, it would be read as an integer
            raise BadData(
                f"column {label!r:.60} has numbers such as {number} and text as labels: declare it as well "
                f"(--text-column {label!r:.60})"
            )
    if not x:
        raise BadData(f"{file} has a label column and nothing else")
    found = None if y is None else _labels(y, f"column {label!r:.60} of {file}")
    return Table(x, found, who if people else None, ids, tuple(notes), label)


def _labels(y: Array, where: str) -> Array:
    """A file's labels; a message about them says where they are."""
    missing = sum(label in ("", None) for label in y.tolist())
    if missing:
        raise BadData(f"{missing} of {len(y)} labels in {where} are missing; leave those rows out")
    try:
        return read_labels(y)
    except BadData as error:
        raise BadData(f"{where} does not hold labels (--label-column names a different one): {error}") from None


def _images(folder: Path, labelled: bool, limit: int) -> Table:
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        if labelled:
            raise BadData(f"{folder} must have one subfolder of images for each class")
        return Table(load_images(_image_files(folder), limit))
    files = {entry: _image_files(entry) for entry in classes}
    x = load_images([file for entry in classes for file in files[entry]], limit)
    return Table(x, np.array([entry.name for entry in classes for _ in files[entry]]))


def _image_files(folder: Path) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    if not found:
        raise BadData(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))})")
    return found
