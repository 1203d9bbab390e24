"""Requests over several leaves: all or nothing, whatever fails."""

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from storekit import Crash, Fault, clone, crashing, failing, injected, picture_without_secrets, synthetic
from test_store_faults import FAILURES
from test_store_power import Disk

import clpu
from clpu.state import State
from clpu.store import verify
from clpu.store.store import Store

PEOPLE = {("ada",): 1, ("ada", "bob"): 2, ("bob",): 3}


def without_ada(state: State) -> State:
    """A person is forgotten in five tasks, whose facts change with it."""
    tasks = {}
    for name, task in state.tasks.items():
        people = {who: leaf for who, leaf in task.people.items() if "ada" not in who}
        facts = {**task.facts, "steps": len(people)}
        tasks[name] = task if len(people) == len(task.people) else replace(task, people=people, facts=facts)
    return replace(state, tasks=tasks)


def without_ada_in_one(state: State) -> State:
    """Only leaves go, two of them."""
    task = state.tasks["1"]
    return state.with_task("1", replace(task, people={("bob",): task.people["bob",]}))


def kept(state: State) -> State:
    """Two tasks become permanent, and what tasks share changes."""
    both = {name: replace(state.tasks[name], status="R") for name in ("2", "3")}
    shared = synthetic("R", 99).own
    return replace(state, shared=shared, tasks={**state.tasks, **both})


def more_of_all(state: State) -> State:
    tasks = {n: replace(t, people={**t.people, ("eve",): synthetic("T", 5).own}) for n, t in state.tasks.items()}
    return replace(state, tasks=tasks)


CHANGES = [without_ada, without_ada_in_one, kept, more_of_all]


@pytest.fixture(scope="module")
def prepared(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = clone(empty_store, tmp_path_factory.mktemp("several") / "store")
    with Store(path, write=True) as store:
        tasks = {str(n): synthetic("T", n, PEOPLE if n < 6 else {}) for n in range(1, 8)}
        store.commit(replace(store.load(), tasks=tasks))
    return path


class Bench:
    def __init__(self, prepared: Path, place: Path, change: Callable[[State], State]) -> None:
        self.prepared, self.place, self.change, self.number = prepared, place, change, 0
        path = self.fresh()
        self.pictures = {"old": picture_without_secrets(path)}
        with Store(path, write=True) as store:
            old = store.load()
            with injected() as injector:
                store.commit(change(old))
        self.calls = injector.calls
        self.digests = {old.digest(): "old", change(old).digest(): "new"}
        self.pictures["new"] = picture_without_secrets(path)

    def fresh(self) -> Path:
        self.number += 1
        return clone(self.prepared, self.place / str(self.number))

    def check(self, path: Path) -> str:
        with Store(path, write=True) as store:
            which = self.digests[store.load().digest()]
        assert picture_without_secrets(path) == self.pictures[which]
        report = verify(path, files_only=True)
        assert report.good
        assert not report.notes
        return which


def steps(quick: int) -> pytest.MarkDecorator:
    """Every so many calls and, in the long tests, every call."""
    return pytest.mark.parametrize("step", [quick, pytest.param(1, marks=pytest.mark.slow)])


@steps(4)
@pytest.mark.parametrize("change", CHANGES)
def test_a_crash_at_any_call_leaves_all_or_nothing(
    prepared: Path, tmp_path: Path, change: Callable[[State], State], step: int
) -> None:
    bench = Bench(prepared, tmp_path, change)
    outcomes = []
    for at in range(0, len(bench.calls), step):
        path = bench.fresh()
        with Store(path, write=True) as store:
            new = change(store.load())
            # How many folders of leaves there are is chance, and so is the exact number of calls.
            with injected(Fault(crashing, at, sticky=True)), suppress(Crash):
                store.commit(new)
        with Store(path, write=False) as reader:
            seen = bench.digests[reader.load().digest()]
        outcomes.append(bench.check(path))
        assert seen == outcomes[-1], "a reader sees what the next writer makes of it"
    assert set(outcomes) == {"old", "new"}


@steps(7)
@pytest.mark.parametrize("change", CHANGES)
def test_a_failing_call_leaves_all_or_nothing_and_says_which(
    prepared: Path, tmp_path: Path, change: Callable[[State], State], step: int
) -> None:
    bench = Bench(prepared, tmp_path, change)
    for at, operation in list(enumerate(bench.calls))[::step]:
        path = bench.fresh()
        with Store(path, write=True) as store:
            new = change(store.load())
            number = FAILURES[operation][0] if operation in FAILURES else errno.EIO
            said = "is saved"
            try:
                with injected(Fault(failing(number), at)):
                    store.commit(new)
            except clpu.StoreFailed as error:
                said = str(error)
            believed = bench.digests[store.standing.state.digest()]
        assert bench.check(path) == believed
        assert ("is saved" in said) == (believed == "new")
        assert ("still there" in said) == (believed == "old")


@steps(9)
@pytest.mark.parametrize("change", CHANGES)
def test_a_power_cut_leaves_all_or_nothing(
    prepared: Path, tmp_path: Path, change: Callable[[State], State], step: int
) -> None:
    bench = Bench(prepared, tmp_path, change)
    for at in range(1, len(bench.calls), step):
        path = bench.fresh()
        with Store(path, write=True) as store:
            new = change(store.load())
            disk = Disk(path, crash_after=at)
            with injected() as injector, suppress(Crash):
                injector.call = disk.call  # type: ignore[method-assign]
                store.commit(new)
        for attempt in range(3):
            luck = random.Random(f"{at} {attempt}") if attempt else None
            found = disk.after_power_cut(tmp_path / f"{at} after {attempt}", luck)
            with Store(found, write=True) as store:
                assert store.load().digest() in bench.digests
            assert verify(found, files_only=True).good
        disk.close()
