"""Damaged and hostile files: a typed error that names the file, nothing run, nothing stored."""

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from clpu.data import fetch, sources
from clpu.data.archives import read_tar
from clpu.data.catalog import RawFile
from clpu.data.errors import DamagedFile, NotAvailable, UnsafeFile, WrongChecksum
from clpu.data.pickles import read_batch

TAR = "cifar-10-binary.tar.gz"


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


def tar_with(member: tarfile.TarInfo, data: bytes = b"") -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        member.size = len(data)
        with tarfile.open(folder / TAR, "w:gz") as archive:
            archive.addfile(member, io.BytesIO(data))

    return damage


def tar_that_claims(size: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        member = tarfile.TarInfo("README")
        member.size = size
        (folder / TAR).write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT)))

    return damage


def link() -> tarfile.TarInfo:
    member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    member.type, member.linkname = tarfile.SYMTYPE, "../../secret"
    return member


IMAGES = "train-images-idx3-ubyte"
DAMAGES = {
    "truncated gz": ("idx+gz", edit(f"{IMAGES}.gz", lambda data: data[:-20]), DamagedFile, f"{IMAGES}.gz"),
    "corrupted gz": (
        "idx+gz",
        edit(f"{IMAGES}.gz", lambda d: d[:40] + b"?" * 9 + d[49:]),
        DamagedFile,
        IMAGES,
    ),
    "not gz": ("idx+gz", edit(f"{IMAGES}.gz", lambda data: b"<html>" * 9), DamagedFile, f"{IMAGES}.gz"),
    "gz bomb": ("idx+gz", edit(f"{IMAGES}.gz", lambda _: gzip.compress(bytes(10**7))), UnsafeFile, IMAGES),
    "wrong magic": ("idx", edit(IMAGES, lambda data: b"\1" + data[1:]), DamagedFile, IMAGES),
    "empty": ("idx", edit(IMAGES, lambda data: b""), DamagedFile, IMAGES),
    "header only": ("idx", edit(IMAGES, lambda data: data[:9]), DamagedFile, IMAGES),
    "wrong shape": ("idx", edit(IMAGES, lambda data: data[:7] + b"\7" + data[8:]), DamagedFile, IMAGES),
    "too short": ("idx", edit(IMAGES, lambda data: data[:-1]), DamagedFile, IMAGES),
    "too long": ("idx", edit(IMAGES, lambda data: data + b"?"), DamagedFile, IMAGES),
    "label out of range": (
        "idx",
        edit("t10k-labels-idx1-ubyte", lambda d: d[:-1] + b"\x0a"),
        DamagedFile,
        "test",
    ),
    "wrong checksum": ("idx", edit(IMAGES, flipped), WrongChecksum, "originals"),
    "short binary": (
        "cifar-binary",
        edit("data_batch_3.bin", lambda d: d[:-1]),
        DamagedFile,
        "data_batch_3.bin",
    ),
    "wrong binary": ("cifar-binary", edit("test_batch.bin", flipped), WrongChecksum, "originals"),
    "truncated tar": ("cifar-binary+tar", edit(TAR, lambda d: d[: len(d) // 2]), DamagedFile, TAR),
    "tar without its end": ("cifar-binary+tar", edit(TAR, lambda data: data[:-6]), DamagedFile, TAR),
    "not a tar": ("cifar-binary+tar", edit(TAR, lambda _: gzip.compress(b"?" * 999)), DamagedFile, TAR),
    "empty tar": ("cifar-binary+tar", tar_with(tarfile.TarInfo("README")), DamagedFile, TAR),
    "path traversal": (
        "cifar-binary+tar",
        tar_with(tarfile.TarInfo("../../test_batch.bin"), b"?"),
        UnsafeFile,
        "../../test_batch.bin",
    ),
    "absolute path": (
        "cifar-binary+tar",
        tar_with(tarfile.TarInfo("/etc/test_batch.bin"), b"?"),
        UnsafeFile,
        "/etc/test_batch.bin",
    ),
    "link in tar": ("cifar-binary+tar", tar_with(link()), UnsafeFile, "test_batch.bin"),
    "tar bomb": ("cifar-binary+tar", tar_with(tarfile.TarInfo("README"), bytes(10**8)), UnsafeFile, TAR),
    "exabyte in tar": ("cifar-binary+tar", tar_that_claims(2**60), DamagedFile, TAR),
    "big member": (
        "cifar-binary+tar",
        tar_with(tarfile.TarInfo("data_batch_1.bin"), bytes(5000)),
        UnsafeFile,
        "data_batch_1.bin",
    ),
    "pickle of something else": (
        "cifar-python",
        edit("data_batch_2", lambda _: pickle.dumps([1, 2])),
        DamagedFile,
        "data_batch_2",
    ),
    "truncated pickle": (
        "cifar-python",
        edit("data_batch_2", lambda d: d[:-30]),
        DamagedFile,
        "data_batch_2",
    ),
    "truncated png": ("png-strips", edit("test_batch.png", lambda d: d[:-60]), DamagedFile, "test_batch.png"),
    "png of other size": (
        "png-strips",
        lambda folder: (folder / "test_batch.png").write_bytes((folder / "data_batch_1.png").read_bytes()),
        DamagedFile,
        "test_batch.png",
    ),
    "labels not json": (
        "png-strips",
        edit("test_lables.json", lambda d: d[:-1]),
        DamagedFile,
        "test_lables.json",
    ),
    "labels not numbers": (
        "png-strips",
        edit("test_lables.json", lambda _: b'["1","2","3","4","5","6"]'),
        DamagedFile,
        "test_lables.json",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_type_and_name_and_nothing_is_stored(damage: str, cache: Path, originals: Path) -> None:
    form, harm, kind, named = DAMAGES[damage]
    name = tiny.GREY if form.startswith("idx") else tiny.COLOUR
    harm(tiny.write(originals, name, form))
    entry = tiny.describe(name)
    with pytest.raises(DamagedFile) as caught:
        sources.from_folder(entry, originals, lambda *_: None)
    assert type(caught.value) is kind
    assert named in str(caught.value)
    with pytest.raises(NotAvailable, match=name):
        fetch.get(name, folder=originals, offline=True)
    assert [path.name for path in (cache / "data").iterdir()] == [f".{name}.lock"]


def test_a_missing_folder_and_a_folder_without_files_are_reported(cache: Path, originals: Path) -> None:
    with pytest.raises(NotAvailable, match="does not exist"):
        fetch.get(tiny.GREY, folder=originals / "nowhere", offline=True)
    with pytest.raises(NotAvailable, match="contains no files of tiny-grey"):
        fetch.get(tiny.GREY, folder=originals, offline=True)


def test_a_malicious_pickle_is_refused_and_runs_nothing(cache: Path, originals: Path, tmp_path: Path) -> None:
    target = tmp_path / "written-by-the-pickle"
    attack = tiny.malicious_pickle(target)
    pickle.loads(attack)["data"].close()
    assert target.exists(), "the attack works on an unpickler that allows everything"
    target.unlink()

    tiny.write(originals, tiny.COLOUR, "cifar-python")
    (originals / "data_batch_4").write_bytes(attack)
    with pytest.raises(UnsafeFile, match=r"data_batch_4 .* asks for _?io.open"):
        sources.from_folder(tiny.describe(tiny.COLOUR), originals, lambda *_: None)
    assert not target.exists()


@pytest.mark.parametrize(
    "attack",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"(S'true'\nios\nsystem\n.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__class__\n.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x02P1\n.",
    ],
)
def test_no_name_and_no_opcode_beyond_the_few_is_ever_obeyed(attack: bytes) -> None:
    with pytest.raises(UnsafeFile, match="refused"):
        read_batch(attack, "labels", "batch")


def mutated(whole: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.integers(0, len(changed)))]) if data.draw(st.booleans()) else bytes(changed)


@given(st.data())
def test_a_mutated_tar_is_read_or_refused_but_never_anything_else(data: st.DataObject) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("data/é/train.bin", "data/test.bin.gz"):
            content = gzip.compress(b"test") if name.endswith(".gz") else b"train"
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1.5
            archive.addfile(member, io.BytesIO(content))
    wanted = [RawFile("train.bin", 100), RawFile("test.bin", 100)]
    whole = buffer.getvalue()[:8192]
    try:
        found = read_tar(io.BytesIO(mutated(whole, data)), wanted, "archive")
    except DamagedFile:
        return
    assert all(len(content) <= 100 for content in found.values())


@given(st.data())
def test_a_mutated_pickle_is_read_or_refused_but_never_anything_else(data: st.DataObject) -> None:
    whole = tiny.python2_pickle({"labels": [1, 2], "data": np.zeros((2, 4), np.uint8)})
    try:
        pixels, _, labels = read_batch(mutated(whole, data), "labels", "batch")
    except DamagedFile:
        return
    assert isinstance(pixels, bytes)
    assert all(type(label) is int for label in labels)
