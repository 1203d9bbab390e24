"""Whatever call below the store fails, the request is wholly in or wholly out, and the next open leaves no trace."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import (
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
    picture_without_secrets,
    short,
)

import clpu
from clpu.store import create, verify
from clpu.store import open as open_store
from clpu.store.folder import Access

#: What an operation may fail with.
FAILURES = {
    "open": [errno.ENOSPC, errno.EROFS],
    "read": [errno.EIO],
    "list": [errno.EIO],
    "write": [errno.ENOSPC, errno.EIO],
    "wipe": [errno.EIO],
    "fsync": [errno.EIO],
    "rename": [errno.EIO],
    "unlink": [errno.EIO],
    "mkdir": [errno.ENOSPC],
    "rmdir": [errno.EIO],
    "utime": [errno.EIO],
    "chmod": [errno.EIO],
}
REQUESTS = ["3R", "3T", "2R", "2F"]
BEFORE = "1R 2T"


@pytest.fixture(scope="module", params=["here", "elsewhere"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path | None]:
    """A folder that holds a store and, perhaps beside it, its keys."""
    folder = tmp_path_factory.mktemp("prepared")
    keys = folder / "keys" if request.param == "elsewhere" else None
    create(folder / "store", keys=keys, **SETTINGS).close()
    follow(folder / "store", BEFORE, keys=keys)
    return folder, keys


class Bench:
    """Copies of a prepared store, and what each may look like afterwards."""

    def __init__(self, prepared: tuple[Path, Path | None], place: Path) -> None:
        self.folder, keys = prepared
        self.relative = None if keys is None else keys.relative_to(self.folder)
        self.place = place
        self.number = 0
        self.expected: dict[str, tuple[dict, dict]] = {}

    def fresh(self) -> tuple[Path, Path | None]:
        self.number += 1
        place = self.place / str(self.number)
        if self.relative is not None:
            return clone_apart(self.folder, place)
        return clone(self.folder, place) / "store", None

    def calls(self, request: str) -> list[str]:
        """Which calls a request makes when all goes well; also notes what the store looks like then."""
        store, keys = self.fresh()
        before = picture_without_secrets(store, keys)
        with open_store(store, keys=keys) as agent, injected() as injector:
            handle(agent, request)
        self.expected[request] = before, picture_without_secrets(store, keys)
        return injector.calls

    def check(self, store: Path, keys: Path | None, request: str) -> str:
        """Open the store anew: it is the old or the new state, whole, with nothing left over."""
        with open_store(store, keys=keys) as agent:
            digest = agent.digest()
        old, new = digest_after(BEFORE), digest_after(f"{BEFORE} {request}")
        assert digest in (old, new)
        which = "new" if digest == new else "old"
        assert picture_without_secrets(store, keys) == self.expected[request][which == "new"]
        report = verify(store, Access(keys))
        assert report.good
        assert not report.notes
        return which


def faults(calls: list[str], lasting: bool) -> Iterator[Fault]:
    for at, operation in enumerate(calls):
        for number in FAILURES[operation]:
            yield Fault(failing(number), at)
            if lasting and operation in ("open", "write", "fsync", "rename"):
                yield Fault(failing(number), at, sticky=True, kind=operation)


@pytest.mark.parametrize("request_text", REQUESTS)
def test_a_failing_call_leaves_the_old_or_the_new_state(
    prepared: tuple[Path, Path | None], tmp_path: Path, request_text: str
) -> None:
    bench = Bench(prepared, tmp_path)
    for fault in faults(bench.calls(request_text), lasting=prepared[1] is None):
        store, keys = bench.fresh()
        agent = open_store(store, keys=keys)
        try:
            with injected(fault), pytest.raises(clpu.StoreFailed) as raised:
                handle(agent, request_text)
            believed = agent.digest()
        finally:
            agent.close()
        which = bench.check(store, keys, request_text)
        assert believed == digest_after(f"{BEFORE} {request_text}" if which == "new" else BEFORE)
        assert ("is saved" in str(raised.value)) == (which == "new")


@pytest.mark.parametrize("request_text", REQUESTS)
def test_a_crash_at_any_call_leaves_the_old_or_the_new_state(
    prepared: tuple[Path, Path | None], tmp_path: Path, request_text: str
) -> None:
    bench = Bench(prepared, tmp_path)
    outcomes = []
    for at in range(len(bench.calls(request_text))):
        store, keys = bench.fresh()
        agent = open_store(store, keys=keys)
        try:
            with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
                handle(agent, request_text)
        finally:
            agent.close()
        outcomes.append(bench.check(store, keys, request_text))
    assert outcomes == sorted(outcomes, reverse=True), "once a request is in, no later crash takes it out"


@pytest.mark.parametrize("request_text", REQUESTS)
def test_a_crash_while_an_interrupted_request_is_completed_is_harmless_too(
    prepared: tuple[Path, Path | None], tmp_path: Path, request_text: str
) -> None:
    bench = Bench(prepared, tmp_path)
    for at in range(3, len(bench.calls(request_text)), 9):
        for again in range(2, 60, 7):
            store, keys = bench.fresh()
            agent = open_store(store, keys=keys)
            try:
                with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
                    handle(agent, request_text)
            finally:
                agent.close()
            try:
                with injected(Fault(crashing, again, sticky=True)):
                    open_store(store, keys=keys).close()
                break
            except Crash:
                bench.check(store, keys, request_text)


@pytest.mark.parametrize("request_text", REQUESTS)
def test_short_writes_are_completed(prepared: tuple[Path, Path | None], tmp_path: Path, request_text: str) -> None:
    bench = Bench(prepared, tmp_path)
    for at, operation in enumerate(bench.calls(request_text)):
        if operation not in ("write", "wipe"):
            continue
        store, keys = bench.fresh()
        with open_store(store, keys=keys) as agent, injected(Fault(short, at)):
            handle(agent, request_text)
        assert bench.check(store, keys, request_text) == "new"


def test_a_disk_that_fills_up_in_the_middle_of_a_write_changes_nothing(
    prepared: tuple[Path, Path | None], tmp_path: Path
) -> None:
    bench = Bench(prepared, tmp_path)
    calls = bench.calls("3T")
    for at in [number for number, operation in enumerate(calls) if operation == "write"]:
        store, keys = bench.fresh()
        written = []

        def happens(function, fd, data, written=written):  # type: ignore[no-untyped-def]
            if written:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(True)
            return short(function, fd, data)

        with open_store(store, keys=keys) as agent:
            with injected(Fault(happens, at, sticky=True, kind="write")), pytest.raises(clpu.StoreFailed):
                handle(agent, "3T")
            handle(agent, "4T")
            assert list(agent.tasks) == ["1", "2", "4"]
        with open_store(store, keys=keys) as agent:
            assert agent.digest() == digest_after(f"{BEFORE} 4T")


@pytest.mark.parametrize("request_text", ["2R", "2F"])
def test_an_interrupt_at_any_call_leaves_agent_and_disk_of_one_mind(
    prepared: tuple[Path, Path | None], tmp_path: Path, request_text: str
) -> None:
    def interrupting(function, *args, **options):  # type: ignore[no-untyped-def]
        raise KeyboardInterrupt

    bench = Bench(prepared, tmp_path)
    for at in range(0, len(bench.calls(request_text)), 2):
        store, keys = bench.fresh()
        with open_store(store, keys=keys) as agent:
            with injected(Fault(interrupting, at)), pytest.raises(KeyboardInterrupt):
                handle(agent, request_text)
            believed = agent.digest()
        which = bench.check(store, keys, request_text)
        assert believed == digest_after(f"{BEFORE} {request_text}" if which == "new" else BEFORE)


def test_an_agent_goes_on_after_a_fault_that_passed(prepared: tuple[Path, Path | None], tmp_path: Path) -> None:
    bench = Bench(prepared, tmp_path)
    for at in range(0, len(bench.calls("2F")), 3):
        store, keys = bench.fresh()
        with open_store(store, keys=keys) as agent:
            with injected(Fault(failing(errno.EIO), at)), pytest.raises(clpu.StoreFailed):
                agent.forget("2")
            if "2" in agent.tasks:
                agent.forget("2")
            agent.learn("5", *examples("5"), temporary=True)
            agent.forget("5")
        assert bench.check(store, keys, "2F") == "new"


def test_a_failing_call_while_opening_is_a_typed_error_and_loses_nothing(
    prepared: tuple[Path, Path | None], tmp_path: Path
) -> None:
    bench = Bench(prepared, tmp_path)
    bench.calls("2F")
    store, keys = bench.fresh()
    with injected() as injector:
        open_store(store, keys=keys).close()
    for at, operation in enumerate(injector.calls):
        for number in FAILURES[operation]:
            with injected(Fault(failing(number), at)), pytest.raises(clpu.Error):
                open_store(store, keys=keys).close()
        assert bench.check(store, keys, "2F") == "old"


def test_a_crash_while_a_store_is_made_leaves_none_or_one(tmp_path: Path) -> None:
    with injected() as injector:
        create(tmp_path / "whole", **SETTINGS).close()
    for at in range(len(injector.calls)):
        place = tmp_path / str(at)
        with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
            create(place, **SETTINGS).close()
        try:
            agent = open_store(place)
        except clpu.BadStore:
            agent = create(place, **SETTINGS)
        agent.close()
        assert picture_without_secrets(place).keys() == {
            ".",
            "about.json",
            "forgettable",
            "head",
            "keys",
            "keys/master.json",
            "root",
        }
        assert verify(place).good


def test_a_store_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """L8."""
    with injected() as injector:
        create(tmp_path / "whole", **SETTINGS).close()
    for at in range(injector.calls.index("write")):
        with injected(Fault(failing(errno.ENOSPC), at)), pytest.raises(clpu.StoreFailed):
            create(tmp_path / "a" / "b" / "store", **SETTINGS)
        assert not (tmp_path / "a").exists()


def test_every_folder_on_the_way_to_a_new_store_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L8: a folder is flushed after the one below it was made."""
    flushed: dict[int, set[str]] = {}

    def flush(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            flushed.setdefault(os.fstat(fd).st_ino, set()).update(os.listdir(fd))

    monkeypatch.setattr("clpu.store.files._flush", flush)
    create(tmp_path / "a" / "b" / "store", keys=tmp_path / "keys", **SETTINGS).close()
    for path in ("a", "a/b", "a/b/store", "keys", "a/b/store/about.json", "keys/master.json"):
        below = tmp_path / path
        assert below.name in flushed[below.parent.stat().st_ino]
