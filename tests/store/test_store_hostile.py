"""A store from somebody else: typed errors, no crash, no large allocation, and no file touched outside."""

import json
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storekit import clone, follow, handle, picture

import clpu
from clpu.io import sha256
from clpu.state import State, Task
from clpu.store import open as open_store
from clpu.store import verify
from clpu.store.contents import task_bytes, unseal_task
from clpu.store.data_files import read
from clpu.store.format import Manifest, to_json
from clpu.store.keys import Keys, seal
from clpu.store.receipt import Receipt

MEGABYTES = 300


@pytest.fixture(scope="module")
def whole(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = clone(empty_store, tmp_path_factory.mktemp("hostile") / "store")
    follow(path, "1R 2R 3T 4T")
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that no store has any business with; it must not change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "letter").write_bytes(b"do not touch")
    (folder / "empty").write_bytes(b"")
    before = picture(folder)
    yield folder
    assert picture(folder) == before


@pytest.fixture
def hostile(whole: Path, tmp_path: Path) -> Iterator[Path]:
    """A whole store to be spoilt; opening it may not take much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield clone(whole, tmp_path / "store")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES << 10


def refused(store: Path) -> None:
    """Every way to open it gives a typed error, and `verify` says that it is not good."""
    for read_only in (True, False):
        with pytest.raises(clpu.Error):
            open_store(store, read_only=read_only).close()
    with suppress(clpu.Error):
        assert not verify(store).good


def files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != "lock")


def rewrite(store: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and give it a right checksum, as one who means it would."""
    content = json.loads((store / "store.json").read_bytes())
    del content["checksum"]
    change(content)
    (store / "store.json").write_bytes(to_json(content))


@pytest.mark.parametrize("keep", [0, 1, 7, 0.5, 0.99])
def test_truncated_files(hostile: Path, keep: float) -> None:
    for path in files(hostile):
        content = path.read_bytes()
        path.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
        refused(hostile)
        path.write_bytes(content)
    open_store(hostile).close()


def test_missing_files(hostile: Path) -> None:
    for path in files(hostile):
        content = path.read_bytes()
        path.unlink()
        refused(hostile)
        path.write_bytes(content)


def test_a_flipped_bit_anywhere(hostile: Path) -> None:
    luck = random.Random(0)
    for path in files(hostile):
        content = path.read_bytes()
        for _ in range(8):
            spoilt = bytearray(content)
            spoilt[luck.randrange(len(spoilt))] ^= 1 << luck.randrange(8)
            path.write_bytes(spoilt)
            refused(hostile)
        path.write_bytes(content)


def test_swapped_files(hostile: Path) -> None:
    paths = files(hostile)
    for one in paths:
        for other in paths:
            if one < other:
                contents = one.read_bytes(), other.read_bytes()
                one.write_bytes(contents[1])
                other.write_bytes(contents[0])
                refused(hostile)
                one.write_bytes(contents[0])
                other.write_bytes(contents[1])


def test_swapped_entries_with_right_checksums(hostile: Path) -> None:
    def swap_tasks(content: dict[str, Any]) -> None:
        one, other = content["remembered"]
        one["task"], other["task"] = other["task"], one["task"]

    def swap_ciphertexts(content: dict[str, Any]) -> None:
        one, other = content["temporary"]
        (hostile / "temporary" / one["id"]).rename(hostile / "aside")
        (hostile / "temporary" / other["id"]).rename(hostile / "temporary" / one["id"])
        (hostile / "aside").rename(hostile / "temporary" / other["id"])
        one["sha256"], other["sha256"] = other["sha256"], one["sha256"]

    def swap_files(content: dict[str, Any]) -> None:
        one, other = content["remembered"]
        one["task"], other["task"] = other["task"], one["task"]
        content["remembered"] = [other, one]

    for change in (swap_tasks, swap_files, swap_ciphertexts):
        original = (hostile / "store.json").read_bytes()
        rewrite(hostile, change)
        refused(hostile)
        (hostile / "store.json").write_bytes(original)


def test_oversized_files(hostile: Path) -> None:
    for path in files(hostile):
        content = path.read_bytes()
        with path.open("ab") as file:
            file.write(b"\0")
        refused(hostile)
        os.truncate(path, 1 << 40)
        refused(hostile)
        path.write_bytes(content)


def test_a_huge_file_that_the_manifest_vouches_for(hostile: Path) -> None:
    name = json.loads((hostile / "store.json").read_bytes())["main"]["sha256"]
    os.truncate(hostile / "remembered" / f"{name}.safetensors", 1 << 40)
    rewrite(hostile, lambda content: content["main"].update(size=1 << 40))
    refused(hostile)


def test_links_out_of_the_folder(hostile: Path, outside: Path) -> None:
    for number, path in enumerate([*files(hostile), hostile / "lock"]):
        content = path.read_bytes()
        copy = outside.parent / f"copy {number}"
        copy.write_bytes(content)
        path.unlink()
        path.symlink_to(copy)
        with pytest.raises(clpu.Error):
            open_store(hostile).close()
        assert copy.read_bytes() == content
        path.unlink()
        path.write_bytes(content)
    open_store(hostile).close()


@pytest.mark.parametrize("folder", ["remembered", "temporary"])
def test_folders_that_are_links_out_of_the_store(hostile: Path, outside: Path, folder: str) -> None:
    target = outside.parent / "target"
    (hostile / folder).rename(target)
    (target / ("0" * 32)).write_bytes(b"looks like one of ours")
    (target / ("0" * 64 + ".safetensors")).write_bytes(b"looks like one of ours")
    before = picture(target)
    (hostile / folder).symlink_to(target)
    refused(hostile)
    assert picture(target) == before


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_planted_links_where_new_files_are_written(hostile: Path, outside: Path, kind: str) -> None:
    linked = outside.parent / "linked"
    linked.write_bytes(b"do not touch")
    for name in ("store.json.part", "keys.json.part", f"temporary/{'0' * 32}.part"):
        if kind == "symbolic":
            (hostile / name).symlink_to(outside / "letter")
        else:
            (hostile / name).hardlink_to(linked)
    with open_store(hostile) as agent:
        for name in ("store.json.part", "keys.json.part"):
            (hostile / name).symlink_to(outside / "letter")
        handle(agent, "5T")
        handle(agent, "3F")
    assert linked.read_bytes() == b"do not touch"
    assert verify(hostile).good


def test_a_key_file_that_has_another_name_outside_is_not_wiped_there(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.json").hardlink_to(hostile / "keys.json")
    before = (tmp_path / "copy.json").read_bytes()
    follow(hostile, "3F")
    assert (tmp_path / "copy.json").read_bytes() == before


def test_pipes_and_folders_in_place_of_files(hostile: Path) -> None:
    for path in files(hostile):
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        refused(hostile)
        path.unlink()
        path.mkdir()
        refused(hostile)
        path.rmdir()
        path.write_bytes(content)


ABSURD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "hidden layers": lambda c: c["agent"]["settings"].update(hidden=[10**9]),
    "many hidden layers": lambda c: c["agent"]["settings"].update(hidden=[6] * 10**5),
    "hidden text": lambda c: c["agent"]["settings"].update(hidden="6"),
    "another network": lambda c: c["agent"].update(network="resnet18", settings={"width": 10**6}),
    "a network of one's own": lambda c: c["agent"].update(network="module"),
    "unknown method": lambda c: c["agent"].update(method="os.system"),
    "what it forgets": lambda c: c["agent"].update(forgets="everything"),
    "an unknown fact about the agent": lambda c: c["agent"].update(inputs=[[4], False]),
    "many seeds": lambda c: c["agent"].update(seeds=list(range(10**5))),
    "seeds of text": lambda c: c["agent"].update(seeds="0"),
    "settings of text": lambda c: c["agent"].update(settings="lr"),
    "no agent": lambda c: c.update(agent=None),
    "agent of a newer version": lambda c: c["agent"].update(version=99),
    "size": lambda c: c["main"].update(size=2**62),
    "negative size": lambda c: c["main"].update(size=-1),
    "size as text": lambda c: c["main"].update(size="9"),
    "a path for a name": lambda c: c["main"].update(sha256="../../../../etc/passwd"),
    "a path for an id": lambda c: c["temporary"][0].update(id="../outside/letter"),
    "a place in the ledger": lambda c: c["temporary"][0].update(place="00" * 64),
    "a name with control characters": lambda c: c["remembered"][0].update(task="a\x1b[2J"),
    "a task twice": lambda c: c["remembered"].append(c["remembered"][0]),
    "a file twice": lambda c: c["temporary"].append(c["temporary"][0]),
    "an unknown field": lambda c: c.update(more=1),
    "an unknown field of a task": lambda c: c["remembered"][0].update(more=1),
    "version of text": lambda c: c.update(version="1"),
    "true for a version": lambda c: c.update(version=True),
    "another identity": lambda c: c.update(identity="0" * 64),
    "keys elsewhere": lambda c: c.update(keys="elsewhere"),
    "keys nowhere": lambda c: c.update(keys="nowhere"),
    "a list for an object": lambda c: c.update(main=[]),
}


#: Facts of a task, each wrong in one way.
ABSURD_FACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "inputs": lambda facts: facts.update(inputs={"shape": [10**12], "integer": False}),
    "inputs of text": lambda facts: facts.update(inputs="4"),
    "no inputs": lambda facts: facts.pop("inputs"),
    "steps": lambda facts: facts.update(steps=2**70),
    "labels": lambda facts: facts.update(labels=[2**70, 1]),
    "many labels": lambda facts: facts.update(labels=list(range(10**5))),
    "labels of text": lambda facts: facts.update(labels="ab"),
    "labels of objects": lambda facts: facts.update(labels=[{}, []]),
    "no labels": lambda facts: facts.pop("labels"),
}


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_manifests_with_a_right_checksum(hostile: Path, what: str) -> None:
    rewrite(hostile, ABSURD[what])
    for read_only in (True, False):
        with pytest.raises(clpu.Error):
            open_store(hostile, read_only=read_only).close()


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 1_000_000,
        b'{"a":' * 500_000,
        b"[" * 500 + b"]" * 500,
        b'{"format":"clpu-store","version":' + b"9" * 100_000 + b"}",
        b'{"format":"clpu-store","version":1e999}',
        b'{"format":"clpu-store","version":NaN}',
        b'{"format":"clpu-store","version":2,"version":2}',
        b'"' + b"\\u0000" * 100_000 + b'"',
        b"\xff\xfe\x00",
        b"null",
        b"",
        b" " * (17 << 20),
    ],
    ids=lambda bomb: repr(bomb[:20]) + str(len(bomb)),
)
@pytest.mark.parametrize("name", ["store.json", "keys.json"])
def test_json_bombs(hostile: Path, name: str, bomb: bytes) -> None:
    (hostile / name).write_bytes(bomb)
    refused(hostile)


@pytest.mark.parametrize("what", ABSURD_FACTS)
@pytest.mark.parametrize("where", ["remembered", "temporary"])
def test_absurd_facts_with_right_checksums(hostile: Path, what: str, where: str) -> None:
    with open_store(hostile, read_only=True) as agent:
        name, task = next((n, t) for n, t in agent.state().tasks.items() if t.status == where[0].upper())
    facts = dict(task.facts)
    ABSURD_FACTS[what](facts)
    content = task_bytes(name, replace(task, facts=facts))
    rewrite(hostile, lambda manifest: plant(hostile, manifest, where, name, content))
    for read_only in (True, False):
        with pytest.raises(clpu.Error):
            open_store(hostile, read_only=read_only).close()


#: States in place of a task's own file, each with something wrong.
WRONG_FILES: dict[str, Callable[[str, Task], State]] = {
    "an entry in about": lambda name, task: State({"note": "secret"}).with_task(name, task),
    "a shared leaf": lambda name, task: State({}, task.own).with_task(name, task),
    "a second task": lambda name, task: State({}).with_task(name, task).with_task("another", task),
    "no task": lambda name, task: State({}),
    "the other status": lambda name, task: State({}).with_task(
        name, replace(task, status="R" if task.status == "T" else "T")
    ),
    "a task of the store": lambda name, task: State({}).with_task("2", task),
}


@pytest.mark.parametrize("what", WRONG_FILES)
@pytest.mark.parametrize("where", ["remembered", "temporary"])
def test_a_tasks_file_holds_that_task_and_nothing_else(hostile: Path, where: str, what: str) -> None:
    with open_store(hostile, read_only=True) as agent:
        name, task = next((n, t) for n, t in agent.state().tasks.items() if t.status == where[0].upper())
    content = WRONG_FILES[what](name, task).to_bytes()
    rewrite(hostile, lambda manifest: plant(hostile, manifest, where, name, content))
    refused(hostile)


def plant(store: Path, manifest: dict[str, Any], where: str, task: str, content: bytes) -> None:
    """Put a file in the place of the main network's, a permanent task's or a temporary task's."""
    if where == "temporary":
        keys = Keys.from_bytes((store / "keys.json").read_bytes()).tasks
        for entry in manifest["temporary"]:
            id = entry["id"]
            if unseal_task((store / "temporary" / id).read_bytes(), id, keys[id])[0] == task:
                sealed = seal(keys[id], f"task {id}", content, 4096)
                (store / "temporary" / id).write_bytes(sealed)
                entry.update(sha256=sha256(sealed), size=len(sealed))
    else:
        entry = manifest["main"] if where == "main" else next(e for e in manifest["remembered"] if e["task"] == task)
        entry.update(sha256=sha256(content), size=len(content))
        (store / "remembered" / f"{entry['sha256']}.safetensors").write_bytes(content)


HEADERS = {
    "length beyond the file": (2**63).to_bytes(8, "little") + b"{}",
    "length at the limit": (2**64 - 1).to_bytes(8, "little"),
    "nested": (10**6).to_bytes(8, "little") + b"[" * 10**6,
    "huge tensor": b'{"body/0.weight":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}',
    "overlapping": b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
    b'"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
    "empty": b"{}",
    "description not JSON": b'{"__metadata__":{"clpu-state":"{"}}',
    "description a bomb": b'{"__metadata__":{"clpu-state":"' + b"[" * 100_000 + b'"}}',
    "description a list": b'{"__metadata__":{"clpu-state":"[]"}}',
}


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("where", ["main", "remembered", "temporary"])
def test_absurd_tensor_files_with_right_checksums(hostile: Path, what: str, where: str) -> None:
    content = HEADERS[what]
    if content.startswith(b"{"):
        content = len(content).to_bytes(8, "little") + content + bytes(16)
    task = {"main": "", "remembered": "1", "temporary": "3"}[where]
    rewrite(hostile, lambda manifest: plant(hostile, manifest, where, task, content))
    refused(hostile)


def mutated(content: bytes, luck: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or moved."""
    data = bytearray(content)
    for _ in range(luck.randint(1, 4)):
        at = luck.randrange(len(data) + 1)
        end = min(len(data), at + luck.choice([1, 2, 8, 64]))
        kind = luck.randrange(4)
        if kind == 0:
            data[at:end] = luck.randbytes(end - at)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        else:
            data[at:end] = luck.choice([b"0", b"-1", b"null", b"[]", b"1e9", b'"', b"{", b"999999999999"])
    return bytes(data)


def mutated_json(value: Any, luck: random.Random) -> Any:
    """JSON with one value somewhere replaced."""
    if isinstance(value, dict) and value and luck.random() < 0.9:
        name = luck.choice(sorted(value))
        return {**value, name: mutated_json(value[name], luck)}
    if isinstance(value, list) and value and luck.random() < 0.9:
        at = luck.randrange(len(value))
        return [*value[:at], mutated_json(value[at], luck), *value[at + 1 :]]
    return luck.choice([None, True, -1, 0, 1, 7, 2**31, 2**64, 1.5, "", "a", "0" * 64, "mlp", [], [1], {}, {"a": 1}])


def test_fuzzed_stores_give_typed_errors_or_open(hostile: Path, outside: Path) -> None:
    luck = random.Random(4)
    originals = {path: path.read_bytes() for path in files(hostile)}
    manifest = json.loads(originals[hostile / "store.json"])
    del manifest["checksum"]
    names = sorted(manifest)
    for number in range(600):
        if number % 2:
            path = luck.choice(sorted(originals))
            path.write_bytes(mutated(originals[path], luck))
        else:
            path = hostile / "store.json"
            path.write_bytes(to_json({**manifest, (name := luck.choice(names)): mutated_json(manifest[name], luck)}))
        with suppress(clpu.Error):
            open_store(hostile, read_only=True).close()
        path.write_bytes(originals[path])
    open_store(hostile).close()


def test_fuzzed_parsers_give_typed_errors(whole: Path, tmp_path: Path) -> None:
    luck = random.Random(5)
    np.savez(tmp_path / "good.npz", x=np.ones((4, 3), np.float32), y=np.arange(4))
    (tmp_path / "good.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    keys = Keys.from_bytes((whole / "keys.json").read_bytes())
    samples: list[tuple[Callable[[bytes], Any], bytes]] = [
        (Manifest.from_bytes, (whole / "store.json").read_bytes()),
        (Keys.from_bytes, (whole / "keys.json").read_bytes()),
        (lambda data: Receipt.from_json(data.decode(errors="replace")).verify(), _receipt(keys)),
    ]
    for kind in ("npz", "csv"):

        def parse(data: bytes, path: Path = tmp_path / f"fuzzed.{kind}") -> None:
            path.write_bytes(data)
            read(path, limit=1 << 20)

        samples.append((parse, (tmp_path / f"good.{kind}").read_bytes()))
    for number in range(6000):
        parser, sample = samples[number % len(samples)]
        with suppress(clpu.Error):
            parser(mutated(sample, luck))


def _receipt(keys: Keys) -> bytes:
    return Receipt.sign(keys, {"task": "1"}).to_json().encode()
