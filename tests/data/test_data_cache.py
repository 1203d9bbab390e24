"""The cache: complete or absent, verified, memory-mapped, and unharmed by any failure."""

import errno
import hashlib
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tiny

from clpu.data import cache_files, fetch, loading
from clpu.data.errors import CacheFailed, DamagedFile, NotCached, UnknownDataset, WrongChecksum

GREY = tiny.describe(tiny.GREY)


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with its checksum, excluding locks."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.fixture
def stored(cache: Path, originals: Path) -> Path:
    """The folder of a small data set that is in the cache."""
    tiny.write(originals, tiny.GREY, "idx")
    fetch.get(tiny.GREY, folder=originals, offline=True)
    return cache / "data" / tiny.GREY


@pytest.mark.usefixtures("stored")
def test_loaded_arrays_are_mapped_from_the_file_and_cannot_be_written() -> None:
    x = loading.load(tiny.GREY).train.x
    assert type(x) is np.ndarray
    assert isinstance(x.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 0


def test_loading_allocates_next_to_nothing_whatever_the_size(cache: Path) -> None:
    import dataclasses

    arrays = {
        "train_x": np.zeros((20_000, 28, 28), np.uint8),
        "train_y": np.zeros(20_000, np.int64),
        "test_x": np.zeros((10, 28, 28), np.uint8),
        "test_y": np.zeros(10, np.int64),
    }
    checksums = {part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in arrays.items()}
    entry = dataclasses.replace(GREY, image=(28, 28), counts=(20_000, 10), checksums=checksums)
    cache_files.put(entry, arrays, "a test")
    tracemalloc.start()
    cache_files.read(entry)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < entry.bytes / 50


def test_a_data_set_that_is_not_cached_is_reported_with_the_command_that_downloads_it(cache: Path) -> None:
    with pytest.raises(NotCached, match="clpu data get tiny-grey"):
        loading.load(tiny.GREY)
    with pytest.raises(UnknownDataset, match="known: mnist, fashion, cifar10, cifar100, digits"):
        loading.load("imagenet")
    assert not cache.exists()


def test_a_half_written_file_is_refused_by_name_and_replaced_by_get(stored: Path, originals: Path) -> None:
    victim = stored / "train_x.npy"
    os.truncate(victim, victim.stat().st_size // 2)
    with pytest.raises(DamagedFile, match=r"train_x\.npy is missing, half-written or damaged"):
        loading.load(tiny.GREY)
    fetch.get(tiny.GREY, folder=originals, offline=True)
    np.testing.assert_array_equal(loading.load(tiny.GREY).train.x, tiny.arrays(tiny.GREY)["train_x"])


@pytest.mark.parametrize("part", ["train_x", "train_y", "test_x", "test_y"])
def test_a_missing_file_is_refused_by_name(stored: Path, part: str) -> None:
    (stored / f"{part}.npy").unlink()
    with pytest.raises(DamagedFile, match=rf"{part}\.npy is missing"):
        loading.load(tiny.GREY)


def test_a_changed_byte_is_noticed_when_loading(stored: Path) -> None:
    victim = stored / "test_x.npy"
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    os.utime(victim, ns=(0, 0))
    with pytest.raises(WrongChecksum, match=r"test_x\.npy has SHA-256"):
        loading.load(tiny.GREY)


def test_a_changed_byte_that_kept_the_files_time_is_noticed_by_a_recheck_and_removed(stored: Path) -> None:
    victim = stored / "test_x.npy"
    before = victim.stat()
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(WrongChecksum, match=r"removed from the cache: .*test_x\.npy"):
        fetch.recheck(tiny.GREY)
    with pytest.raises(NotCached):
        loading.load(tiny.GREY)


def test_a_file_of_a_different_shape_is_refused(stored: Path) -> None:
    np.save(stored / "test_y.npy", np.zeros(5, np.int64))
    with pytest.raises(DamagedFile, match=r"test_y\.npy contains int64 \(5,\), expected int64 \(6,\)"):
        loading.load(tiny.GREY)


def test_a_file_that_contains_python_objects_is_refused(stored: Path) -> None:
    np.save(stored / "test_y.npy", np.array([object()] * 6), allow_pickle=True)
    with pytest.raises(DamagedFile, match=r"test_y\.npy"):
        loading.load(tiny.GREY)


def test_getting_what_is_cached_writes_nothing_so_a_cache_may_be_read_only(stored: Path) -> None:
    (stored.parent / f".{tiny.GREY}.lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in (stored.parent, *stored.parent.rglob("*"))}
    assert fetch.get(tiny.GREY).already
    assert {path: path.stat().st_mtime_ns for path in (stored.parent, *stored.parent.rglob("*"))} == before


def test_a_copied_cache_is_verified_once_and_then_trusted(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in stored.iterdir():
        os.utime(path, ns=(1, 1))
    checks = []
    real = cache_files.check
    monkeypatch.setattr(cache_files, "check", lambda *given: (checks.append(1), real(*given)))
    loading.load(tiny.GREY)
    loading.load(tiny.GREY)
    assert len(checks) == 1


def test_arrays_with_a_wrong_checksum_are_refused_and_leave_the_stored_ones(stored: Path) -> None:
    before = contents(stored)
    wrong = tiny.arrays(tiny.GREY)
    wrong["train_y"][0] ^= 1
    with pytest.raises(WrongChecksum, match=r"somewhere: train_y of tiny-grey"):
        cache_files.put(GREY, wrong, "somewhere")
    assert contents(stored.parent) == {f"tiny-grey/{name}": value for name, value in before.items()}


def test_what_a_killed_process_left_half_written_is_cleared_away(cache: Path, originals: Path) -> None:
    leftover = cache / "data" / ".tiny-grey-dead.partial"
    leftover.mkdir(parents=True)
    (leftover / "train_x.npy").write_bytes(b"half")
    tiny.write(originals, tiny.GREY, "idx")
    fetch.get(tiny.GREY, folder=originals, offline=True)
    assert not leftover.exists()


def test_a_full_disk_is_reported_and_leaves_the_cache_as_it_was(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(stored.parent)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheFailed, match=r"tiny-grey: No space left on device; .*CLPU_CACHE"):
        cache_files.put(GREY, tiny.arrays(tiny.GREY), "somewhere")
    assert contents(stored.parent) == before


def test_a_write_that_the_system_cuts_short_leaves_no_trace(cache: Path, originals: Path) -> None:
    tiny.write(originals, tiny.COLOUR, "cifar-binary")
    script = (
        "import resource, signal, tiny\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\n"
        "from clpu.data import catalog, fetch\n"
        "catalog.DATASETS[tiny.COLOUR] = tiny.describe(tiny.COLOUR)\n"
        f"fetch.get(tiny.COLOUR, folder={str(originals)!r}, offline=True)"
    )
    ended = subprocess.run(
        [sys.executable, "-B", "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert "CacheFailed: cannot use the cache at" in ended.stderr
    assert contents(cache) == {}


@pytest.fixture
def forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing can be made; root, whom no mode stops, is stopped by hand."""
    folder = tmp_path / "forbidden"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        real = Path.mkdir

        def refuse(path: Path, *rest: object, **more: object) -> None:
            if path.is_relative_to(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            real(path, *rest, **more)

        monkeypatch.setattr(Path, "mkdir", refuse)
    return folder


def test_a_cache_without_permission_is_reported_with_its_path(cache: Path, originals: Path, forbidden: Path) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    with pytest.raises(CacheFailed, match=r"forbidden/data: Permission denied; .*CLPU_CACHE"):
        fetch.get(tiny.GREY, folder=originals, root=forbidden, offline=True)
    assert list(forbidden.iterdir()) == []
