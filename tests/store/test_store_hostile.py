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

import pytest
from fuzzing import mutated
from storekit import clone, follow, handle, picture

import clpu
from clpu.store import open as open_store
from clpu.store import verify
from clpu.store.contents import SHARED, Part
from clpu.store.folder import Folder
from clpu.store.format import to_json
from clpu.store.keyring import unwrap
from clpu.store.plan import File, Intent, root_bytes
from clpu.store.sealing import keyed_name, seal, seal_always

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
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != "head")


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a small JSON file and give it a right checksum, as one who means it would."""
    content = json.loads(path.read_bytes())
    del content["checksum"]
    change(content)
    path.write_bytes(to_json(content))


def describe(store: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what the root says of the agent, as one who has the keys would."""
    with Folder(store) as opened:
        view = opened.view()
        about = json.loads(json.dumps(view.about))
        change(about)
        root = root_bytes(about, [File(name, True) for name in view.permanent], opened.secrets)
    (store / "root").write_bytes(root)


def plant(store: Path, task: str, content: bytes) -> None:
    """Put a content in the place of a task's own, or of what tasks share, encrypted as it should be."""
    with Folder(store) as opened:
        opened.load()
        secrets, files = opened.secrets, opened.standing.files
        file = files[(task, None) if task else SHARED]
        if not file.permanent:
            key = unwrap(secrets, file.name, opened.standing.keys[file.name])
            (store / file.path).write_bytes(seal(key, f"leaf {file.name}", content))
            return
        new = File(keyed_name(secrets.names, content), True)
        (store / file.path).unlink()
        (store / new.path).parent.mkdir(exist_ok=True)
        (store / new.path).write_bytes(seal_always(secrets.permanent[-1], f"permanent {new.name}", content))
        others = [other for other in files.values() if other != file]
        (store / "root").write_bytes(root_bytes(opened.standing.state.about, [*others, new], secrets))


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
        if len(path.name) == 32 and "keys" in path.parts:  # what can be read without it can be read
            with pytest.raises(clpu.BadKeys, match="older or newer"):
                open_store(hostile)
            assert not verify(hostile).good
        else:
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


def test_oversized_files(hostile: Path) -> None:
    for path in files(hostile):
        content = path.read_bytes()
        with path.open("ab") as file:
            file.write(b"\0")
        refused(hostile)
        os.truncate(path, 1 << 40)
        refused(hostile)
        path.write_bytes(content)


def test_links_out_of_the_folder(hostile: Path, outside: Path) -> None:
    for number, path in enumerate(files(hostile)):
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


@pytest.mark.parametrize("folder", ["leaves", "permanent", "leaves/*", "permanent/*", "keys/??"])
def test_folders_that_are_links_out_of_the_store(hostile: Path, outside: Path, folder: str) -> None:
    found = next(iter(hostile.glob(folder)))
    target = outside.parent / "target"
    found.rename(target)
    (target / ("0" * 32)).write_bytes(b"looks like one of ours")
    before = picture(target)
    found.symlink_to(target)
    refused(hostile)
    assert picture(target) == before


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_planted_links_where_new_files_are_written(hostile: Path, outside: Path, kind: str) -> None:
    linked = outside.parent / "linked"
    linked.write_bytes(b"do not touch")
    shard = next((hostile / "keys").glob("??"))
    planted = (
        "root.part",
        "intent.part",
        "head.part",
        "keys/master.json.part",
        f"keys/{shard.name}/{shard.name:0<32}.part",
    )
    for name in planted:
        if kind == "symbolic":
            (hostile / name).symlink_to(outside / "letter")
        else:
            (hostile / name).hardlink_to(linked)
    with open_store(hostile) as agent:
        for name in planted[:3]:
            (hostile / name).symlink_to(outside / "letter")
        handle(agent, "5T")
        handle(agent, "3F")
    assert linked.read_bytes() == b"do not touch"
    assert verify(hostile).good


def test_a_key_that_has_another_name_outside_is_not_wiped_there(hostile: Path, tmp_path: Path) -> None:
    entries = [path for path in (hostile / "keys").rglob("*") if len(path.name) == 32]
    for number, path in enumerate(entries):
        (tmp_path / f"copy {number}").hardlink_to(path)
    before = [(tmp_path / f"copy {number}").read_bytes() for number in range(len(entries))]
    follow(hostile, "3F 4F")
    assert [(tmp_path / f"copy {number}").read_bytes() for number in range(len(entries))] == before


def test_what_is_not_ours_keeps_its_mode_and_time(hostile: Path, outside: Path) -> None:
    """A hard link planted in the store would otherwise change a file outside."""
    linked = outside.parent / "linked"
    linked.write_bytes(b"do not touch")
    linked.chmod(0o644)
    os.utime(linked, (10**9, 10**9))
    before = linked.stat()
    shard = next((hostile / "leaves").glob("??"))
    for name in ("notes", f"leaves/{shard.name}/notes", "keys/notes"):
        (hostile / name).hardlink_to(linked)
    (hostile / "root").chmod(0o644)
    about = hostile / "about.json"
    copy = outside.parent / "about"
    about.rename(copy)
    copy.chmod(0o644)
    os.utime(copy, (10**9, 10**9))
    about.hardlink_to(copy)
    follow(hostile, "3F 5T")
    for path, mode in ((linked, 0o644), (copy, 0o644), (hostile / "root", 0o600)):
        assert path.stat().st_mode & 0o777 == mode
    assert linked.stat().st_mtime == before.st_mtime == copy.stat().st_mtime


def test_a_key_that_is_removed_is_overwritten_where_it_lies(hostile: Path) -> None:
    """L3: also the one that an interrupted request left."""
    entries = [path for path in (hostile / "keys").rglob("*") if len(path.name) == 32]
    left = entries[0].with_name(entries[0].name + ".part")
    left.write_bytes(entries[0].read_bytes())
    held = [path.open("rb") for path in (*entries, left)]
    assert all(file.read() for file in held)
    follow(hostile, "3F 4F")
    for file in held:
        file.seek(0)
        assert file.read() == bytes(68)
        file.close()


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
    "hidden layers": lambda a: a["settings"].update(hidden=[10**9]),
    "many hidden layers": lambda a: a["settings"].update(hidden=[6] * 10**5),
    "hidden text": lambda a: a["settings"].update(hidden="6"),
    "another network": lambda a: a.update(network="resnet18", settings={"width": 10**6}),
    "a network of one's own": lambda a: a.update(network="module"),
    "unknown method": lambda a: a.update(method="os.system"),
    "what it forgets": lambda a: a.update(forgets="everything"),
    "an unknown fact about the agent": lambda a: a.update(inputs=[[4], False]),
    "many seeds": lambda a: a.update(seeds=list(range(10**5))),
    "seeds of text": lambda a: a.update(seeds="0"),
    "settings of text": lambda a: a.update(settings="lr"),
    "agent of a newer version": lambda a: a.update(version=99),
}
ABSURD_FILES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an unknown field": lambda c: c.update(more=1),
    "version of text": lambda c: c.update(version="1"),
    "true for a version": lambda c: c.update(version=True),
    "another identity": lambda c: c.update(identity="0" * 64),
    "a list for an object": lambda c: c.update(identity=[]),
    "keys elsewhere": lambda c: c.update(keys="elsewhere"),
    "keys nowhere": lambda c: c.update(keys="nowhere"),
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
def test_absurd_descriptions_that_are_encrypted_as_they_should_be(hostile: Path, what: str) -> None:
    describe(hostile, ABSURD[what])
    if what in ("a network of one's own", "unknown method"):
        assert any("custom code" in note for note in verify(hostile).notes)
        with pytest.raises(clpu.BadStore):
            open_store(hostile)
    else:
        refused(hostile)


@pytest.mark.parametrize("what", ABSURD_FILES)
def test_absurd_json_with_a_right_checksum(hostile: Path, what: str) -> None:
    rewrite(hostile / "about.json", ABSURD_FILES[what])
    refused(hostile)


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 1_000_000,
        b'{"a":' * 500_000,
        b"[" * 500 + b"]" * 500,
        b'{"format":"clpu-store","version":' + b"9" * 100_000 + b"}",
        b'{"format":"clpu-store","version":1e999}',
        b'{"format":"clpu-store","version":NaN}',
        b'{"format":"clpu-store","version":3,"version":3}',
        b'"' + b"\\u0000" * 100_000 + b'"',
        b"\xff\xfe\x00",
        b"null",
        b"",
        b" " * (17 << 20),
    ],
    ids=lambda bomb: repr(bomb[:20]) + str(len(bomb)),
)
@pytest.mark.parametrize("name", ["about.json", "keys/master.json", "root", "intent"])
def test_json_bombs(hostile: Path, name: str, bomb: bytes) -> None:
    (hostile / name).write_bytes(bomb)
    refused(hostile)


@pytest.mark.parametrize("what", ABSURD_FACTS)
@pytest.mark.parametrize("name", ["1", "3"])
def test_absurd_facts_that_are_encrypted_as_they_should_be(hostile: Path, what: str, name: str) -> None:
    with open_store(hostile, read_only=True) as agent:
        task = agent.state().tasks[name]
    facts = dict(task.facts)
    ABSURD_FACTS[what](facts)
    plant(hostile, name, Part((name, None), task.status, facts, task.own).to_bytes())
    refused(hostile)


#: Parts in place of a task's own, each with something wrong.
WRONG_PARTS: dict[str, Callable[[Part], Part]] = {
    "a task of the store": lambda part: replace(part, item=("2", None)),
    "what tasks share": lambda part: replace(part, item=SHARED),
    "records without a task": lambda part: replace(part, item=("9", ("ada",))),
    "no status": lambda part: replace(part, status=""),
    "records without tensors": lambda part: replace(part, item=("1", ("ada",)), leaf=None),
}


@pytest.mark.parametrize("what", WRONG_PARTS)
@pytest.mark.parametrize("name", ["1", "3"])
def test_a_file_holds_the_part_that_it_should(hostile: Path, name: str, what: str) -> None:
    with open_store(hostile, read_only=True) as agent:
        task = agent.state().tasks[name]
    plant(hostile, name, WRONG_PARTS[what](Part((name, None), task.status, task.facts, task.own)).to_bytes())
    refused(hostile)


def test_an_intent_that_names_paths_is_refused(hostile: Path, outside: Path) -> None:
    with Folder(hostile) as opened:
        sealed = Intent(remove=("../../outside/letter",)).seal(opened.secrets)
    (hostile / "intent").write_bytes(sealed)
    refused(hostile)


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
@pytest.mark.parametrize("task", ["", "1", "3"])
def test_absurd_tensors_that_are_encrypted_as_they_should_be(hostile: Path, what: str, task: str) -> None:
    content = HEADERS[what]
    if content.startswith(b"{"):
        content = len(content).to_bytes(8, "little") + content + bytes(16)
    with open_store(hostile, read_only=True) as agent:
        found = agent.state().tasks.get(task)
    part = Part(SHARED, "", {}, None) if found is None else Part((task, None), found.status, found.facts, None)
    plant(hostile, task, content if task == "1" else part.to_bytes() + content)
    refused(hostile)


def test_fuzzed_stores_give_typed_errors_or_open(hostile: Path, outside: Path) -> None:
    luck = random.Random(4)
    originals = {path: path.read_bytes() for path in files(hostile)}
    for _ in range(300):
        path = luck.choice(sorted(originals))
        path.write_bytes(mutated(originals[path], luck))
        with suppress(clpu.Error):
            open_store(hostile, read_only=True).close()
        path.write_bytes(originals[path])
    open_store(hostile).close()
