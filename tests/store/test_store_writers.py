"""One writer at a time, who cannot be got around; readers who follow and do not starve."""

import itertools
import multiprocessing
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from storekit import SETTINGS, examples, follow, handle, synthetic

import clpu
from clpu.state import State
from clpu.store import create, verify
from clpu.store import open as open_store
from clpu.store.folder import Access, Folder, View
from clpu.store.store import Store


def test_no_file_can_be_deleted_to_get_around_the_lock(store: Path) -> None:
    """M4."""
    with open_store(store) as agent:
        handle(agent, "1R")
        for path in sorted(store.iterdir()):
            if path.is_file() and path.name != "about.json":
                content = path.read_bytes()
                path.unlink()
                with pytest.raises(clpu.StoreLocked):
                    open_store(store, wait=0)
                path.write_bytes(content)


def test_a_second_writer_waits_for_the_first(store: Path) -> None:
    agent = open_store(store)
    timer = threading.Timer(0.3, agent.close)  # long enough for the other to find the lock taken
    timer.start()
    try:
        open_store(store, wait=600).close()
    finally:
        timer.join()
    with open_store(store), pytest.raises(clpu.StoreLocked, match=r"waited 0.2 s; --wait SECONDS"):
        open_store(store, wait=0.2)


def _init(path: Path, barrier, answers) -> None:  # type: ignore[no-untyped-def]
    from clpu.store.lifecycle import make_store

    about = {"method": "m", "network": "n", "forgets": "tasks", "settings": {}, "seeds": [0]}
    barrier.wait()
    try:
        make_store(path, about, Access(wait=600))
        answers.put("made")
    except clpu.BadStore:
        answers.put("refused")


def test_of_several_inits_at_once_one_succeeds(tmp_path: Path) -> None:
    """M3."""
    context = multiprocessing.get_context("fork")
    for attempt in range(3):
        barrier, answers = context.Barrier(3), context.Queue()
        processes = [context.Process(target=_init, args=(tmp_path / str(attempt), barrier, answers)) for _ in range(3)]
        for process in processes:
            process.start()
        found = sorted(answers.get(timeout=600) for _ in processes)
        for process in processes:
            process.join()
        assert found == ["made", "refused", "refused"]
        Store(tmp_path / str(attempt), write=True).close()


def test_a_late_init_does_not_overwrite_what_another_made_and_filled(store: Path) -> None:
    digest = follow(store, "1R 2T")
    with pytest.raises(clpu.BadStore, match="already a store"):
        create(store, **SETTINGS)
    assert follow(store, "") == digest


def test_a_reader_follows_a_forget_with_its_next_call(store: Path) -> None:
    follow(store, "1R 2T")
    with open_store(store, read_only=True) as reader, open_store(store) as writer:
        assert reader.tasks == {"1": "R", "2": "T"}
        writer.forget("2")
        assert reader.tasks == {"1": "R"}
        with pytest.raises(clpu.UnknownTask):
            reader.predict("2", examples("2")[0])
        handle(writer, "3T")
        assert reader.predict("3", examples("3")[0]).shape == (16, 2)
        handle(writer, "3R")
        assert reader.digest() == writer.digest()


def test_a_reader_that_nothing_changed_for_looks_once_and_reads_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(store, "1R 2T")
    with open_store(store, read_only=True) as reader:
        monkeypatch.setattr(Folder, "load", lambda self: pytest.fail("read again"))
        looks = []
        original = Folder.follow
        monkeypatch.setattr(Folder, "follow", lambda self: looks.append(1) or original(self))
        assert reader.tasks
        assert len(looks) == 1


def test_a_reader_says_that_its_store_is_gone(store: Path) -> None:
    with open_store(store, read_only=True) as reader:
        store.rename(store.parent / "away")
        with pytest.raises(clpu.BadStore, match="is gone"):
            _ = reader.tasks


def test_a_reader_beside_a_fast_writer_of_a_large_store_gets_its_turn(store: Path) -> None:
    """L2: with 2,000 tasks, reading takes longer than the time between two requests."""
    with Store(store, write=True) as opened:
        state = opened.load()
        opened.commit(replace(state, tasks={f"task {n}": synthetic("T", n) for n in range(2000)}))
    stop, problems, finished = threading.Event(), [], []

    def write() -> None:
        try:
            with Store(store, write=True) as opened:
                state = opened.load()
                for _ in range(300):
                    opened.commit(state.with_task("more", synthetic("T", 1)))
                    opened.commit(state)
                    if stop.is_set():
                        return
                finished.append(True)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2):
            with Folder(store) as reader:
                found = reader.load()
                assert len(found.tasks) in (2000, 2001)
    finally:
        stop.set()
        thread.join()
    assert not problems
    assert not finished, "a reader must not have to wait until writers have nothing more to do"


def test_a_reader_on_a_slow_machine_does_not_give_up_while_a_writer_gets_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt takes ten seconds here, and meets a request of the writer."""
    digest = follow(store, "1R 2T")
    original, attempts, clock = Folder.assemble, [], itertools.count(step=10)

    def assemble(self: Folder, view: View) -> State:
        if len(attempts) < 5:
            attempts.append(True)
            (store / "new").write_bytes(bytes(32))
            (store / "new").rename(store / "head")
            raise clpu.BadStore(f"file {len(attempts)} is missing")
        return original(self, view)

    monkeypatch.setattr(Folder, "assemble", assemble)
    monkeypatch.setattr(
        "clpu.store.folder.time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    )
    with Folder(store) as reader:
        assert reader.load().digest() == digest
    assert len(attempts) == 5


def test_a_reader_that_waits_for_a_damaged_file_gives_up_although_a_writer_is_busy(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clpu.store.folder.PATIENCE", 0.2)
    with Store(store, write=True) as opened:
        state = opened.load().with_task("1", synthetic("T", 1))
        opened.commit(state)
        next(path for path in (store / "leaves").rglob("*") if path.is_file()).write_bytes(b"damaged")
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                opened.commit(state.with_task("2", synthetic("T", 2)))
                opened.commit(state)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            with Folder(store) as reader, pytest.raises(clpu.BadStore, match="cannot be decrypted"):
                reader.load()
        finally:
            stop.set()
            thread.join()


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs the program flock of util-linux")
def test_a_backup_that_takes_the_lock_is_never_torn(store: Path, tmp_path: Path) -> None:
    """As docs/durable-agent.md says; the lock is the one that writers take."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            with Store(store, Access(wait=600), write=True) as opened:
                number += 1
                opened.commit(opened.load().with_task(f"task {number % 3}", synthetic("RT"[number % 2], number)))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            subprocess.run(["flock", store, "cp", "-a", store, tmp_path / str(number)], check=True)
            report = verify(tmp_path / str(number), files_only=True)
            assert report.good, report
            assert not report.notes
    finally:
        stop.set()
        thread.join()
