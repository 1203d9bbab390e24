"""A copy of a store never harms the original, and every mismatch of folder and keys is told apart from damage."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from storekit import (
    ABOUT_PEOPLE,
    SETTINGS,
    Crash,
    Fault,
    clone,
    clone_apart,
    crashing,
    digest_after,
    examples,
    failing,
    follow,
    handle,
    injected,
    picture,
    store_of_people,
)

import clpu
from clpu.state import State
from clpu.store import DurableAgent, create, verify
from clpu.store import open as open_store
from clpu.store.folder import Access, Folder
from clpu.store.lifecycle import adopt
from clpu.store.lifecycle import clone as clone_store


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and its keys apart."""
    folder = tmp_path_factory.mktemp("apart")
    create(folder / "store", keys=folder / "keys", **SETTINGS).close()
    follow(folder / "store", "1R 2T 3T", keys=folder / "keys")
    return folder


@pytest.fixture
def apart(template: Path, tmp_path: Path) -> Path:
    clone(template, tmp_path / "apart")
    adopt(tmp_path / "apart" / "store", Access(tmp_path / "apart" / "keys"))
    return tmp_path / "apart"


def follow_apart(apart: Path, requests: str) -> str:
    return follow(apart / "store", requests, keys=apart / "keys")


def test_the_store_holds_no_key(apart: Path) -> None:
    assert sorted(p.name for p in (apart / "store").iterdir()) == ["about.json", "head", "leaves", "permanent", "root"]
    assert {p.stat().st_mode & 0o077 for p in (apart / "keys").rglob("*")} == {0}
    assert sorted(p.name for p in (apart / "keys").iterdir() if len(p.name) > 2) == ["master.json", "place.json"]


def test_a_copy_opens_for_reading_only_and_says_what_to_do(apart: Path) -> None:
    backup = clone(apart / "store", apart / "backup")
    follow_apart(apart, "2F 4T")
    before = picture(apart)
    with pytest.raises(clpu.BadKeys, match=r"`clpu clone`.*`clpu adopt`"):
        open_store(backup, keys=apart / "keys")
    with open_store(backup, keys=apart / "keys", read_only=True) as agent:
        assert agent.tasks == {"1": "R", "3": "T"}, (
            "what was forgotten since is gone, what was learned since not yet there"
        )
        assert agent.digest() == digest_after("1R 3T")
    report = verify(backup, Access(apart / "keys"))
    assert report.good
    assert any("copy" in note for note in report.notes)
    assert picture(apart) == before


@pytest.mark.parametrize("request_text", ["4T", "4R", "2R", "2F"])
def test_acting_on_a_copy_after_every_step_of_a_request_harms_no_task(
    template: Path, tmp_path: Path, request_text: str
) -> None:
    """H2: torn backups included, because the copy is made while the request is under way."""

    def fresh(number: int) -> Path:
        clone(template, tmp_path / str(number))
        adopt(tmp_path / str(number) / "store", Access(tmp_path / str(number) / "keys"))
        return tmp_path / str(number)

    counted = fresh(-1)
    with open_store(counted / "store", keys=counted / "keys") as agent, injected() as injector:
        handle(agent, request_text)
    legal = digest_after("1R 2T 3T"), digest_after(f"1R 2T 3T {request_text}")
    for at in range(0, len(injector.calls), 3):
        place = fresh(at)
        keys = place / "keys"
        agent = open_store(place / "store", keys=keys)
        with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
            handle(agent, request_text)
        agent.close()
        copy = clone(place / "store", place / "copy")
        for requests in ("3R", "3F 9T"):
            with pytest.raises(clpu.Error):
                follow(copy, requests, keys=keys)
        with open_store(copy, keys=keys, read_only=True) as reader:
            assert "1" in reader.tasks
        with open_store(place / "store", keys=keys) as agent:
            assert agent.digest() in legal
            agent.predict("3", examples("3")[0])
        with pytest.raises(clpu.BadKeys):
            open_store(copy, keys=keys)
        assert verify(place / "store", Access(keys)).good


def copies_during(apart: Path, act: Callable[[DurableAgent], Any], every: int) -> Iterator[tuple[Path, Path]]:
    """Copies of a store that were made in the middle of a request which was then completed, and the keys of its end."""
    folder = apart.parent
    place = clone_apart(apart, folder / "counted")
    with open_store(place[0], keys=place[1]) as agent, injected() as injector:
        act(agent)
    for at in range(0, len(injector.calls), every):
        store, keys = clone_apart(apart, folder / str(at))
        copy = folder / str(at) / "copy"

        def copying(function, *args, store=store, copy=copy, **options):  # type: ignore[no-untyped-def]
            clone(store, copy)
            return function(*args, **options)

        with open_store(store, keys=keys) as agent, injected(Fault(copying, at)):
            act(agent)
        if copy.exists():  # how many folders a request makes is chance
            yield copy, keys


def outcome(copy: Path, keys: Path) -> State:
    """What a copy holds: read as it is, verified, cloned, and in the end adopted."""
    with open_store(copy, keys=keys, read_only=True) as reader:
        found = reader.state()
    assert verify(copy, Access(keys)).good
    clone_store(copy, copy.parent / "new", Access(keys))
    with open_store(copy.parent / "new") as agent:
        assert agent.state().tasks == found.tasks
    adopt(copy, Access(keys))
    with open_store(copy, keys=keys) as agent:
        assert agent.state() == found
    report = verify(copy, Access(keys))
    assert report.good
    assert not report.notes
    return found


@pytest.mark.parametrize("request_text", ["4T", "4R", "2R", "2F"])
def test_a_copy_made_in_the_middle_of_a_request_that_was_completed_is_of_use(apart: Path, request_text: str) -> None:
    legal = {digest_after(text) for text in ("1R 2T 3T", "1R 3T", f"1R 2T 3T {request_text}")}
    found = {outcome(*place).digest() for place in copies_during(apart, lambda a: handle(a, request_text), 3)}
    assert found <= legal
    assert len(found) == {"4T": 2, "4R": 2, "2R": 2, "2F": 1}[request_text]


@pytest.mark.parametrize("name", ABOUT_PEOPLE)
def test_a_copy_made_in_the_middle_of_a_request_about_many_people_holds_all_of_it_or_nothing(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "apart").mkdir()
    keys = tmp_path / "apart" / "keys"
    store_of_people(tmp_path / "apart" / "store", 4, keys=keys)
    with open_store(tmp_path / "apart" / "store", keys=keys, read_only=True) as agent:
        before = agent.state()
    whole = {f"q{n}" for n in range(50)}
    for copy, keys in copies_during(tmp_path / "apart", ABOUT_PEOPLE[name], 60):
        found = outcome(copy, keys)
        for task, entry in found.tasks.items():
            people = {person for who in entry.people for person in who}
            expected = {person for who in before.tasks[task].people for person in who} if task != "new" else whole
            gone = {"a person leaves five tasks": {"p3"}, "a label goes": {"p1", "p3"} if task == "1" else set()}
            assert people in (expected, expected - gone.get(name, set()))


def test_a_clone_is_a_store_of_its_own(apart: Path) -> None:
    copy = clone(apart / "store", apart / "copy")
    assert clone_store(copy, apart / "new", Access(apart / "keys"), Access(apart / "new keys")) == 3
    follow(apart / "new", "2F 3R", keys=apart / "new keys")
    with open_store(apart / "store", keys=apart / "keys") as agent:
        assert agent.digest() == digest_after("1R 2T 3T")
    with pytest.raises(clpu.BadKeys, match="different store"):
        open_store(apart / "new", keys=apart / "keys")
    with (
        Folder(apart / "new", Access(apart / "new keys")) as new,
        Folder(apart / "store", Access(apart / "keys")) as old,
    ):
        assert new.secrets.names != old.secrets.names
        assert new.about.identity != old.about.identity


@pytest.mark.parametrize("here", [True, False])
def test_an_interrupted_clone_is_there_completely_or_not_at_all(apart: Path, here: bool) -> None:
    def act(number: int) -> None:
        keys = None if here else apart / f"{number} keys"
        clone_store(apart / "store", apart / str(number), Access(apart / "keys"), Access(keys))

    with injected() as injector:
        act(-1)
    with open_store(apart / "-1", keys=None if here else apart / "-1 keys") as agent:
        assert agent.digest() == digest_after("1R 2T 3T")
    for at in range(0, len(injector.calls), 11):
        with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
            act(at)
        assert not (apart / str(at)).exists()
    with injected(Fault(failing(errno.ENOSPC), len(injector.calls) - 9)), pytest.raises(clpu.StoreFailed):
        act(-2)
    assert not [path for path in apart.iterdir() if path.name.startswith(".-2")], "a failure leaves nothing"


def test_a_clone_takes_no_place_that_is_taken(apart: Path) -> None:
    (apart / "taken").mkdir()
    (apart / "taken" / "keys").mkdir()
    (apart / "file").touch()
    before = picture(apart)
    for target, keys in (("taken", None), ("store", None), ("file", None), ("new", "new/keys")):
        with pytest.raises(clpu.Error):
            clone_store(apart / "store", apart / target, Access(apart / "keys"), Access(keys and apart / keys))
        assert picture(apart) == before
    (apart / "taken" / "keys").rmdir()
    assert clone_store(apart / "store", apart / "taken", Access(apart / "keys")) == 3


def test_a_moved_store_is_adopted(apart: Path) -> None:
    clone(apart / "store", apart / "elsewhere")
    shutil.rmtree(apart / "store")
    assert adopt(apart / "elsewhere", Access(apart / "keys")).files == 0
    assert follow(apart / "elsewhere", "2F", keys=apart / "keys") == digest_after("1R 3T")


def test_a_restored_backup_keeps_every_forget_that_came_after_it(apart: Path) -> None:
    backup = clone(apart / "store", apart / "backup")
    follow_apart(apart, "2F 4T")
    shutil.rmtree(apart / "store")
    backup.rename(apart / "store")
    dropped = adopt(apart / "store", Access(apart / "keys"))
    assert (dropped.files, dropped.keys) == (1, 1), "what was forgotten, and what was learned since"
    assert follow_apart(apart, "") == digest_after("1R 3T")
    assert verify(apart / "store", Access(apart / "keys")).good


def test_a_folder_that_replaced_the_original_in_its_place_is_noticed(apart: Path) -> None:
    """Even if the file system gives it the same inode."""
    backup = clone(apart / "store", apart / "backup")
    follow_apart(apart, "2F")
    for name in ("leaves", "permanent"):
        shutil.rmtree(apart / "store" / name)
        clone(backup / name, apart / "store" / name)
    with pytest.raises(clpu.BadKeys, match=r"older or newer.*`clpu adopt`"):
        open_store(apart / "store", keys=apart / "keys")


@pytest.mark.parametrize("here", [True, False])
def test_older_keys_put_back_cost_no_task(apart: Path, store: Path, here: bool) -> None:
    """M5."""
    path, keys = (store, store / "keys") if here else (apart / "store", apart / "keys")
    options = {} if here else {"keys": keys}
    if here:
        follow(store, "1R 2T 3T")
    old = clone(keys, apart / "old keys")
    follow(path, "4T", **options)
    newer = clone(keys, apart / "newer keys")
    shutil.rmtree(keys)
    clone(old, keys)
    before = picture(path)
    for requests in ("", "5T", "2F"):
        with pytest.raises(clpu.BadKeys, match=r"keys folder is older or newer than the store.*`clpu adopt`"):
            follow(path, requests, **options)
    assert picture(path) == before
    assert not verify(path, Access(None if here else keys)).good
    shutil.rmtree(keys)
    clone(newer, keys)
    assert follow(path, "", **options) == digest_after("1R 2T 3T 4T")


def test_lost_and_foreign_keys_are_told_from_damage(apart: Path, store: Path, tmp_path: Path) -> None:
    create(tmp_path / "third", keys=tmp_path / "third keys", **SETTINGS).close()
    before = picture(apart)
    cases = [
        (None, "--keys"),
        (tmp_path / "none", "is missing.*`clpu recover`"),
        (tmp_path / "third keys", "belong to a different store"),
        (store, "is not a keys folder"),
    ]
    for wrong, words in cases:
        for read_only in (False, True):
            with pytest.raises(clpu.BadKeys, match=words):
                open_store(apart / "store", keys=wrong, read_only=read_only)
    with pytest.raises(clpu.BadKeys, match=r"are stored in it.*CLPU_KEYS"):
        open_store(store, keys=apart / "keys")
    assert picture(apart) == before


def test_a_missing_leaf_is_damage(store: Path) -> None:
    follow(store, "1R 2T")
    next(path for path in (store / "leaves").rglob("*") if path.is_file()).unlink()
    for read_only in (False, True):
        with pytest.raises(clpu.BadStore, match=r"damaged.*missing"):
            open_store(store, read_only=read_only)


def test_a_keys_folder_belongs_to_one_store(apart: Path, tmp_path: Path) -> None:
    """M2: two stores cannot share keys."""
    before = picture(apart)
    with pytest.raises(clpu.BadKeys, match="belongs to one store"):
        create(tmp_path / "second", keys=apart / "keys")
    with pytest.raises(clpu.BadKeys, match="inside the store"):
        create(tmp_path / "second", keys=tmp_path / "second" / "k")
    with pytest.raises(clpu.BadKeys, match="no folder"):
        create(tmp_path / "second", keys=tmp_path / "no" / "folder")
    assert picture(apart) == before
    assert not (tmp_path / "second").exists(), "a refused init leaves nothing"  # L8


def test_old_copies_and_todays_keys_give_nothing_back(apart: Path, tmp_path: Path) -> None:
    """Invariant 3: every earlier copy of the folder, and today's keys."""
    copies, gone = [], []
    for number, request in enumerate(["", "4T", "2F", "5T", "4R", "5F", "3F"]):
        if request.endswith("F"):
            with Folder(apart / "store", Access(apart / "keys")) as opened:
                opened.load()
                gone.append(opened.standing.files[request[0], None].name)
        follow_apart(apart, request)
        copies.append(clone(apart / "store", tmp_path / f"copy {number}"))
    with Folder(apart / "store", Access(apart / "keys")) as today:
        now = today.load()
        assert not set(gone) & today.keyring.scan({}).keys()
    assert len(gone) == 3
    for copy in copies:
        with Folder(copy, Access(apart / "keys")) as opened:
            state = opened.load()
        assert not {"2", "5", "3"} & state.tasks.keys()
        assert state.tasks.keys() <= {"1", "4"}
    assert now.tasks.keys() == {"1", "4"}


def test_permanent_files_are_equal_for_equal_content(store: Path, tmp_path: Path) -> None:
    """Nothing tells by difference that something else came and went."""
    follow(store, "1R")
    before = picture(store)
    follow(store, "2T 3T 2F 3F")
    assert picture(store) == before


class TestModes:
    def test_a_store_is_for_its_owner_whatever_the_umask(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            (tmp_path / "open").mkdir(mode=0o755)
            create(tmp_path / "open", **SETTINGS).close()
            follow(tmp_path / "open", "1R 2T")
        finally:
            os.umask(old)
        found = [tmp_path / "open", *(tmp_path / "open").rglob("*")]
        assert {path.stat().st_mode & 0o077 for path in found} == {0}

    def test_keys_that_others_can_reach_are_refused_unless_told(self, store: Path) -> None:
        follow(store, "1R 2T")
        (store / "keys").chmod(0o750)
        for read_only in (True, False):
            with pytest.raises(clpu.BadKeys, match=r"mode 750.*chmod go=.*--shared-keys"):
                open_store(store, read_only=read_only)
        open_store(store, shared_keys=True).close()

    def test_a_copy_that_lost_modes_and_times_gets_them_back(self, store: Path, tmp_path: Path) -> None:
        follow(store, "1R 2T")
        shutil.copytree(store, tmp_path / "copy", copy_function=shutil.copyfile)
        (tmp_path / "copy" / "keys").chmod(0o700)
        open_store(tmp_path / "copy").close()
        assert picture(tmp_path / "copy") == picture(store)
