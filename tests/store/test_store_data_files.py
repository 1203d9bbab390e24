"""Data from .npz and .csv files and from folders of images, good and hostile."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clpu import BadData
from clpu.store.data_files import read


def test_npz(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(5, 2, 3)), np.arange(5)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "data.npz", x=x, y=y)
        table = read(tmp_path / "data.npz")
        assert np.array_equal(table.x, x)
        assert np.array_equal(table.y, y)
    np.savez(tmp_path / "fortran.npz", x=np.asfortranarray(x[:, 0]), y=y.astype(np.uint8))
    assert np.array_equal(read(tmp_path / "fortran.npz").x, x[:, 0])
    np.savez(tmp_path / "inputs.npz", x=x)
    assert read(tmp_path / "inputs.npz", labelled=False).y is None
    with pytest.raises(BadData, match="expected x and y"):
        read(tmp_path / "inputs.npz")


def test_csv_with_the_label_last_or_by_name(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text('\ufeffa,"b, too",kind\r\n1,2.5,7\r\n-3,4e2,-1\r\n', encoding="utf-8")
    table = read(tmp_path / "data.csv")
    assert {name: values.tolist() for name, values in table.x.items()} == {"a": [1, -3], "b, too": [2.5, 400]}
    assert table.y is not None
    assert table.y.tolist() == [7, -1]
    assert table.examples == 2
    assert list(read(tmp_path / "data.csv", label="a").x) == ["b, too", "kind"]
    assert list(read(tmp_path / "data.csv", labelled=False).x) == ["a", "b, too", "kind"]


def test_columns_of_people_and_ids_and_columns_to_leave_out(tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_text("who\tid\tnote\tx\tkind\nann\t1\ta\t0.5\tyes\nbob\t2\tb\t1.5\tno\n")
    table = read(tmp_path / "data.tsv", ignore=["note"], people=["who"], records="id")
    assert list(table.x) == ["x"]
    assert table.people == [["ann"], ["bob"]]
    assert [a.tolist() for a in (table.records, table.y)] == [["1", "2"], ["yes", "no"]]  # type: ignore[union-attr]
    assert table.notes == ("separated by tabs",)
    with pytest.raises(BadData, match="no column 'nobody'"):
        read(tmp_path / "data.tsv", people=["nobody"])


def test_ids_are_taken_as_they_stand_in_a_file(tmp_path: Path) -> None:
    """Nobody finds person 007 again who was learned as 7, nor 20260000000000001 as 2.026e16."""
    rows = ["007,,0001,1,a", "20260000000000001,007,1.50,2,b", ",, x ,3,a"]
    (tmp_path / "data.csv").write_text("from,to,id,x,kind\n" + "\n".join(rows) + "\n")
    table = read(tmp_path / "data.csv", people=["from", "to"], records="id")
    assert table.people == [["007"], ["20260000000000001", "007"], []]
    assert table.records is not None
    assert table.records.tolist() == ["0001", "1.50", "x"]
    assert list(table.x) == ["x"]


def test_labels_that_one_person_makes_text_must_be_declared(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("who,x,kind\nann,1,1\nann,2,2\nbob,3,other\n")
    with pytest.raises(BadData, match="'kind' has numbers such as 1 and text"):
        read(tmp_path / "data.csv", people=["who"])
    table = read(tmp_path / "data.csv", people=["who"], text=["kind"])
    assert table.y is not None
    assert table.y.tolist() == ["1", "2", "other"]
    (tmp_path / "without bob.csv").write_text("who,x,kind\nann,1,1\nann,2,2\n")
    rest = read(tmp_path / "without bob.csv", people=["who"], text=["kind"])
    assert rest.y is not None
    assert rest.y.tolist() == ["1", "2"]


def test_a_file_without_header_keeps_its_first_row_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2,a\n3,4,b\n")
    table = read(tmp_path / "data.csv")
    assert table.examples == 2
    assert list(table.x) == ["1", "2"]
    assert table.notes == ("no header found, so columns are named 1 to 3",)


def test_what_is_neither_a_file_nor_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(BadData, match="neither a file nor a folder"):
        read(tmp_path / "pipe.csv")


def test_text_labels_in_a_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3)), y=np.array(["a", "b"]))
    assert read(tmp_path / "data.npz").y.tolist() == ["a", "b"]  # type: ignore[union-attr]
    with pytest.raises(BadData, match="no columns"):
        read(tmp_path / "data.npz", label="y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n",
        "a,b\n1\n",
        "a,b\n1,2,3\n",
        "a,b\n1,2.5\n",
        "a\n1\n",
        "a,b\n1,nan\n",
        "a,b\n1,1e300\n",
        "\0",
        "a,a\nx,1\n",
    ],
)
def test_csv_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(BadData):
        read(tmp_path / "data.csv")
    with pytest.raises(BadData):
        read(tmp_path / "data.csv", label="missing")


def test_a_folder_of_images(tmp_path: Path) -> None:
    from PIL import Image

    for name, shade in (("cats", 10), ("dogs", 200)):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("L", (4, 3), shade + number).save(tmp_path / name / f"{number}.png")
    table = read(tmp_path)
    assert table.x.shape == (4, 3, 4)
    assert table.x.dtype == np.uint8
    assert table.x[:, 0, 0].tolist() == [10, 11, 200, 201]
    assert table.y is not None
    assert table.y.tolist() == ["cats", "cats", "dogs", "dogs"]
    Image.new("RGB", (4, 3), (1, 2, 3)).save(tmp_path / "dogs" / "2.png")
    assert read(tmp_path).x.shape == (5, 3, 3, 4)
    assert read(tmp_path / "cats", labelled=False).x.shape == (2, 3, 4)
    (tmp_path / "cats").rename(tmp_path / "5")
    (tmp_path / "dogs").rename(tmp_path / "12")
    assert set(read(tmp_path).y.tolist()) == {"5", "12"}  # type: ignore[union-attr]


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    from PIL import Image

    with pytest.raises(BadData, match="subfolder"):
        read(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(BadData, match="no images"):
        read(tmp_path)
    Image.new("L", (4, 4)).save(tmp_path / "a" / "1.png")
    Image.new("L", (4, 5)).save(tmp_path / "a" / "2.png")
    with pytest.raises(BadData, match="4 by 5"):
        read(tmp_path)
    (tmp_path / "a" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    with pytest.raises(BadData, match="not an image"):
        read(tmp_path)
    with pytest.raises(BadData, match="more than"):
        read(tmp_path, limit=10)


def member(content: bytes, path: Path, compress: bool = False) -> Path:
    """A .npz file whose x is these bytes."""
    labels = io.BytesIO()
    np.save(labels, np.arange(2))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", labels.getvalue())
    return path


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_a_pickle_in_a_npz_is_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "exploded",)  # type: ignore[return-value]

    content = header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + pickle.dumps([Bomb()])
    with pytest.raises(BadData, match="expected numbers"):
        read(member(content, tmp_path / "data.npz"))
    with pytest.raises(BadData):
        read(member(pickle.dumps(Bomb()), tmp_path / "data.npz"))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1000000000000, 0), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<f4'}",
        "__import__('os')",
        "(" * 200,
        "{" * 60000,
    ],
    ids=str.__len__,
)
def test_absurd_headers_are_refused_before_memory_is_taken(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadData):
        read(member(header(text) + bytes(8), tmp_path / "data.npz"))


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    content = header("{'descr': '|u1', 'fortran_order': False, 'shape': (50000000,), }") + bytes(50_000_000)
    path = member(content, tmp_path / "data.npz", compress=True)
    assert path.stat().st_size < 100_000
    with pytest.raises(BadData, match="unpacks to more than"):
        read(path, limit=1 << 20)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"no zip")
    (tmp_path / "data.pkl").write_bytes(b"")
    for name in ("data.npz", "data.pkl", "missing.npz", "missing.csv", "missing"):
        with pytest.raises(BadData):
            read(tmp_path / name)


def image_folder(tmp_path: Path, content: bytes, name: str = "1.png") -> Path:
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "a" / name).write_bytes(content)
    return tmp_path


def encoded(kind: str, mode: str = "L", value: Any = 7) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.new(mode, (4, 4), value).save(content, kind)
    return content.getvalue()


@pytest.mark.parametrize("kind", ["EPS", "ICO", "DDS", "JPEG2000", "PCX", "TGA", "PDF"])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path, kind: str) -> None:
    """M8: EPS content named a.png ran Ghostscript."""
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n" if kind == "EPS" else encoded(kind, "RGB", (1, 2, 3))
    with pytest.raises(BadData, match="not an image that can be read"):
        read(image_folder(tmp_path, content))


def test_more_than_eight_bits_are_refused_and_never_clipped(tmp_path: Path) -> None:
    """M9: a 16-bit PNG of 300 became 255."""
    import struct
    import zlib as compression

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", compression.crc32(name + data))

    def png(colour: int, row: bytes) -> bytes:
        head = struct.pack(">IIBBBBB", 4, 4, 16, colour, 0, 0, 0)
        body = compression.compress((b"\0" + row * 4) * 4)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")

    deep = [
        ("1.png", png(0, b"\1\x2c")),
        ("1.png", png(2, b"\1\x2c" * 3)),
        ("1.tif", encoded("TIFF", "I;16", 300)),
        ("1.tif", encoded("TIFF", "F", 0.5)),
        ("1.ppm", b"P6 4 4 65535\n" + b"\1\x2c" * 48),
        ("1.pgm", b"P5 # 1\n4 4\n300\n" + b"\1\x2c" * 16),
    ]
    for name, content in deep:
        with pytest.raises(BadData, match="more than 8 bits"):
            read(image_folder(tmp_path, content, name))
        (tmp_path / "a" / name).unlink()
    assert read(image_folder(tmp_path, b"P5 4 4 255\n" + bytes(16), "1.pgm")).x.dtype == np.uint8


def test_data_that_unpack_to_far_more_than_their_file_are_refused(tmp_path: Path) -> None:
    """M10: two PNGs of 236 KB took 7 GB, an .npz of half a megabyte 1.3 GB."""
    from PIL import Image

    (tmp_path / "a").mkdir()
    for name in "12":
        Image.new("L", (9000, 9000)).save(tmp_path / "a" / f"{name}.png")
    with pytest.raises(BadData, match="take more than"):
        read(tmp_path)
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((100_000, 100)), y=np.arange(100_000) % 2)
    with pytest.raises(BadData, match="unpacks to more than"):
        read(tmp_path / "zeros.npz", limit=1 << 22)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    """L9, M10: a pipe is waited for without end, and /dev/zero has none."""
    os.mkfifo(tmp_path / "pipe.npz")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    for name in ("pipe.npz", "pipe.csv", "zero.csv", "zero.npz"):
        with pytest.raises(BadData):
            read(tmp_path / name)
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "1.png")
    with pytest.raises(BadData, match="not a plain file"):
        read(tmp_path)


def test_names_in_an_archive_that_are_not_text_are_refused(tmp_path: Path) -> None:
    """M8: one .npz gave a UnicodeDecodeError."""
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("é.npy", b"")
    content = (tmp_path / "data.npz").read_bytes().replace("é".encode(), b"\xff\xff")
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(BadData):
        read(tmp_path / "data.npz")
