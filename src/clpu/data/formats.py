"""Decode the original formats of the data sets into the four canonical arrays.

Every reader checks structure before content: the magic number, the counts, the exact size.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clpu.data.catalog import DATASETS, DatasetSpec, Format, Layout, RawFile
from clpu.data.errors import DamagedFile, SourceFailed, WrongChecksum
from clpu.data.frames import read_frames
from clpu.data.mails import read_mail, to_rows
from clpu.data.pickles import read_batch

Arrays = dict[str, NDArray[Any]]
Pair = tuple[NDArray[np.uint8], NDArray[np.int64]]


def decode(spec: DatasetSpec, layout: Layout, raw: Mapping[str, bytes], origin: str) -> Arrays:
    """Decode a data set's raw files into the canonical arrays; `origin` names them in error messages."""
    if layout.format in _WHOLE:
        return _WHOLE[layout.format](spec, layout, raw, origin)
    arrays: Arrays = {}
    for split, files, count in (
        ("train", layout.train, spec.counts[0]),
        ("test", layout.test, spec.counts[1]),
    ):
        x, y = _READERS[layout.format](spec, files, count, raw, origin)
        if y.size and not 0 <= int(y.min()) <= int(y.max()) < spec.classes:
            raise DamagedFile(
                f"{origin}: {split} labels run from {y.min()} to {y.max()}, expected 0 to {spec.classes - 1}"
            )
        arrays[f"{split}_x"], arrays[f"{split}_y"] = x, y
    return arrays


def digest(array: NDArray[Any]) -> str:
    """Compute SHA-256 of an array's bytes in C order (labels as little-endian int64), as pinned in the catalogue.

    >>> digest(np.zeros(1, np.uint8)) == hashlib.sha256(b"\\0").hexdigest()
    True
    """
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(array.data).hexdigest()


def _check_raw(file: RawFile, data: bytes, origin: str) -> None:
    if not file.sha256 or (actual := hashlib.sha256(data).hexdigest()) == file.sha256:
        return
    owner = next(
        (
            entry.title
            for entry in DATASETS.values()
            for layout in entry.layouts
            for other in layout.files
            if other.sha256 == actual
        ),
        None,
    )
    what = f"that file belongs to {owner}" if owner else "download it again"
    raise WrongChecksum(
        f"{file.name} in {origin} is not the official file: SHA-256 {actual}, expected {file.sha256}; {what}"
    )


def _read_idx(spec: DatasetSpec, files: tuple[RawFile, ...], count: int, raw: Mapping[str, bytes], origin: str) -> Pair:
    images, labels = files
    x = _idx_array(images, raw[images.name], (count, *spec.image), origin)
    y = _idx_array(labels, raw[labels.name], (count,), origin)
    return x, y.astype(np.int64)


def _idx_array(file: RawFile, data: bytes, shape: tuple[int, ...], origin: str) -> NDArray[np.uint8]:
    """Decode IDX: two zero bytes, 8 for unsigned bytes, the number of dimensions, each as big-endian uint32."""
    header = 4 + 4 * len(shape)
    magic = bytes((0, 0, 8, len(shape)))
    if data[:4] != magic:
        raise DamagedFile(
            f"{file.name} in {origin} starts with {data[:4].hex() or 'nothing'}, not with the magic number"
            f" {magic.hex()} of an IDX file"
        )
    if len(data) < header:
        raise DamagedFile(f"{file.name} in {origin} is truncated within its header")
    actual = struct.unpack(f">{len(shape)}I", data[4:header])
    if actual != shape:
        raise DamagedFile(f"{file.name} in {origin} declares shape {actual}, expected {shape}")
    _check_size(file, len(data), header + int(np.prod(shape)), origin)
    _check_raw(file, data, origin)
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _read_cifar_binary(
    spec: DatasetSpec, files: tuple[RawFile, ...], count: int, raw: Mapping[str, bytes], origin: str
) -> Pair:
    """Decode one record per image: its label (CIFAR-100: coarse, then fine), then the pixels, channel first."""
    head = 2 if spec.classes == 100 else 1
    pixels = int(np.prod(spec.image))
    each = count // len(files)
    x = np.empty((count, pixels), np.uint8)
    y = np.empty(count, np.int64)
    for number, file in enumerate(files):
        data = raw[file.name]
        _check_size(file, len(data), each * (head + pixels), origin)
        _check_raw(file, data, origin)
        records = np.frombuffer(data, np.uint8).reshape(each, head + pixels)
        rows = slice(number * each, (number + 1) * each)
        x[rows], y[rows] = records[:, head:], records[:, head - 1]
    return x.reshape(count, *spec.image), y


def _read_cifar_python(
    spec: DatasetSpec, files: tuple[RawFile, ...], count: int, raw: Mapping[str, bytes], origin: str
) -> Pair:
    each = count // len(files)
    pixels = int(np.prod(spec.image))
    key = "fine_labels" if spec.classes == 100 else "labels"
    x = np.empty((count, pixels), np.uint8)
    y = np.empty(count, np.int64)
    for number, file in enumerate(files):
        rows = slice(number * each, (number + 1) * each)
        data, by_column, labels = read_batch(raw[file.name], key, f"{file.name} in {origin}")
        _check_size(file, len(data), each * pixels, origin)
        if len(labels) != each:
            raise DamagedFile(f"{file.name} in {origin} contains {len(labels)} labels, expected {each}")
        x[rows] = np.frombuffer(data, np.uint8).reshape((each, pixels), order="F" if by_column else "C")
        y[rows] = labels
    return x.reshape(count, *spec.image), y


def _read_png_strips(
    spec: DatasetSpec, files: tuple[RawFile, ...], count: int, raw: Mapping[str, bytes], origin: str
) -> Pair:
    """Decode one PNG per batch with one image per row, its pixels in row order, and a JSON list of labels."""
    *strips, labels = files
    channels, height, width = spec.image
    each = count // len(strips)
    x = np.empty((count, *spec.image), np.uint8)
    for number, file in enumerate(strips):
        strip = _png(file, raw[file.name], (height * width, each), origin)
        rows = slice(number * each, (number + 1) * each)
        x[rows] = strip.reshape(each, height, width, channels).transpose(0, 3, 1, 2)
    try:
        values = json.loads(raw[labels.name])
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{labels.name} in {origin} is not JSON ({error})") from error
    if not isinstance(values, list) or len(values) != count or {type(value) for value in values} != {int}:
        raise DamagedFile(f"{labels.name} in {origin} is not a list of {count} integers")
    if not all(0 <= value < spec.classes for value in values):
        raise DamagedFile(f"{labels.name} in {origin} contains labels outside 0 to {spec.classes - 1}")
    return x, np.array(values, np.int64)


def _png(file: RawFile, data: bytes, size: tuple[int, int], origin: str) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise SourceFailed(f"{file.name} in {origin} requires Pillow: pip install pillow") from error
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.size != size or image.mode != "RGB":  # in the header, before anything is decompressed
                raise DamagedFile(f"{file.name} in {origin} is {image.size} {image.mode}, expected {size} RGB")
            return np.asarray(image)
    except DamagedFile:
        raise
    except Exception as error:  # Pillow raises many types on broken input
        raise DamagedFile(f"{file.name} in {origin} is not a complete PNG file ({error})") from error


#: The columns of a recording: acceleration in g and angular velocity in rad/s.
_AXES = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")


def _read_hapt(spec: DatasetSpec, layout: Layout, raw: Mapping[str, bytes], origin: str) -> Arrays:
    """Cut recordings into windows, each within one activity, that begin every half window.

    A person's first recording is for training, the later ones are for testing. Numbers are rounded to 1/`unit`;
    activities 1 … 6 become labels 0 … 5, transitions and the rest are left out.
    """
    (file,) = layout.files
    _check_raw(file, raw[file.name], origin)
    size = spec.image[1]
    found: dict[str, list[Any]] = {part: [] for part in spec.shapes}
    for person, recordings in sorted(read_frames(raw[file.name], f"{file.name} in {origin}").items()):
        for number, table in enumerate(recordings):
            if not {*_AXES, "label"} <= set(table):
                raise DamagedFile(f"{file.name} in {origin} lacks columns of {spec.name}")
            signals, labels = np.rint(np.stack([table[axis] for axis in _AXES]) * spec.unit), table["label"]
            if not (np.abs(signals) < 2**15).all():  # false for what is not a number
                raise DamagedFile(f"{file.name} in {origin} contains numbers that cannot be measurements")
            split = "train" if number == 0 else "test"
            for first, end in pairwise([0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]):
                starts = range(first, end - size + 1, size // 2) if 1 <= labels[first] <= spec.classes else ()
                for start in starts:
                    found[f"{split}_x"].append(signals[:, start : start + size].astype(np.int16))
                    found[f"{split}_y"].append(int(labels[first]) - 1)
                    found[f"{split}_people"].append(person)
    if not all(found.values()):
        raise DamagedFile(f"{file.name} in {origin} has no windows to train on, or none to test on")
    return {part: np.stack(a) if part.endswith("_x") else np.array(a, np.int64) for part, a in found.items()}


#: Of the mails, about one in five is for testing.
_TEST_SHARE = 51 / 256


def _read_mails(spec: DatasetSpec, layout: Layout, raw: Mapping[str, bytes], origin: str) -> Arrays:
    """Read mails in folders of spam and ham: label 1 and 0, the sender as a number, the text as bytes.

    A hash of a mail's name decides whether it is for testing, whatever the others are. Senders are numbered in the
    order of their addresses, from 1; 0 has none.
    """
    mails = {name: read_mail(content) for name, content in sorted(raw.items())}
    numbers = {sender: number for number, sender in enumerate(sorted({s for s, _ in mails.values() if s}), 1)}
    parts: dict[str, list[tuple[bytes, int, int]]] = {"train": [], "test": []}
    for name, (sender, text) in mails.items():
        folder = name.partition("/")[0]
        if not folder.startswith(("spam-", "easy-ham-", "hard-ham-")):
            raise DamagedFile(f"{origin} contains {name!r:.80}, which is in no folder of spam or ham")
        drawn = hashlib.sha256(f"clpu mail {name}".encode()).digest()[0]
        split = "test" if drawn / 256 < _TEST_SHARE else "train"
        parts[split].append((text, int(folder.startswith("spam-")), numbers.get(sender, 0)))
    arrays: Arrays = {}
    for split, found in parts.items():
        if not found:
            raise DamagedFile(f"{origin} has no mails to {split} with")
        arrays[f"{split}_x"] = to_rows((text for text, _, _ in found), spec.image[0])
        arrays[f"{split}_y"] = np.array([label for _, label, _ in found], np.int64)
        arrays[f"{split}_people"] = np.array([number for _, _, number in found], np.int64)
    return arrays


def _check_size(file: RawFile, actual: int, expected: int, origin: str) -> None:
    if actual != expected:
        raise DamagedFile(
            f"{file.name} in {origin} contains {actual:,} bytes, expected {expected:,};"
            f" it is {'truncated' if actual < expected else 'too long'}: download it again"
        )


_Reader = Callable[[DatasetSpec, tuple[RawFile, ...], int, Mapping[str, bytes], str], Pair]

_READERS: dict[Format, _Reader] = {
    "idx": _read_idx,
    "cifar-binary": _read_cifar_binary,
    "cifar-python": _read_cifar_python,
    "png-strips": _read_png_strips,
}

#: Formats whose files do not tell training from testing.
_WHOLE: dict[Format, Callable[[DatasetSpec, Layout, Mapping[str, bytes], str], Arrays]] = {
    "hapt": _read_hapt,
    "mails": _read_mails,
}
