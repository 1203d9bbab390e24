"""Read images from outside: known formats only, recognised by their content and measured first."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from clpu.errors import BadData, MissingPackage

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
#: Decoders that Pillow may use, whatever a file is called: none of these runs another program.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
#: Data may be this many times larger than their file, plus this much, before they look like a trap.
RATIO, SPARE = 200, 64 << 20

Array = np.ndarray[Any, Any]


@contextmanager
def plain_file(path: Path) -> Iterator[IO[bytes]]:
    """A file from outside, open for reading; `BadData` for pipes and devices, which have no end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadData(f"{path} is not a plain file")
        yield file


def most(stored: int, limit: int) -> int:
    """The most bytes that data may take once they are unpacked from a file of this size."""
    return min(limit, RATIO * stored + SPARE)


def load_images(files: Sequence[Path], limit: int) -> Array:
    """Images of one size as (n, height, width), or as (n, 3, height, width) if one has colours; 8 bits per colour."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingPackage("reading images needs the package pillow: pip install pillow") from None
    images: Array | None = None
    allowed = most(sum(file.stat().st_size for file in files), limit)
    for number, path in enumerate(files):
        try:
            with warnings.catch_warnings(), plain_file(path) as file:
                warnings.simplefilter("ignore")
                _refuse_deep(file, path)
                with Image.open(file, formats=FORMATS) as image:
                    if image.mode.startswith(("I", "F")):
                        raise BadData(f"{path} has more than 8 bits per colour; convert it to 8 bits first")
                    width, height = image.size
                    if images is None:
                        if width * height * 3 * len(files) > allowed:
                            raise BadData(f"{len(files)} images of {width} by {height} take more than {allowed} bytes")
                        images = np.empty((len(files), 3, height, width), np.uint8)
                        grey = True
                    if (height, width) != images.shape[2:]:
                        first = f"{images.shape[3]} by {images.shape[2]}"
                        raise BadData(f"{path} is {width} by {height}, the first image {first}: bring all to one size")
                    plain = image.mode in ("1", "L")
                    grey = grey and plain
                    pixels = np.asarray(image.convert("L" if plain else "RGB"))
                    images[number] = pixels[None] if plain else pixels.transpose(2, 0, 1)
        except BadData:
            raise
        except UnidentifiedImageError:
            raise BadData(f"{path} is not an image that can be read: its content is in none of the formats") from None
        except Exception as error:  # a decoder fails in many ways
            raise BadData(f"{path} is not an image that can be read: {error!s:.200}") from None
    assert images is not None
    return images[:, 0].copy() if grey else images


def _refuse_deep(file: IO[bytes], path: Path) -> None:
    """Refuse more than 8 bits per colour where Pillow would quietly drop them."""
    start = file.read(512)
    file.seek(0)
    deep = False
    if start.startswith(b"\x89PNG\r\n\x1a\n") and len(start) > 24:
        deep = start[24] > 8
    elif start[:2] in (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"):
        lines = [line.partition(b"#")[0] for line in start.splitlines()]
        words = b" ".join(lines).split()
        most_of_a_colour = words[3] if start[:2] not in (b"P1", b"P4") and len(words) > 3 else b"1"
        deep = most_of_a_colour.isdigit() and int(most_of_a_colour[:9]) > 255
    elif start[:4] in (b"II*\0", b"MM\0*"):
        deep = _tiff_bits(file, "little" if start[:1] == b"I" else "big") > 8
    if deep:
        raise BadData(f"{path} has more than 8 bits per colour; convert it to 8 bits first")


def _tiff_bits(file: IO[bytes], order: Any) -> int:
    """The bits per colour of a TIFF's first image; 0 if it does not say."""
    try:
        file.seek(4)
        file.seek(int.from_bytes(file.read(4), order))
        for _ in range(min(int.from_bytes(file.read(2), order), 1000)):
            tag, kind = (int.from_bytes(file.read(2), order) for _ in range(2))
            count, value = int.from_bytes(file.read(4), order), file.read(4)
            if tag == 258 and kind == 3:
                if count > 2:
                    file.seek(int.from_bytes(value, order))
                    value = file.read(2)
                return int.from_bytes(value[:2], order)
        return 0
    finally:
        file.seek(0)
