"""After a forget the folder is that of an agent which never learned the task."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from storekit import SETTINGS, clone, follow, handle, picture, picture_without_secrets, synthetic

from clpu import Stream
from clpu.requests import Request
from clpu.store import create
from clpu.store import open as open_store
from clpu.store.store import Store


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Legal streams over four tasks, rich in forgets."""
    active: dict[str, str] = {}
    requests = []
    for _ in range(draw(st.integers(1, 9))):
        task = draw(st.sampled_from("abcd"))
        letters = {None: "TTR", "T": "FFR", "R": ""}[active.get(task)]
        if not letters:
            continue
        letter = draw(st.sampled_from(letters))
        requests.append(Request.parse(task + letter))
        active = {name: status for name, status in active.items() if name != task}
        if letter != "F":
            active[task] = letter
    return Stream(requests)


def run(path: Path, stream: Stream, reopen: bool) -> None:
    agent = open_store(path)
    for request in stream:
        handle(agent, str(request))
        if reopen:
            agent.close()
            agent = open_store(path)
    agent.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stream=streams(), reopen=st.booleans())
@example(stream=Stream("aT aF"), reopen=False)
@example(stream=Stream("aT bR cT aF cR dT"), reopen=False)
@example(stream=Stream("aT bT cT bF"), reopen=True)
def test_a_folder_equals_its_counterfactual_byte_by_byte(empty_store: Path, stream: Stream, reopen: bool) -> None:
    """Both start as copies of one fresh store, so that the key file, too, must be equal to the last bit."""
    with TemporaryDirectory() as folder:
        past, never = clone(empty_store, Path(folder) / "a"), clone(empty_store, Path(folder) / "b")
        run(past, stream, reopen)
        counterfactual = stream.counterfactual()
        run(never, counterfactual, False)
        assert picture_without_secrets(past) == picture_without_secrets(never)
        with open_store(past, read_only=True) as agent:
            alone = "T" not in agent.tasks.values()
        if alone:
            assert picture(past) == picture(never)


@pytest.mark.parametrize("method", ["ind", "clpu-der++-scratch"])
def test_the_other_exact_methods_are_identical_too(method: str, tmp_path: Path) -> None:
    own = {name: value for name, value in SETTINGS.items() if method != "ind" or name in ("hidden", "epochs")}
    create(tmp_path / "a", method, **own).close()
    clone(tmp_path / "a", tmp_path / "b")
    follow(tmp_path / "a", "1T 2R 3T 4T 3R 1F 4F")
    follow(tmp_path / "b", "2R 3T 3R")
    assert picture_without_secrets(tmp_path / "a") == picture_without_secrets(tmp_path / "b")


def test_two_stores_made_apart_have_files_of_the_same_number_and_size(tmp_path: Path) -> None:
    for name in "ab":
        create(tmp_path / name, keys=tmp_path / f"{name} keys", **SETTINGS).close()
    follow(tmp_path / "a", "1R 2T 2F", keys=tmp_path / "a keys")
    follow(tmp_path / "b", "1R", keys=tmp_path / "b keys")
    shapes = [sorted(entry[:4] for entry in picture(tmp_path / name).values()) for name in "ab"]
    assert shapes[0] == shapes[1]


def test_a_folder_is_no_larger_after_many_forgets_than_before(empty_store: Path, tmp_path: Path) -> None:
    """L1: on most file systems a folder that once held many names stays large."""
    past, never = clone(empty_store, tmp_path / "a"), clone(empty_store, tmp_path / "b")
    living = {"living": synthetic("T", 0)}
    for path, tasks in ((past, {f"task {n}": synthetic("T", n) for n in range(300)} | living), (never, living)):
        with Store(path, write=True) as store:
            store.commit(replace(store.load(), tasks=tasks))
    with Store(past, write=True) as store:
        store.commit(replace(store.load(), tasks=living))
    assert picture_without_secrets(past) == picture_without_secrets(never)
    sizes = [{entry.stat().st_size for entry in path.rglob("*") if entry.is_dir()} for path in (past, never)]
    assert sizes[0] == sizes[1]
