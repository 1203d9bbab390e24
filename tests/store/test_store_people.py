"""A method that forgets records, in a store: a person goes from every task, and old copies give nothing back."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from storekit import ABOUT_PEOPLE, Fault, clone, failing, injected, picture_without_secrets, store_of_people
from test_store_faults import FAILURES
from typer.testing import CliRunner

import clpu
from clpu.store import create, verify
from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.store.folder import Access, Folder
from clpu.store.receipt import read_receipt

PEOPLE = ["ada", "bob", "eve"]


def data(task: str, without: str | None = None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    draws = np.random.default_rng([*task.encode()])
    x, y = draws.normal(size=(30, 6)).astype(np.float32), np.arange(30) % 2
    people = [PEOPLE[n // 3 % 3] for n in range(30)]
    chosen = [who != without for who in people]
    return x[chosen], y[chosen], [who for who in people if who != without]


def made(path: Path, keys: Path, without: str | None = None) -> Path:
    with create(path, "ridge", keys=keys) as agent:
        for task in ("mail", "chat", "news"):
            x, y, people = data(task, without)
            agent.learn(task, x, y, people=people, temporary=task == "chat")
    return path


def test_a_person_is_forgotten_in_every_task_as_if_never_there(tmp_path: Path) -> None:
    store = made(tmp_path / "a", tmp_path / "a keys")
    old = clone(store, tmp_path / "old")
    never = made(tmp_path / "b", tmp_path / "b keys", without="ada")
    arguments = ["forget", str(store), "--person", "ada", "--receipt", str(tmp_path / "receipt.json"), "--digests"]
    result = CliRunner().invoke(app, arguments, env={"CLPU_KEYS": str(tmp_path / "a keys")})
    assert result.exit_code == 0, result.output
    said = read_receipt(tmp_path / "receipt.json").statement
    with open_store(never, keys=tmp_path / "b keys") as agent:
        expected = agent.digest()
    with open_store(store, keys=tmp_path / "a keys") as agent:
        assert agent.digest() == expected == said["digest_after"]
    assert said["scope"] == {"person": "ada"}
    assert len(said["touched"]) >= 3
    assert verify(store, Access(tmp_path / "a keys")).good
    shapes = [
        sorted(map(str, picture_without_secrets(path, tmp_path / f"{path.name} keys")["forgettable"]))
        for path in (store, never)
    ]
    assert shapes[0] == shapes[1]
    with Folder(old, Access(tmp_path / "a keys")) as opened:  # an old copy, and today's keys
        found = opened.load()
        assert not any("ada" in who for task in found.tasks.values() for who in task.people)


def test_records_of_one_task_can_be_forgotten_and_what_is_not_there_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path / "a", tmp_path / "a keys")
    with open_store(store, keys=tmp_path / "a keys") as agent:
        agent.forget("mail", person="bob")
        agent.forget_with_receipt("news", labels=[1]).verify(agent.identity)
        with pytest.raises(clpu.Error):
            agent.forget(person="nobody")
        digest = agent.digest()
    with open_store(store, keys=tmp_path / "a keys") as agent:
        assert agent.digest() == digest
        assert agent.labels("news") == (0,)


@pytest.mark.parametrize(
    "scope", [{"labels": []}, {"records": ()}, {"labels": np.array([], dtype=int)}], ids=["labels", "records", "array"]
)
def test_an_empty_list_does_not_forget_the_whole_task(tmp_path: Path, scope: dict[str, object]) -> None:
    with create(tmp_path / "a", "ridge") as agent:
        agent.learn("mail", *data("mail")[:2])
        before = agent.digest()
        with pytest.raises(clpu.BadRequest, match="names nothing"):
            agent.forget("mail", **scope)
        with pytest.raises(clpu.BadRequest, match="names nothing"):
            agent.forget_with_receipt("mail", **scope)
        assert agent.digest() == before


@pytest.mark.parametrize(
    "line",
    [
        '{"task": "mail", "labels": []}',
        '{"task": "mail", "records": []}',
        '{"task": "mail", "person": null}',
        '{"task": "mail", "labels": null}',
        '{"task": null, "person": "ada"}',
        '{"task": "mail", "labels": "1"}',
    ],
)
def test_a_batch_with_a_condition_that_names_nothing_forgets_nothing(tmp_path: Path, line: str) -> None:
    store = made(tmp_path / "a", tmp_path / "a keys")
    (tmp_path / "batch").write_text(line + "\n")
    arguments = ["forget", str(store), "--from-file", str(tmp_path / "batch")]
    result = CliRunner().invoke(app, arguments, env={"CLPU_KEYS": str(tmp_path / "a keys")})
    assert result.exit_code != 0
    with open_store(store, keys=tmp_path / "a keys") as agent:
        assert set(agent.tasks) == {"mail", "chat", "news"}
        assert agent.show("mail")["mail"]["records"] == 30


def test_a_batch_is_refused_as_a_whole_if_an_earlier_request_takes_what_a_later_one_names(tmp_path: Path) -> None:
    store = made(tmp_path / "a", tmp_path / "a keys")
    (tmp_path / "batch").write_text('{"person": "ada"}\n{"person": "bob"}\n{"task": "mail", "person": "ada"}\n')
    arguments = ["forget", str(store), "--from-file", str(tmp_path / "batch")]
    result = CliRunner().invoke(app, arguments, env={"CLPU_KEYS": str(tmp_path / "a keys")})
    assert result.exit_code != 0
    assert "request 3 of 3: nothing is held about person 'ada' in task 'mail'; nothing was forgotten" in result.output
    with open_store(store, keys=tmp_path / "a keys") as agent:
        assert agent.show(person="ada")["mail"]["records"] == 12


def test_a_dry_run_says_how_many_records_would_go_and_changes_nothing(tmp_path: Path) -> None:
    store = made(tmp_path / "a", tmp_path / "a keys")
    before = clone(store, tmp_path / "before")
    arguments = ["forget", str(store), "--person", "ada", "--dry-run"]
    result = CliRunner().invoke(app, arguments, env={"CLPU_KEYS": str(tmp_path / "a keys")})
    assert result.output.startswith("would forget exactly: 36 records, 3 tasks touched, 3 files removed")
    files = [
        sorted((p.relative_to(path), p.read_bytes()) for p in path.rglob("*") if p.is_file())
        for path in (store, before)
    ]
    assert files[0] == files[1]


def test_records_of_arrays_and_generators_are_in_the_receipt_as_text(tmp_path: Path) -> None:
    with create(tmp_path / "a", "ridge") as agent:
        agent.learn("mail", *data("mail")[:2], records=range(30))
        agent.forget("mail", records=(i for i in (1, 2)))
        said = agent.forget_with_receipt("mail", records=np.array([3, 4])).statement
        assert said["scope"] == {"task": "mail", "records": ["3", "4"]}
        assert agent.show("mail")["mail"]["records"] == 26


def test_people_on_the_command_line(tmp_path: Path) -> None:
    """Columns of a table say who a record is about; records are added, shown and forgotten."""
    draws = np.random.default_rng(0)

    def table(name: str, first: int, count: int) -> str:
        numbers = enumerate(draws.normal(size=(count, 2)), first)
        rows = [f"{a:.3f},{b:.3f},p{n % 4},{n},{'spam' if a > 0 else 'ham'}" for n, (a, b) in numbers]
        (tmp_path / name).write_text("a,b,who,id,kind\n" + "\n".join(rows) + "\n")
        return str(tmp_path / name)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments])
        assert result.exit_code == 0, result.output
        return result.output

    store, columns = (
        str(tmp_path / "store"),
        ["--person-column", "who", "--record-column", "id", "--label-column", "kind"],
    )
    run("init", store, "--method", "ridge")
    run("learn", store, "mail", "--data", table("first.csv", 0, 24), *columns, "--holdout", "0")
    more = table("more.csv", 24, 16)
    assert "added 16 records" in run("add", store, "mail", "--data", more, *columns)
    again = CliRunner().invoke(app, ["add", store, "mail", "--data", more, *columns])
    assert again.exit_code != 0
    assert "already exists" in again.output
    held = json.loads(run("show", store, "--person", "p1"))["tasks"]["mail"]
    assert held["records"] == 10
    assert held["ids"] == sorted(map(str, range(1, 40, 4)))
    run("forget", store, "--person", "p1", "--receipt", str(tmp_path / "receipt.json"))
    assert CliRunner().invoke(app, ["show", store, "--person", "p1"]).exit_code != 0
    run("forget", store, "mail", "--record", "2")
    run("forget", store, "mail", "--label", "ham")
    with open_store(store) as agent:
        assert agent.labels("mail") == ("spam",)
        assert "2" not in agent.show("mail")["mail"]["ids"]


def test_what_a_command_says_comes_from_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that is forgotten between two questions does not take its name from the probabilities."""
    store = made(tmp_path / "a", tmp_path / "keys")
    np.savez(tmp_path / "mail.npz", x=data("mail")[0])
    predict = clpu.Agent.predict

    def and_then_forgotten(self: clpu.Agent, *arguments: object) -> object:
        found = predict(self, *arguments)
        with open_store(store, keys=tmp_path / "keys") as agent:
            if 1 in agent.labels("mail"):
                agent.forget("mail", labels=[1])
        return found

    monkeypatch.setattr(clpu.Agent, "predict", and_then_forgotten)
    arguments = ["predict", str(store), "mail", "--data", str(tmp_path / "mail.npz"), "--keys", str(tmp_path / "keys")]
    for columns in (["label", "p_0", "p_1"], ["label", "p_0"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert {len(line.split(",")) for line in result.output.splitlines()} == {len(columns)}
        assert result.output.splitlines()[0].split(",") == columns


def check_faults(people: Path, place: Path, name: str, most: int | None) -> None:
    """Fail one operation after the other, or so many: the request is done or not, and the agent knows which."""
    request, change = ABOUT_PEOPLE[name], place / "changed"
    with open_store(clone(people, change)) as agent:
        before = agent.digest()
        with injected() as injector:
            request(agent)
        after = agent.digest()
    pictures = {before: picture_without_secrets(people), after: picture_without_secrets(change)}
    seen = set()
    last = len(injector.calls) - 1
    for at in [*range(0, last, 1 if most is None else last // most), last]:
        path = clone(people, place / str(at))
        number = FAILURES[injector.calls[at]][0]
        with open_store(path) as agent:
            # How many folders a request makes is chance, so that the last operations may not be reached.
            with injected(Fault(failing(number), at)), suppress(clpu.StoreFailed):
                request(agent)
            believed = agent.digest()
        with open_store(path) as agent:
            assert agent.digest() == believed
        assert picture_without_secrets(path) == pictures[believed]
        assert verify(path).good
        seen.add(believed)
        shutil.rmtree(path)
    assert seen == {before, after}


@pytest.mark.parametrize("name", ABOUT_PEOPLE)
def test_a_failing_operation_in_a_request_about_many_people_leaves_all_or_nothing(tmp_path: Path, name: str) -> None:
    check_faults(store_of_people(tmp_path / "people", 8), tmp_path, name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ABOUT_PEOPLE)
def test_every_operation_of_a_request_about_many_people_may_fail(tmp_path: Path, name: str) -> None:
    check_faults(store_of_people(tmp_path / "people", 12), tmp_path, name, None)
