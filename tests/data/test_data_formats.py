"""Every original format is read back exactly, wherever it is below the folder."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import tiny

from clpu.data import catalog, fetch, loading
from clpu.data.errors import NotAvailable

pytestmark = pytest.mark.usefixtures("cache")


def assert_is_loaded(name: str) -> None:
    data, expected = loading.load(name), tiny.arrays(name)
    for part, array in (
        ("train_x", data.train.x),
        ("train_y", data.train.y),
        ("test_x", data.test.x),
        ("test_y", data.test.y),
    ):
        np.testing.assert_array_equal(array, expected[part])
        assert array.dtype == (np.uint8 if part.endswith("x") else np.int64)


@pytest.mark.parametrize(("name", "form"), tiny.FORMS)
def test_every_original_format_reads_back_exactly(name: str, form: str, originals: Path) -> None:
    tiny.write(originals, name, form)
    got = fetch.get(name, folder=originals, offline=True)
    assert got.origin.startswith(str(originals))
    assert_is_loaded(name)


def test_one_of_the_original_files_may_be_named_instead_of_their_folder(originals: Path) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    named = sorted(originals.rglob("*"))[-1]
    assert named.is_file()
    assert not fetch.get(tiny.GREY, folder=named, offline=True).already


@pytest.mark.parametrize("order", ["C", "F"])
def test_pickles_that_todays_numpy_writes_are_read_too(originals: Path, order: str) -> None:
    content = tiny.arrays(tiny.HUNDRED)
    for split in ("train", "test"):
        x, y = content[f"{split}_x"], content[f"{split}_y"]
        batch = {"fine_labels": y.tolist(), "data": x.reshape(len(x), -1).copy(order)}
        (originals / split).write_bytes(pickle.dumps(batch, protocol=3))
    fetch.get(tiny.HUNDRED, folder=originals, offline=True)
    assert_is_loaded(tiny.HUNDRED)


def test_files_are_found_two_folders_deep_as_torchvision_keeps_them(originals: Path) -> None:
    tiny.write(originals / "MNIST" / "raw", tiny.GREY, "idx")
    fetch.get(tiny.GREY, folder=originals, offline=True)
    assert_is_loaded(tiny.GREY)


def test_of_files_with_the_same_names_the_sound_ones_are_taken(originals: Path) -> None:
    damaged = tiny.write(originals / "a", tiny.GREY, "idx")
    (damaged / "train-images-idx3-ubyte").write_bytes(b"not an IDX file")
    wrong = tiny.arrays(tiny.GREY)
    wrong["train_y"][0] ^= 1
    tiny.write(originals / "aa", tiny.GREY, "idx", wrong)
    tiny.write(originals / "b", tiny.GREY, "idx+gz")
    assert fetch.get(tiny.GREY, folder=originals, offline=True).origin == str(originals / "b")


def test_mnist_given_for_fashion_is_refused_by_name(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses
    import hashlib

    tiny.write(originals, tiny.GREY, "idx")
    layout = tiny.describe(tiny.GREY).layouts[0]

    def signed(files: tuple, own: bool) -> tuple:
        return tuple(
            dataclasses.replace(
                file,
                sha256=hashlib.sha256((originals / file.name).read_bytes() + (b"" if own else b"?")).hexdigest(),
            )
            for file in files
        )

    for name, own in (("theirs", True), ("asked-for", False)):
        signed_layout = dataclasses.replace(layout, train=signed(layout.train, own), test=signed(layout.test, own))
        entry = dataclasses.replace(
            tiny.describe(tiny.GREY), name=name, title=f"the set {name}", layouts=(signed_layout,)
        )
        monkeypatch.setitem(catalog.DATASETS, name, entry)
    with pytest.raises(NotAvailable, match=r"train-images-idx3-ubyte .* belongs to the set theirs"):
        fetch.get("asked-for", folder=originals, offline=True)


def test_the_environment_names_the_folder_for_get_and_for_load(
    originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    tiny.write(originals, tiny.COLOUR, "cifar-binary+tar")
    monkeypatch.setenv("CLPU_DATA", str(originals))
    assert fetch.get(tiny.GREY, offline=True).origin == str(originals)
    assert_is_loaded(tiny.COLOUR)
