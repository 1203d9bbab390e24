"""A store whose method or network cannot be loaded is still listed, verified and, above all, able to forget."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from storekit import (
    Crash,
    Fault,
    clone,
    crashing,
    follow,
    handle,
    injected,
    picture,
    picture_without_secrets,
    settings,
    synthetic,
)
from typer.testing import CliRunner, Result

import clpu
from clpu import METHODS
from clpu.state import State
from clpu.store import create, forgetting, verify
from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.store.folder import Folder
from clpu.store.plan import File, root_bytes
from clpu.store.receipt import read_receipt
from clpu.store.store import Store


class AnyTask(METHODS["ind"]):  # type: ignore[misc]
    """A method that nobody registered."""

    name = "any-task"

    def forget(self, state: State, task: str) -> State:
        raise AssertionError("a store does not ask an exact method to forget")


class TemporaryTask(METHODS["clpu-der++"]):  # type: ignore[misc]
    name = "temporary-task"


class Inexact(METHODS["er"]):  # type: ignore[misc]
    name = "inexact"


def module() -> torch.nn.Module:
    """A network whose start differs in each process, so that it cannot be handed in again."""
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh())


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def made(path: Path, method: type[clpu.Method], requests: str) -> Path:
    """A store of a method that is not registered, after some requests."""
    options = {**settings("ind" if method is AnyTask else "clpu-der++")}
    with create(path, method, **options) as agent:
        for request in requests.split():
            handle(agent, request)
    with pytest.raises(clpu.BadStore, match="custom network or method"):
        open_store(path)
    return path


def test_the_commands_work_without_the_method(tmp_path: Path) -> None:
    store = made(tmp_path / "store", AnyTask, "1R 2T 3T 4R")
    about = json.loads(run("status", store, "--json").output)
    assert about["method"] == "any-task"
    assert about["forgets"] == "tasks"
    assert {task["task"]: task["status"] for task in about["tasks"]} == {"1": "R", "2": "T", "3": "T", "4": "R"}
    assert "forgetting exact" in run("status", store).output
    assert "files OK" in run("verify", store).output
    run("forget", store, "2")
    run("forget", store, "1", "--receipt", tmp_path / "receipt.json")
    with open_store(store, method=AnyTask) as agent:
        assert agent.tasks == {"3": "T", "4": "R"}
        agent.forget("3")
    assert verify(store).good
    run("learn", store, "5", "--data", tmp_path / "none.npz", code=1)


def test_the_commands_work_without_the_network(tmp_path: Path) -> None:
    store, network = tmp_path / "store", module()
    with create(store, network=network, epochs=1) as agent:
        handle(agent, "1R")
    never = clone(store, tmp_path / "never")
    with open_store(store, network=network) as agent:
        handle(agent, "2T")
    with pytest.raises(clpu.BadStore, match="custom network or method"):
        open_store(store, network=module())
    assert "temporary" in run("status", store).output
    assert "files OK" in run("verify", store).output
    run("forget", store, "2", "--receipt", tmp_path / "receipt.json")
    assert picture(store) == picture(never)


@pytest.mark.parametrize("task", ["2", "1"])
def test_the_folder_is_that_of_a_store_that_never_learned_the_task(tmp_path: Path, task: str) -> None:
    kept, forgotten = ("1R", "2T") if task == "2" else ("3R", "1R")
    made(tmp_path / "a", AnyTask, kept)
    clone(tmp_path / "a", tmp_path / "b")
    with open_store(tmp_path / "b", method=AnyTask) as agent:
        handle(agent, forgotten)
    assert picture_without_secrets(tmp_path / "a") != picture_without_secrets(tmp_path / "b")
    run("forget", tmp_path / "b", task)
    assert picture_without_secrets(tmp_path / "a") == picture_without_secrets(tmp_path / "b")
    assert picture(tmp_path / "a") == picture(tmp_path / "b")


def test_what_the_method_cannot_forget_is_refused_as_with_the_method(tmp_path: Path) -> None:
    store = made(tmp_path / "store", TemporaryTask, "1R 2T")
    before = picture(store)
    with open_store(store, method=TemporaryTask) as agent:
        refusals = []
        for task in ("1", "9"):
            with pytest.raises(clpu.Error) as refused:
                agent.forget(task)
            refusals.append(f"error: {type(refused.value).__name__}: {refused.value}\n")
    for task, refusal in zip(("1", "9"), refusals):
        assert run("forget", store, task, code=1).stderr == refusal
        assert run("forget", store, task, "--receipt", tmp_path / "receipt.json", code=1).stderr == refusal
    assert not (tmp_path / "receipt.json").exists()
    assert picture(store) == before


def test_an_inexact_method_is_needed_to_forget_and_nothing_changes_without_it(tmp_path: Path) -> None:
    store = made(tmp_path / "store", Inexact, "1R 2T")
    before = picture(store)
    assert "forgetting approximate" in run("status", store).output
    assert "files OK" in run("verify", store).output
    assert "custom network or method" in run("forget", store, "2", code=1).stderr
    assert picture(store) == before


def test_command_and_agent_give_the_same_receipt(store: Path, tmp_path: Path) -> None:
    follow(store, "1R 2T")
    clone(store, tmp_path / "other")
    run("forget", store, "2", "--receipt", tmp_path / "receipt.json", "--digests")
    with open_store(tmp_path / "other") as agent:
        by_agent = agent.forget_with_receipt("2", digests=True).statement
    by_command = read_receipt(tmp_path / "receipt.json").statement
    chance = ("request", "received", "done", "salt", "touched", "keys_destroyed", "shared_before", "shared_after")
    assert {**by_command, **dict.fromkeys(chance)} == {**by_agent, **dict.fromkeys(chance)}
    assert picture(store) == picture(tmp_path / "other")


def test_a_crash_at_any_call_of_a_forget_without_the_method_leaves_the_old_or_the_new_state(
    empty_store: Path, tmp_path: Path
) -> None:
    prepared = clone(empty_store, tmp_path / "prepared")
    follow(prepared, "1R 2T")
    never = clone(empty_store, tmp_path / "never")
    follow(never, "1R")

    def forget(path: Path) -> None:
        with Store(path, write=True) as opened:
            opened.load()
            forgetting.forget(opened, task="2")

    with injected() as injector:
        forget(clone(prepared, tmp_path / "counted"))
    assert picture(tmp_path / "counted") == picture(never)
    outcomes = []
    for at in range(len(injector.calls)):
        path = clone(prepared, tmp_path / str(at))
        with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
            forget(path)
        with open_store(path) as agent:
            outcomes.append("2" in agent.tasks)
        expected = prepared if outcomes[-1] else never
        assert picture(path).keys() == picture(expected).keys()
        assert verify(path).good
        if not outcomes[-1]:
            assert picture(path) == picture(never)
    assert outcomes == sorted(outcomes, reverse=True), "once a request is in, no later crash takes it out"
    assert not outcomes[-1]


@pytest.mark.parametrize(
    "spoil",
    [
        {"forgets": "all"},
        {"forgets": ["tasks"]},
        {"forgets": None},
        {"method": 3},
        {"settings": []},
        {"settings": {"hidden": [10**9]}},
        {"settings": {"hidden": [6] * 10**5}},
        {"seeds": "0"},
        {"seeds": [True]},
        {"seeds": list(range(1_500_000))},
    ],
    ids=str,
)
def test_a_description_that_no_agent_wrote_is_a_typed_error_for_every_command(store: Path, spoil: dict) -> None:
    follow(store, "1R 2T")
    with Folder(store) as opened:
        view = opened.view()
        files = [File(name, True) for name in view.permanent]
        forged = root_bytes({**view.about, **spoil}, files, opened.secrets)
    (store / "root").write_bytes(forged)
    for command in (["status", store], ["forget", store, "2"], ["verify", store]):
        assert run(*command, code=1).exit_code == 1
    with pytest.raises(clpu.BadStore):
        open_store(store)


def test_the_records_of_people_are_stored_and_removed_with_their_task(store: Path) -> None:
    """No method has any yet; what the tree can hold, the store keeps, each leaf in a file with a key of its own."""
    before = picture(store)
    people = {("ada",): 1, ("ada", "bob"): 1, ("bob",): 2}
    with Store(store, write=True) as opened:
        empty = opened.load()
        state = empty.with_task("1", synthetic("T", 1, people)).with_task("2", synthetic("T", 2, people))
        opened.commit(state)
        assert len(opened.standing.files) == len(opened.standing.keys) == 8
    assert verify(store, files_only=True).good
    fewer = state.tasks["2"]
    fewer = replace(fewer, people={who: leaf for who, leaf in fewer.people.items() if "ada" not in who})
    with Store(store, write=True) as opened:
        assert opened.load() == state
        opened.commit(opened.standing.state.with_task("2", fewer))
        assert len(opened.standing.files) == 6
    with Store(store, write=True) as opened:
        assert opened.load() == state.with_task("2", fewer)
        opened.commit(empty)
    with Store(store, write=False) as opened:
        assert opened.load() == empty
    assert picture(store) == before
