"""The durable agent is the agent, and is still there tomorrow."""

import json
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from storekit import (
    SETTINGS,
    Crash,
    Fault,
    clone,
    crashing,
    digest_after,
    examples,
    follow,
    handle,
    injected,
    picture,
    settings,
)

import clpu
from clpu import METHODS, Agent
from clpu.store import create, verify
from clpu.store import open as open_store
from clpu.store.format import to_json

REQUESTS = "1R 2T 3T 4R 2R 5T"


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].takes("mlp")])
def test_a_reopened_agent_goes_on_exactly_as_one_that_was_never_saved(method: str, tmp_path: Path) -> None:
    agent = create(tmp_path / "store", method, **settings(method))
    twin = Agent(method, **settings(method))
    for request in [*REQUESTS.split(), "3F", "6R", "5F", "7T"]:
        handle(agent, request)
        handle(twin, request)
        agent.close()
        agent = open_store(tmp_path / "store")
        assert agent.tasks == twin.tasks
        assert agent.digest() == twin.digest()
    x, _ = examples("1")
    assert np.array_equal(agent.predict("7", x), twin.predict("7", x))
    assert verify(tmp_path / "store").good
    assert not verify(tmp_path / "store").notes
    agent.close()


def test_the_tasks_are_listed_by_name_so_that_their_order_tells_nothing(store: Path) -> None:
    follow(store, "5T b:R a:T 4T d:R 1T c:R 2T 3T 2F 1R 3F 5R")
    with open_store(store) as agent:
        assert list(agent.tasks) == ["1", "4", "5", "a:", "b:", "c:", "d:"]


def test_a_population_and_a_module_of_the_user_are_stored_too(tmp_path: Path) -> None:
    def module() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh())

    with create(tmp_path / "store", network=module(), seeds=[3, 4], epochs=1) as agent:
        handle(agent, "1R")
        handle(agent, "2T")
        digest = agent.digest()
    with open_store(tmp_path / "store", network=module()) as agent:
        assert agent.digest() == digest
        assert agent.predict("2", examples("2")[0]).shape == (2, 16, 2)
    with pytest.raises(clpu.BadStore, match="network="):
        open_store(tmp_path / "store")


def test_an_interrupted_training_leaves_the_folder_untouched(store: Path) -> None:
    follow(store, "1R 2T")
    before = picture(store)

    def interrupt(progress: clpu.Progress) -> None:
        if progress.step == 1:
            raise KeyboardInterrupt

    for request in ("3R", "3T", "2R"):
        with open_store(store, progress=interrupt) as agent:
            with pytest.raises(KeyboardInterrupt):
                handle(agent, request)
            assert agent.tasks == {"1": "R", "2": "T"}
        assert picture(store) == before


@pytest.mark.parametrize("request_text", ["1F", "9F", "1T", "2T"])
def test_a_refused_request_leaves_the_folder_untouched(store: Path, request_text: str) -> None:
    follow(store, "1R 2T")
    before = picture(store)
    with open_store(store) as agent, pytest.raises(clpu.Error):
        handle(agent, request_text)
    assert picture(store) == before


def test_opening_and_asking_change_nothing_on_the_disk(store: Path) -> None:
    follow(store, "1R 2T")
    before = picture(store)
    for read_only in (False, True):
        with open_store(store, read_only=read_only) as agent:
            agent.predict("2", examples("2")[0])
            agent.digest()
            agent.storage()
    verify(store)
    assert picture(store) == before


def test_a_second_writer_is_told_so_and_a_reader_reads(store: Path) -> None:
    with open_store(store) as agent:
        handle(agent, "1R")
        with pytest.raises(clpu.StoreLocked, match="another process is writing"):
            open_store(store, wait=0)
        with open_store(store, read_only=True) as reader:
            assert reader.digest() == agent.digest()
            with pytest.raises(clpu.StoreFailed, match="reading only"):
                handle(reader, "2T")
    open_store(store).close()


def test_a_closed_agent_answers_and_handles_no_more_requests(store: Path) -> None:
    agent = open_store(store)
    handle(agent, "1T")
    agent.close()
    assert agent.tasks == {"1": "T"}
    with pytest.raises(clpu.StoreFailed, match="open it again"):
        agent.forget("1")


def test_a_reader_beside_a_busy_writer_always_sees_a_whole_state(store: Path) -> None:
    legal = {digest_after(done) for done in ("", "1T", "1T 1R", "1R 2T", "1T 1R 2T")} | {digest_after("1T 1R 2T 2F")}
    stop = threading.Event()
    seen: list[str] = []
    problems: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                with open_store(store, read_only=True) as reader:
                    seen.append(reader.digest())
            except BaseException as error:
                problems.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with open_store(store) as agent:
            for _ in range(10):
                handle(agent, "1T")
                handle(agent, "1F")
            handle(agent, "1T")
            handle(agent, "1R")
            for _ in range(10):
                handle(agent, "2T")
                handle(agent, "2F")
    finally:
        stop.set()
        thread.join()
    assert not problems
    assert set(seen) <= legal
    assert len(seen) > 1


@pytest.mark.parametrize("request_text", ["4R", "2R", "2F"])
def test_a_reader_is_right_even_if_part_of_a_request_comes_between_two_of_its_calls(
    store: Path, tmp_path: Path, request_text: str
) -> None:
    follow(store, "1R 2T 3T")
    legal = {digest_after("1R 2T 3T"), digest_after(f"1R 2T 3T {request_text}")}
    with open_store(clone(store, tmp_path / "counted")) as writer, injected() as injector:
        handle(writer, request_text)
    for at in (2, 5, 8):  # while the reader reads the manifest, again the manifest, the keys
        for part in range(3, len(injector.calls) + 1, 2):
            copy = clone(store, tmp_path / f"{at} {part}")
            with open_store(copy) as writer:

                def intrude(function, *args, writer=writer, part=part, **options):  # type: ignore[no-untyped-def]
                    counting.fault, counting.calls = Fault(crashing, part, sticky=True), []
                    with suppress(Crash):
                        handle(writer, request_text)
                    counting.fault = None
                    return function(*args, **options)

                with injected(Fault(intrude, at)) as counting, open_store(copy, read_only=True) as reader:
                    assert reader.digest() in legal


def test_a_reader_needs_no_writable_disk(store: Path) -> None:
    follow(store, "1R 2T")
    with injected() as injector, open_store(store, read_only=True) as agent:
        agent.predict("2", examples("2")[0])
    assert set(injector.calls) == {"open", "read", "list"}  # and `stat`, once for each call of the agent


def test_forgetting_makes_the_same_calls_however_many_tasks_are_alive(store: Path) -> None:
    counted = []
    with open_store(store) as agent:
        for tasks in ("1R 2T", "3R 4T 5T 6R 7T"):
            with injected():  # each leaf in a folder of its own
                for request in [*tasks.split(), "nT"]:
                    handle(agent, request)
            with injected() as injector:
                agent.forget("n")
            counted.append(injector.calls)
    assert counted[0] == counted[1]
    assert counted[0].count("fsync") == 6


def test_a_copy_is_an_agent_in_memory(store: Path) -> None:
    with open_store(store) as agent:
        handle(agent, "1T")
        before = picture(store)
        copy = agent.copy()
        handle(copy, "1F")
        handle(copy, "2R")
        assert agent.tasks == {"1": "T"}
        assert picture(store) == before


def test_create_refuses_a_folder_that_holds_something(store: Path, tmp_path: Path) -> None:
    with pytest.raises(clpu.BadStore, match="already"):
        create(store)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(clpu.BadStore, match="not empty"):
        create(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]
    follow(store, "1T")
    (store / "about.json").unlink()
    before = picture(store)
    with pytest.raises(clpu.Error):
        create(store)
    assert picture(store) == before


def test_create_with_bad_settings_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(clpu.BadSetting):
        create(tmp_path / "store", epochs=0)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("version", "words"), [(4, "upgrade clpu"), (1, "older clpu.*create a new store")])
def test_a_store_of_another_version_is_refused_with_the_way_out(store: Path, version: int, words: str) -> None:
    content = json.loads((store / "about.json").read_bytes())
    del content["checksum"]
    (store / "about.json").write_bytes(to_json({**content, "version": version}))
    before = picture(store)
    with pytest.raises(clpu.BadStore, match=words):
        open_store(store)
    after = picture(store)
    assert after == before


def test_a_store_of_the_format_before_this_one_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": "clpu-store", "version": 2}')
    for read_only in (True, False):
        with pytest.raises(clpu.BadStore, match=r"format 2, this one reads 3.*create a new store"):
            open_store(tmp_path, read_only=read_only)


def test_a_store_in_memory_and_on_disk_agree_on_every_error(store: Path) -> None:
    twin = Agent(**SETTINGS)
    with open_store(store) as agent:
        for request in ("1T", "1T", "1F", "1F", "2R", "2F", "2R", "3F"):
            outcomes = []
            for each in (agent, twin):
                try:
                    handle(each, request)
                    outcomes.append(("done", ""))
                except clpu.Error as error:
                    outcomes.append((type(error).__name__, str(error)))
            assert outcomes[0] == outcomes[1]
