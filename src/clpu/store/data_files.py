"""Data from files: `.npz` (x, y), `.csv` (header; a label column), or a folder of images, one subfolder a class.

The files come from outside, so each is measured before it is loaded, and nothing in them is executed.
"""

from __future__ import annotations

import csv
import os
import tokenize
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from clpu.errors import BadData, MissingPackage

#: The most bytes that a file may have once it is unpacked.
LIMIT = 4 << 30
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}

Array = np.ndarray[Any, Any]

#: What NumPy and zlib raise at damaged arrays; the header is a Python literal, so Python's parser has a say as well.
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
    """Inputs, labels if there are any, and what the labels mean if the file says so."""

    x: Array
    y: Array | None = None
    meanings: dict[int, str] | None = None


def read(path: str | os.PathLike[str], *, label: str | None = None, labelled: bool = True, limit: int = LIMIT) -> Table:
    """Read a file or folder of data. `label` names the label column of a .csv; the last one by default.

    With `labelled=False` labels may be missing: a .csv then has no label column unless `label` names one, and a
    folder may hold its images directly.
    """
    file = Path(path)
    try:
        if file.is_dir():
            return _images(file, labelled, limit)
        kind = file.suffix.lower()
        if kind == ".npz":
            return _npz(file, labelled, limit)
        if kind == ".csv":
            return _csv(file, label, labelled, limit)
        if not file.exists():
            raise BadData(f"there is no file {file}")
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}") from None
    raise BadData(f"{file} is neither .npz nor .csv nor a folder of images")


def _npz(file: Path, labelled: bool, limit: int) -> Table:
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            wanted = ["x", "y"] if labelled or "y.npy" in sizes else ["x"]
            for name in wanted:
                if f"{name}.npy" not in sizes:
                    raise BadData(f"{file} holds {', '.join(sorted(sizes))[:200] or 'nothing'}; expected x and y")
            if sum(sizes[f"{name}.npy"] for name in wanted) > limit:
                raise BadData(f"{file} unpacks to more than {limit} bytes")
            arrays = []
            for name in wanted:
                with archive.open(f"{name}.npy") as member:
                    arrays.append(_npy(member, sizes[f"{name}.npy"], f"{name} in {file}"))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadData(f"{file} is not an .npz file: {error!s:.200}") from None
    return Table(arrays[0], arrays[1] if len(arrays) > 1 else None)


def _npy(member: IO[bytes], size: int, what: str) -> Array:
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
        if dtype.hasobject or dtype.kind not in "fiub":
            raise ValueError(f"expected numbers, got {dtype}")
        count = 1
        for axis in shape:
            count *= axis
        if any(axis < 0 for axis in shape) or count * dtype.itemsize != size - member.tell():
            raise ValueError(f"shape {shape!s:.80} of {dtype} does not fit its {size} bytes")
        flat = np.frombuffer(member.read(size), dtype=dtype, count=count)
        return flat.reshape(shape, order="F" if fortran else "C").copy()
    except _DAMAGE as error:
        raise BadData(f"{what} is not an array of numbers: {error!s:.200}") from None


def _csv(file: Path, label: str | None, labelled: bool, limit: int) -> Table:
    if file.stat().st_size > limit:
        raise BadData(f"{file} has more than {limit} bytes")
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            header = next(csv.reader(lines), [])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an empty file is refused below
                values = np.loadtxt(lines, delimiter=",", quotechar='"', comments=None, ndmin=2, dtype=np.float64)
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        raise BadData(f"{file} is not a table of numbers with a header: {error!s:.200}") from None
    if not len(values):
        raise BadData(f"{file} has no rows below its header")
    if values.shape[1] != len(header):
        raise BadData(f"{file} has {len(header)} names in its header and {values.shape[1]} columns")
    if label is not None and header.count(label) != 1:
        raise BadData(f"{file} has no one column {label!r}; its columns are {', '.join(header)[:200]}")
    if np.nanmax(np.abs(values), initial=0) > np.finfo(np.float32).max:  # infinity included
        raise BadData(f"{file} holds numbers beyond the range of 32 bits")
    if label is None and not labelled:
        return Table(values.astype(np.float32))
    column = len(header) - 1 if label is None else header.index(label)
    y = values[:, column]
    if not np.all(y == np.round(y)) or np.abs(y).max() > 2**53:
        raise BadData(f"column {header[column]!r:.80} of {file} holds labels, which must be integers")
    x = np.delete(values, column, axis=1)
    if x.shape[1] == 0:
        raise BadData(f"{file} has a label column and nothing else")
    return Table(x.astype(np.float32), y.astype(np.int64))


def _images(folder: Path, labelled: bool, limit: int) -> Table:
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        if labelled:
            raise BadData(f"{folder} must have one subfolder of images for each class")
        return Table(_load_images(_image_files(folder), limit))
    files = {entry: _image_files(entry) for entry in classes}
    numbers = {entry: int(entry.name) for entry in classes if entry.name.isdecimal() and len(entry.name) < 16}
    if len(set(numbers.values())) < len(classes):
        numbers = {entry: number for number, entry in enumerate(classes)}
    x = _load_images([file for entry in classes for file in files[entry]], limit)
    y = np.concatenate([np.full(len(files[entry]), numbers[entry], np.int64) for entry in classes])
    return Table(x, y, {numbers[entry]: entry.name for entry in classes})


def _image_files(folder: Path) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGES)
    if not found:
        raise BadData(f"{folder} holds no images ({', '.join(sorted(IMAGES))})")
    return found


def _load_images(files: list[Path], limit: int) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingPackage("reading images needs the package pillow: pip install pillow") from None
    arrays, mode, size = [], "L", None
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(file) as image:
                    if size is None:
                        size = image.size
                        if size[0] * size[1] * 3 * len(files) > limit:
                            raise BadData(f"{len(files)} images of {size[0]} by {size[1]} take more than {limit} bytes")
                    if image.size != size:
                        raise BadData(
                            f"{file} is {image.size[0]} by {image.size[1]}, the first image {size[0]} by {size[1]}"
                        )
                    if image.mode not in ("1", "L"):
                        mode = "RGB"
                    arrays.append(np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB")))
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
            if isinstance(error, BadData):
                raise
            raise BadData(f"{file} is not an image that can be read: {error!s:.200}") from None
    if mode == "L":
        return np.stack(arrays)
    coloured = [np.stack([a] * 3) if a.ndim == 2 else a.transpose(2, 0, 1) for a in arrays]
    return np.stack(coloured)
