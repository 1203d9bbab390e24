"""What a request costs does not depend on the other tasks, and limits show before anything is acknowledged."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from storekit import clone, injected, picture, synthetic

import clpu
from clpu.store import forgetting, sealing, verify
from clpu.store.store import Store


def _measured(call: Any, sizes: list[int], operation: str, function: Any, *args: Any, **options: Any) -> Any:
    if operation in ("write", "wipe"):
        sizes.append(len(args[1]))
    return call(operation, function, *args, **options)


def written(path: Path, number: int) -> dict[str, Any]:
    """Files and bytes that learning and forgetting one task write, beside so many others."""
    with Store(path, write=True) as store:
        state = store.load()
        store.commit(replace(state, tasks={f"task {n}": synthetic("T", n) for n in range(number)}))
    found: dict[str, Any] = {}
    with Store(path, write=True) as store:
        before = store.load()
        for request, change in (
            ("learn", lambda: store.commit(before.with_task("new", synthetic("T", 7)))),
            ("forget", lambda: forgetting.forget(store, task="new")),
        ):
            with injected() as injector:
                sizes: list[int] = []

                injector.call = partial(_measured, injector.call, sizes)  # type: ignore[method-assign]
                change()
            counts = {name: injector.calls.count(name) for name in ("write", "wipe", "rename", "unlink")}
            found[request] = {**counts, "bytes": sum(sizes)}
    return found


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_learning_and_forgetting_write_as_much_beside_ten_tasks_as_beside_thousands(
    empty_store: Path, tmp_path: Path, number: int
) -> None:
    """H1."""
    few = written(clone(empty_store, tmp_path / "few"), 10)
    many = written(clone(empty_store, tmp_path / "many"), number)
    assert few == many
    assert few["learn"]["write"] == 4, "head, intent, leaf, key"
    assert few["forget"]["write"] == 2, "head, intent"
    assert few["forget"]["wipe"] == 1
    assert few["learn"]["bytes"] < 10_000


def test_the_largest_file_of_a_store_does_not_grow_with_its_tasks(empty_store: Path, tmp_path: Path) -> None:
    sizes = []
    for number in (2, 400):
        path = clone(empty_store, tmp_path / str(number))
        with Store(path, write=True) as store:
            state = store.load()
            statuses = {f"task {n}": synthetic("RT"[n % 2], n) for n in range(number)}
            store.commit(replace(state, tasks=statuses))
        sizes.append({entry.stat().st_size for entry in path.rglob("*") if entry.is_file()})
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("status", ["R", "T"])
def test_what_is_too_large_is_refused_before_it_is_acknowledged(
    store: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """H1: a limit that only readers enforce makes a store that cannot be opened again."""
    before = picture(store)
    monkeypatch.setattr(sealing, "MAX_FILE_BYTES", 10_000)
    labels = list(range(10**18, 10**18 + 2000))
    large = synthetic(status, 1)
    large = replace(large, facts={**large.facts, "labels": labels})
    with Store(store, write=True) as opened:
        state = opened.load()
        with pytest.raises(clpu.BadStore, match="too many for one file"):
            opened.commit(state.with_task("large", large))
        assert opened.standing.state is state
        assert picture(store) == before
        opened.commit(state.with_task("small", synthetic(status, 2)))
    assert verify(store, files_only=True).good


def test_many_tasks_with_many_labels_open_again(store: Path) -> None:
    """H1 as it was found: 80 tasks of 9,600 labels of nineteen digits, and one more."""
    first = synthetic("T", 1)
    tasks = {}
    for number in range(81):
        labels = list(range(10**18 + 10_000 * number, 10**18 + 10_000 * number + 9600))
        tasks[f"task {number}"] = replace(first, facts={**first.facts, "labels": labels})
    with Store(store, write=True) as opened:
        opened.commit(replace(opened.load(), tasks=tasks))
    with Store(store, write=True) as opened:
        opened.commit(opened.load().with_task("small", first))
    with Store(store, write=False) as opened:
        assert len(opened.load().tasks) == 82
