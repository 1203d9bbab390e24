"""Data from .npz and .csv files and from folders of images, good and hostile."""

import io
import pickle
import zipfile
from pathlib import Path

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
    assert np.array_equal(table.x, np.array([[1, 2.5], [-3, 400]], np.float32))
    assert table.y is not None
    assert table.y.tolist() == [7, -1]
    assert read(tmp_path / "data.csv", label="a").x.tolist() == [[2.5, 7], [400, -1]]
    assert read(tmp_path / "data.csv", labelled=False).x.shape == (2, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n",
        "a,b\n1,x\n",
        "a,b\n1\n",
        "a,b\n1,2,3\n",
        "a,b\n1,2.5\n",
        "a\n1\n",
        "a,b\n1,nan\n",
        "a,b\n1,1e300\n",
        "\0",
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
    assert table.y.tolist() == [0, 0, 1, 1]
    assert table.meanings == {0: "cats", 1: "dogs"}
    Image.new("RGB", (4, 3), (1, 2, 3)).save(tmp_path / "dogs" / "2.png")
    assert read(tmp_path).x.shape == (5, 3, 3, 4)
    assert read(tmp_path / "cats", labelled=False).x.shape == (2, 3, 4)
    (tmp_path / "cats").rename(tmp_path / "5")
    (tmp_path / "dogs").rename(tmp_path / "12")
    assert set(read(tmp_path).y.tolist()) == {5, 12}  # type: ignore[union-attr]


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
