"""Small data sets in every original format, written the way their authors wrote the real ones."""

from __future__ import annotations

import copyreg
import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import struct
import sys
import tarfile
import types
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from clpu.data.catalog import DatasetSpec, Layout, RawFile, dataset_spec

GREY = "tiny-grey"
COLOUR = "tiny-colour"
HUNDRED = "tiny-hundred"
COUNTS = {"train": 20, "test": 6}
OF = {GREY: "mnist", COLOUR: "cifar10", HUNDRED: "cifar100"}


def arrays(name: str) -> dict[str, np.ndarray]:
    """The canonical arrays of a small data set, always the same."""
    random = np.random.default_rng(list(name.encode()))
    image = (5, 5) if name == GREY else (3, 4, 4)
    classes = dataset_spec(OF[name]).classes
    made = {}
    for split, count in COUNTS.items():
        made[f"{split}_x"] = random.integers(0, 256, (count, *image), dtype=np.uint8)
        made[f"{split}_y"] = random.integers(0, classes, count)
    return made


def describe(name: str, sources: tuple = ()) -> DatasetSpec:
    """A catalogue entry for a small data set, with the real one's files and its own checksums."""
    content = arrays(name)
    real = dataset_spec(OF[name])

    def shrunk(files: tuple[RawFile, ...]) -> tuple[RawFile, ...]:
        return tuple(dataclasses.replace(file, limit=4096, sha256="") for file in files)

    layouts = tuple(
        Layout(layout.format, shrunk(layout.train), shrunk(layout.test), layout.archive) for layout in real.layouts
    )
    return dataclasses.replace(
        real,
        name=name,
        image=content["train_x"].shape[1:],
        counts=(COUNTS["train"], COUNTS["test"]),
        checksums={part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in content.items()},
        layouts=layouts,
        sources=sources,
    )


def write(folder: Path, name: str, form: str, content: dict[str, np.ndarray] | None = None) -> Path:
    """Write a small data set below `folder` in one of `FORMS[name]`; returns the folder of its files."""
    content = arrays(name) if content is None else content
    folder.mkdir(parents=True, exist_ok=True)
    form, _, packing = form.partition("+")
    layout = next(layout for layout in dataset_spec(OF[name]).layouts if layout.format == form)
    files: dict[str, bytes] = {}
    for split, raw_files in (("train", layout.train), ("test", layout.test)):
        _WRITERS[form](files, raw_files, content[f"{split}_x"], content[f"{split}_y"], name)
    if packing == "tar":
        pack(folder / layout.archive, {f"{layout.archive.partition('.')[0]}/{k}": v for k, v in files.items()})
    else:
        for file, data in files.items():
            if packing == "gz":
                (folder / f"{file}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / file).write_bytes(data)
    return folder


def pack(path: Path, files: dict[str, bytes]) -> Path:
    """A .tar.gz of these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def python2_pickle(batch: dict[str, object]) -> bytes:
    """A batch as CIFAR's python version has it: protocol 2, byte strings, an old NumPy's array."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    out = b"\x80\x02}("
    for key, value in batch.items():
        out += text(key.encode())
        if isinstance(value, np.ndarray):
            shape = b"".join(b"M" + struct.pack("<H", side) for side in value.shape)
            out += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
            dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ"
            dtype += b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            out += b"(K\x01(" + shape + b"t" + dtype + b"\x89" + text(value.tobytes()) + b"tb"
        elif isinstance(value, list):
            out += b"](" + b"".join(b"K" + bytes((number,)) for number in value) + b"e"
        else:
            out += text(str(value).encode())
    return out + b"u."


def _idx(files: dict, raw: tuple[RawFile, ...], x: np.ndarray, y: np.ndarray, name: str) -> None:
    files[raw[0].name] = struct.pack(">HBB3I", 0, 8, 3, *x.shape) + x.tobytes()
    files[raw[1].name] = struct.pack(">HBBI", 0, 8, 1, len(y)) + y.astype(np.uint8).tobytes()


def _binary(files: dict, raw: tuple[RawFile, ...], x: np.ndarray, y: np.ndarray, name: str) -> None:
    for file, part, labels in zip(raw, np.split(x, len(raw)), np.split(y, len(raw)), strict=True):
        head = [labels // 5, labels] if name == HUNDRED else [labels]
        records = np.concatenate([np.stack(head, 1).astype(np.uint8), part.reshape(len(part), -1)], 1)
        files[file.name] = records.tobytes()


def _python(files: dict, raw: tuple[RawFile, ...], x: np.ndarray, y: np.ndarray, name: str) -> None:
    key = "fine_labels" if name == HUNDRED else "labels"
    for file, part, labels in zip(raw, np.split(x, len(raw)), np.split(y, len(raw)), strict=True):
        batch = {"batch_label": "one of some", key: labels.tolist(), "data": part.reshape(len(part), -1)}
        files[file.name] = python2_pickle(batch)


def _strips(files: dict, raw: tuple[RawFile, ...], x: np.ndarray, y: np.ndarray, name: str) -> None:
    *strips, labels = raw
    for file, part in zip(strips, np.split(x, len(strips)), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(part.transpose(0, 2, 3, 1).reshape(len(part), -1, 3)).save(buffer, "PNG")
        files[file.name] = buffer.getvalue()
    files[labels.name] = json.dumps(y.tolist()).encode()


_WRITERS = {"idx": _idx, "cifar-binary": _binary, "cifar-python": _python, "png-strips": _strips}

FORMS = [
    (GREY, "idx"),
    (GREY, "idx+gz"),
    (COLOUR, "cifar-binary"),
    (COLOUR, "cifar-binary+tar"),
    (COLOUR, "cifar-python"),
    (COLOUR, "cifar-python+tar"),
    (COLOUR, "png-strips"),
    (HUNDRED, "cifar-binary"),
    (HUNDRED, "cifar-binary+tar"),
    (HUNDRED, "cifar-python"),
    (HUNDRED, "cifar-python+tar"),
]


def recordings(seed: int = 0) -> dict[int, list[dict[str, np.ndarray]]]:
    """Recordings as HAPT has them: two or three per person, eight columns, stretches of activities and of nothing."""
    random = np.random.default_rng(seed)
    axes = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
    made: dict[int, list[dict[str, np.ndarray]]] = {}
    for person, count in ((1, 2), (2, 3)):
        for _ in range(count):
            labels = np.repeat([-1, 5, 7, 1, 6, -1], [9, 20, 5, 17, 7, 3])
            table = {axis: random.normal(size=len(labels)) for axis in axes}
            made.setdefault(person, []).append({**table, "sequence": np.arange(len(labels)), "label": labels})
    return made


class _Ready:
    """What is pickled in a given way."""

    def __init__(self, *way: object) -> None:
        self.way = way

    def __reduce__(self) -> tuple:
        return self.way  # type: ignore[return-value]


def frames_pickle(content: dict[int, list[dict[str, np.ndarray]]]) -> bytes:
    """Tables as pandas 1.0 pickled them, in protocol 1, for whoever has no pandas."""
    modules = {name: types.ModuleType(name) for name in ("pandas", "pandas.core", "pandas.core.indexes")}

    def named(module: str, name: str) -> type:
        made = modules.setdefault(module, types.ModuleType(module))
        if not hasattr(made, name):
            setattr(made, name, type(name, (), {"__module__": module, "__qualname__": name}))
        found: type = getattr(made, name)
        return found

    frame, manager = named("pandas.core.frame", "DataFrame"), named("pandas.core.internals.managers", "BlockManager")
    new_index, index = (named("pandas.core.indexes.base", name) for name in ("_new_Index", "Index"))
    counter = named("pandas.core.indexes.range", "RangeIndex")

    def table(columns: dict[str, np.ndarray]) -> _Ready:
        names = list(columns)
        length = len(columns["label"])
        kinds = [(0, 6, np.stack([columns[name] for name in names[:6]]))]
        kinds.append((6, 8, np.stack([columns[name] for name in names[6:]])))
        axes = [
            _Ready(new_index, (index, {"data": np.array(names, dtype=object), "name": None})),
            _Ready(new_index, (counter, {"name": None, "start": 0, "stop": length, "step": 1})),
        ]
        blocks = [{"values": values, "mgr_locs": slice(first, last, 1)} for first, last, values in kinds]
        state = (axes, [], [], {"0.14.1": {"axes": axes, "blocks": blocks}})
        inner = _Ready(copyreg._reconstructor, (manager, object, None), state)  # type: ignore[attr-defined]
        whole = {"_data": inner, "_typ": "dataframe", "_metadata": [], "attrs": {}}
        return _Ready(copyreg._reconstructor, (frame, object, None), whole)  # type: ignore[attr-defined]

    with mock.patch.dict(sys.modules, modules):
        return pickle.dumps({key: [table(one) for one in tables] for key, tables in content.items()}, protocol=1)


class Bomb:
    """What a malicious pickle does when it is read: it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (str(self.path), "w")


def malicious_pickle(target: Path) -> bytes:
    """A pickle that creates `target` if it is read by an unpickler that allows everything."""
    return pickle.dumps({"data": Bomb(target), "labels": []}, protocol=2)
