"""A receipt says what was forgotten, can be checked, cannot be lost, and leaves nothing in the store."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from storekit import (
    SETTINGS,
    Crash,
    Fault,
    clone,
    crashing,
    digest_after,
    examples,
    failing,
    follow,
    injected,
    picture,
    picture_without_secrets,
    settings,
    synthetic,
)
from typer.testing import CliRunner, Result

import clpu
from clpu.store import Receipt, create, forgetting
from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.store.contents import Part
from clpu.store.forgetting import Order
from clpu.store.journal import Journal, verify_journal
from clpu.store.receipt import FIELDS, commitment, read_receipt
from clpu.store.sealing import new_key
from clpu.store.store import Store


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def two(store: Path) -> Path:
    follow(store, "1R 2T 3T")
    return store


@pytest.fixture
def receipt(two: Path) -> Receipt:
    with open_store(two) as agent:
        return agent.forget_with_receipt("2", id="7 of May", reason="asked", requester="Ada", digests=True)


def test_it_says_what_was_asked_and_what_was_done(receipt: Receipt) -> None:
    said = receipt.statement
    assert said.keys() == FIELDS.keys()
    assert (said["request"], said["reason"], said["requester"]) == ("7 of May", "asked", "Ada")
    assert said["scope"] == {"task": "2"}
    assert said["received"] <= said["done"]
    assert said["exact"] is True
    assert said["machine"].keys() == {"cpu", "system", "python", "clpu", "torch", "threads"}
    assert (said["digest_before"], said["digest_after"]) == (digest_after("1R 2T 3T"), digest_after("1R 3T"))
    assert said["shared_before"] == said["shared_after"]


def test_its_commitments_are_to_what_the_files_held_and_nobody_confirms_a_guess_without_the_salt(two: Path) -> None:
    with open_store(two) as agent:
        task = agent.state().tasks["2"]
        said = agent.forget_with_receipt("2").statement
    content = Part(("2", None), task.status, task.facts, task.own).to_bytes()
    assert said["touched"] == [commitment(bytes.fromhex(said["salt"]), content)]
    assert said["touched"] != [commitment(bytes(32), content)]
    assert len(said["keys_destroyed"]) == 1
    assert said["digest_before"] is None, "digests are a pass over all leaves, so they are made when asked for"


def test_it_can_be_written_read_and_verified(receipt: Receipt, store: Path) -> None:
    again = Receipt.from_json(receipt.to_json())
    assert again == receipt
    with open_store(store, read_only=True) as agent:
        again.verify(agent.identity)
        again.verify(agent.identity.upper())
        with pytest.raises(clpu.BadReceipt, match="was signed by"):
            again.verify("0" * 64)


def test_any_change_breaks_the_signature(receipt: Receipt) -> None:
    for name in receipt.statement:
        changed = Receipt({**receipt.statement, name: "another"}, receipt.identity, receipt.signature)
        with pytest.raises(clpu.BadReceipt, match="changed"):
            changed.verify()


@pytest.mark.parametrize("name", FIELDS)
def test_what_lacks_a_field_or_has_an_odd_one_is_no_receipt_whoever_signed_it(receipt: Receipt, name: str) -> None:
    """L6: version 99, missing fields."""
    signing = new_key()
    rest = {field: value for field, value in receipt.statement.items() if field != name}
    for statement in (rest, {**rest, name: 99}, {**receipt.statement, "more": 1}):
        forged = Receipt.sign(signing, {})
        forged = Receipt(statement, forged.identity, forged.signature)
        with pytest.raises(clpu.BadReceipt, match="not a clpu receipt"):
            Receipt.from_json(forged.to_json())


def test_duplicate_names_and_public_keys_of_anybody_are_refused(receipt: Receipt, tmp_path: Path) -> None:
    """L6."""
    twice = receipt.to_json().replace('"request":', '"request": "another", "request":', 1)
    with pytest.raises(clpu.BadReceipt, match="twice"):
        Receipt.from_json(twice)
    weak = Receipt(receipt.statement, "01" + "00" * 31, "01" + "00" * 63)
    with pytest.raises(clpu.BadReceipt, match="anybody"):
        Receipt.from_json(weak.to_json())
    with pytest.raises(clpu.BadReceipt):
        weak.verify()


def test_identity_and_store_must_agree_and_upper_case_is_fine(receipt: Receipt, store: Path, tmp_path: Path) -> None:
    """L6."""
    path = tmp_path / "receipt.json"
    path.write_text(receipt.to_json())
    run("verify-receipt", path, "--store", store, "--identity", receipt.identity.upper())
    run("verify-receipt", path, "--store", store, "--identity", "0" * 64, code=1)
    run("verify-receipt", path, "--identity", "xyz", code=1)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"statement": 1, "identity": 2, "signature": 3}', "[" * 10**5]
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(clpu.BadReceipt):
        Receipt.from_json(text)


def test_a_pipe_is_not_a_receipt(tmp_path: Path) -> None:
    """L9: it would be waited for without end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(clpu.BadReceipt, match="not a plain file"):
        read_receipt(tmp_path / "pipe")


def test_the_store_keeps_nothing_of_it(empty_store: Path, tmp_path: Path) -> None:
    with_receipt, without = clone(empty_store, tmp_path / "a"), clone(empty_store, tmp_path / "b")
    follow(with_receipt, "1R 2T")
    with open_store(with_receipt) as agent:
        agent.forget_with_receipt("2", tmp_path / "receipt.json")
    follow(without, "1R")
    assert picture(with_receipt) == picture(without)
    assert (tmp_path / "receipt.json").stat().st_mode & 0o777 == 0o600  # L7


@pytest.mark.parametrize("task", ["1", "never"])
def test_there_is_none_for_what_cannot_be_forgotten(two: Path, tmp_path: Path, task: str) -> None:
    with open_store(two) as agent, pytest.raises((clpu.CannotForget, clpu.UnknownTask)):
        agent.forget_with_receipt(task, tmp_path / "receipt.json")
    assert not (tmp_path / "receipt.json").exists()


def order(task: str = "2") -> Order:
    return Order({"task": task}, "the id")


def test_a_crash_at_any_call_costs_neither_the_receipt_nor_the_forget(empty_store: Path, tmp_path: Path) -> None:
    """M1: the pending receipt is there first; the same request completes it."""
    prepared = clone(empty_store, tmp_path / "prepared")
    with Store(prepared, write=True) as store:
        store.commit(store.load().with_task("1", synthetic("R", 1)).with_task("2", synthetic("T", 2)))
    never = clone(empty_store, tmp_path / "never")
    with Store(never, write=True) as store:
        store.commit(store.load().with_task("1", synthetic("R", 1)))
    with Store(clone(prepared, tmp_path / "counted"), write=True) as store:
        store.load()
        with injected() as injector:
            forgetting.forget_with_receipt(store, order(), tmp_path / "counted.json")
    for at in range(0, len(injector.calls), 3):
        path, file = clone(prepared, tmp_path / str(at)), tmp_path / f"{at}.json"
        with Store(path, write=True) as store:
            store.load()
            with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
                raise_after_the_crash(store, file)
        with Store(path, write=True) as store:
            store.load()
            if file.exists() or "2" in store.standing.state.tasks:
                made = forgetting.forget_with_receipt(store, order(), file)
                assert forgetting.forget_with_receipt(store, order(), file) == made, "asked again: the same receipt"
        assert file.exists(), "nothing is forgotten without a receipt"
        read_receipt(file).verify()
        assert picture(path) == picture(never)


def raise_after_the_crash(store: Store, file: Path) -> None:
    """As a process that is killed: nothing tidies up after it."""
    unlink = Path.unlink
    try:
        Path.unlink = lambda self, missing_ok=False: None if self == file else unlink(self, missing_ok)  # type: ignore[method-assign]
        forgetting.forget_with_receipt(store, order(), file)
    finally:
        Path.unlink = unlink  # type: ignore[method-assign]


@pytest.mark.parametrize("at", range(0, 34, 6))
def test_a_failing_disk_leaves_the_receipt_if_and_only_if_it_was_forgotten(two: Path, tmp_path: Path, at: int) -> None:
    file = tmp_path / "receipt.json"
    with Store(two, write=True) as store:
        store.load()
        with injected(Fault(failing(errno.EIO), at)), pytest.raises(clpu.StoreFailed):
            forgetting.forget_with_receipt(store, order(), file)
        assert file.exists() == ("2" not in store.standing.state.tasks)


def test_a_full_disk_where_receipts_go_does_not_lose_one(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1 as it was found."""
    file, writes = tmp_path / "receipt.json", []
    original = forgetting.write_atomically

    def full(*arguments: Any, **options: Any) -> Path:
        writes.append(arguments)
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **options)

    monkeypatch.setattr(forgetting, "write_atomically", full)
    with Store(two, write=True) as store:
        store.load()
        with pytest.raises(clpu.StoreFailed, match=r"it is forgotten.*give the same request again"):
            forgetting.forget_with_receipt(store, order(), file)
        assert "2" not in store.standing.state.tasks
    with pytest.raises(clpu.BadReceipt, match="pending"):
        read_receipt(file)
    run("forget", two, "2", "--receipt", file, "--id", "the id")
    run("verify-receipt", file, "--store", two)


def test_a_receipt_that_nobody_could_read_is_refused_before_anything_is_forgotten(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As H1: a limit that holds for readers only. With many people in a task, a receipt is long."""
    before, file = picture(two), tmp_path / "receipt.json"
    monkeypatch.setattr("clpu.store.forgetting.MAX_BYTES", 10_000)
    assert "would take more than" in run("forget", two, "2", "--receipt", file, code=1).stderr
    assert picture(two) == before
    assert not file.exists()


def test_a_receipt_of_many_files_can_be_read(store: Path, tmp_path: Path) -> None:
    people = {(f"person {n}",): n for n in range(2000)}
    with Store(store, write=True) as opened:
        opened.commit(opened.load().with_task("2", synthetic("T", 1, people)))
    run("forget", store, "2", "--receipt", tmp_path / "receipt.json")
    assert (tmp_path / "receipt.json").stat().st_size > 2000 * 2 * 64
    run("verify-receipt", tmp_path / "receipt.json", "--store", store)


def test_a_pending_receipt_does_not_forget_what_was_learned_again_since(two: Path, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    with Store(two, write=True) as store:
        store.load()
        pending = forgetting._Pending(store, order())
        file.write_text(pending.to_json())
    follow(two, "2F 2T")
    with Store(two, write=True) as store:
        store.load()
        forgetting.forget_with_receipt(store, order(), file)
        assert "2" in store.standing.state.tasks


def test_a_pending_receipt_that_this_store_did_not_write_has_nothing_forgotten_or_signed(
    two: Path, tmp_path: Path
) -> None:
    """Whoever can write to the folder of receipts must not be able to make requests."""
    file = tmp_path / "receipts" / "x.json"
    file.parent.mkdir()
    with Store(two, write=True) as store:
        store.load()
        true = json.loads(forgetting._Pending(store, order()).to_json())
    before = picture(two)
    forged = [
        {"pending": {**true["pending"], "scope": {"task": "3"}}},
        {"pending": {**true["pending"], "files": []}},
        {"pending": {"scope": {"task": "3"}}},
        {"signature": None},
        {"signature": "00" * 64},
    ]
    for change in forged:
        text = json.dumps({**true, **change})
        file.write_text(text)
        for arguments in (("expire", two, "--receipts", file.parent), ("forget", two, "2", "--receipt", file)):
            assert "did not write" in run(*arguments, code=1).stderr
        assert file.read_text() == text
        assert picture(two) == before
    file.write_text(json.dumps({**true, "identity": "00" * 32}))  # of a different store, in a folder that they share
    assert "nothing is due" in run("expire", two, "--receipts", file.parent).output
    assert picture(two) == before


@pytest.mark.parametrize("what", ["labels", "records"])
def test_an_empty_list_names_nothing_and_not_the_whole_task(two: Path, what: str) -> None:
    before = picture(two)
    with open_store(two) as agent:
        for request in (agent.forget, agent.forget_with_receipt):
            with pytest.raises(clpu.BadRequest, match="names nothing"):
                request("2", **{what: []})
            with pytest.raises(clpu.BadRequest, match="must be a list"):
                request("2", **{what: 3})
    assert picture(two) == before


def test_the_same_request_without_an_id_gives_the_same_receipt_while_it_is_gone(two: Path, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    for _ in range(2):
        run("forget", two, "2", "--receipt", file)
        assert read_receipt(file).statement["scope"] == {"task": "2"}
    text = file.read_text()
    follow(two, "2T")
    assert "already exists" in run("forget", two, "2", "--receipt", file, code=1).stderr
    assert file.read_text() == text


def test_an_existing_file_is_never_overwritten(two: Path, tmp_path: Path, receipt: Receipt) -> None:
    file = tmp_path / "receipt.json"
    for text in ("mine", "{}", receipt.to_json()):
        file.write_text(text)
        assert "already exists" in run("forget", two, "3", "--receipt", file, code=1).stderr
        assert file.read_text() == text
    with open_store(two, read_only=True) as agent:
        assert "3" in agent.tasks


class TestBatches:
    def test_a_batch_writes_a_receipt_for_each_and_can_be_given_again(self, two: Path, tmp_path: Path) -> None:
        (tmp_path / "receipts").mkdir()
        (tmp_path / "batch").write_text('2\n\n{"task": "3", "id": "x", "reason": "moved"}\n')
        arguments = ("forget", two, "--from-file", tmp_path / "batch", "--receipts", tmp_path / "receipts")
        journal = tmp_path / "journal"
        run(*arguments, "--journal", journal)
        found = {read_receipt(path).statement["scope"]["task"] for path in (tmp_path / "receipts").iterdir()}
        assert found == {"2", "3"}
        before = picture(tmp_path)
        run(*arguments, "--journal", journal)
        assert picture(tmp_path).keys() == before.keys()
        run("journal", "verify", journal, "--store", two, "--receipts", tmp_path / "receipts")

    @pytest.mark.parametrize(
        "line",
        [
            "1",
            "never",
            "2",
            '{"task": "2", "more": 1}',
            "{",
            '{"id": "x"}',
            '{"person": "ada"}',
            '{"task": "2", "labels": []}',
            '{"task": "2", "records": []}',
            '{"task": "2", "labels": [[1]]}',
            '{"task": "2", "labels": 3}',
            '{"task": "2", "person": null}',
            '{"task": "2", "labels": null}',
            '{"task": null, "person": "ada"}',
            '{"task": []}',
            '{"task": {"a": "b"}}',
            '{"person": ["ada"]}',
        ],
    )
    def test_a_batch_with_a_mistake_changes_nothing(self, two: Path, tmp_path: Path, line: str) -> None:
        before = picture(two)
        for text in (f"2\n{line}\n", f"3\n{line}\n2\n"):
            (tmp_path / "batch").write_text(text)
            assert run("forget", two, "--from-file", tmp_path / "batch", code=1).stderr.startswith("error: ")
            assert picture(two) == before

    def test_a_dry_run_says_what_it_would_touch_and_changes_nothing(self, two: Path) -> None:
        before = picture(two)
        shown = run("forget", two, "2", "--dry-run").output
        assert "would forget exactly: 1 task touched, 1 file removed" in shown
        run("forget", two, "1", "--dry-run", code=1)
        assert picture(two) == before


class TestJournal:
    @pytest.fixture
    def journal(self, two: Path, tmp_path: Path) -> Path:
        for task in "23":
            run("forget", two, task, "--receipt", tmp_path / f"{task}.json", "--journal", tmp_path / "journal")
        return tmp_path / "journal"

    def test_it_holds_no_names_and_grows_by_one_line_for_each_receipt(self, journal: Path, two: Path) -> None:
        entries = verify_journal(journal)
        assert [entry["number"] for entry in entries] == [1, 2]
        assert all(entry.keys() == entries[0].keys() and "scope" not in entry for entry in entries)
        assert journal.stat().st_mode & 0o777 == 0o600
        run("journal", "verify", journal, "--store", two)
        run("journal", "verify", journal, "--identity", "0" * 64, code=1)

    def test_nothing_can_be_removed_changed_or_put_in_between(self, journal: Path) -> None:
        first, second = journal.read_text().splitlines(keepends=True)
        spoilt = json.loads(second) | {"done": "2000-01-01T00:00:00+00:00"}
        for text in (second, second + first, first + first, first + json.dumps(spoilt) + "\n", "", first + second[:-9]):
            journal.write_text(text)
            with pytest.raises(clpu.BadReceipt):
                verify_journal(journal)

    def test_a_torn_line_is_replaced_and_a_receipt_never_added_twice(
        self, journal: Path, tmp_path: Path, two: Path
    ) -> None:
        text = journal.read_text()
        journal.write_text(text[:-20])
        last = read_receipt(tmp_path / "3.json")
        with Store(two, write=False) as store:
            for _ in range(2):
                Journal(journal, store.secrets.signing).append([last])
        assert journal.read_text() == text

    def test_it_needs_receipts_and_stays_outside_the_store(self, two: Path, tmp_path: Path) -> None:
        run("forget", two, "2", "--journal", tmp_path / "journal", code=1)
        run("expire", two, "--journal", tmp_path / "journal", code=1)
        run("forget", two, "2", "--receipt", tmp_path / "r.json", "--journal", two / "journal", code=1)
        assert not (tmp_path / "r.json").exists()

    def test_a_place_that_cannot_hold_it_shows_before_anything_is_forgotten(
        self, two: Path, tmp_path: Path, journal: Path
    ) -> None:
        """And a file that is somebody else's keeps its mode, a device above all."""
        (tmp_path / "notes").write_text("mine\n")
        (tmp_path / "notes").chmod(0o644)
        (tmp_path / "bytes").write_bytes(b"\xff\n")
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to(tmp_path / "notes")
        create(tmp_path / "other", **SETTINGS).close()
        follow(tmp_path / "other", "2T")
        before = [picture(tmp_path / "other"), os.stat("/dev/null").st_mode]  # noqa: PTH116
        for place in ("notes", "bytes", "pipe", "link", "no/folder", "journal", "/dev/null"):
            options = ("--receipt", tmp_path / "r.json", "--journal", tmp_path / place)
            assert "journal" in run("forget", tmp_path / "other", "2", *options, code=1).stderr
            assert not (tmp_path / "r.json").exists()
        assert [picture(tmp_path / "other"), os.stat("/dev/null").st_mode] == before  # noqa: PTH116
        assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o644
        assert (tmp_path / "notes").read_text() == "mine\n"

    def test_a_write_that_takes_half_is_completed(
        self, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        monkeypatch.setattr("clpu.store.journal.os.write", lambda fd, data: write(fd, data[: len(data) // 2 + 1]))
        run("forget", two, "2", "--receipt", tmp_path / "r.json", "--journal", tmp_path / "journal")
        assert len(verify_journal(tmp_path / "journal")) == 1

    @pytest.mark.parametrize("command", ["forget", "expire"])
    def test_a_receipt_that_a_crash_kept_out_of_the_journal_is_added_by_the_same_command(
        self, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        (tmp_path / "receipts").mkdir()
        arguments: tuple[object, ...] = ("forget", two, "2", "--receipt", tmp_path / "receipts" / "r.json")
        if command == "expire":
            with open_store(two) as agent:
                agent.learn("old", *examples("4"), temporary=True, until="2001-02-03")
            arguments = ("expire", two, "--receipts", tmp_path / "receipts")
        arguments = (*arguments, "--journal", tmp_path / "journal")
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", lambda self, receipts: 1 / bool(list(receipts) == []))
            CliRunner().invoke(app, list(map(str, arguments)))
        assert not (tmp_path / "journal").exists()
        check = ("journal", "verify", tmp_path / "journal", "--store", two, "--receipts", tmp_path / "receipts")
        run(*arguments)
        run(*check)
        text = (tmp_path / "journal").read_text()
        run(*arguments)
        assert (tmp_path / "journal").read_text() == text
        assert text.count("\n") == 1


class TestExpiry:
    def test_what_is_due_is_forgotten_with_a_receipt(self, two: Path, empty_store: Path, tmp_path: Path) -> None:
        with open_store(two) as agent:
            agent.learn("old", *examples("4"), temporary=True, until="2001-02-03")
            agent.learn("young", *examples("5"), temporary=True, until="2901-02-03T12:00+01:00")
            agent.learn("kept", *examples("6"), temporary=True, until="2001-02-03")
            agent.keep("kept")
            with pytest.raises(clpu.BadRequest):
                agent.learn("bad", *examples("7"), temporary=True, until="tomorrow")
            with pytest.raises(clpu.BadRequest):
                agent.learn("bad", *examples("7"), until="2901-01-01")
        shown = {task["task"]: task for task in json.loads(run("status", two, "--json").output)["tasks"]}
        assert shown["old"]["due"]
        assert not shown["young"]["due"]
        assert "until" not in shown["kept"]
        assert "(due)" in run("status", two).output
        (tmp_path / "receipts").mkdir()
        run("expire", two, "--receipts", tmp_path / "receipts", "--journal", tmp_path / "journal")
        (receipt,) = (tmp_path / "receipts").iterdir()
        assert read_receipt(receipt).statement["reason"] == "expired"
        assert "nothing is due" in run("expire", two).output
        with open_store(two) as agent:
            assert agent.tasks == {"1": "R", "2": "T", "3": "T", "young": "T", "kept": "R"}

    @pytest.mark.parametrize("method", ["clpu-der++", "er"])
    def test_an_interrupted_expiry_completes_its_receipts(self, tmp_path: Path, method: str) -> None:
        create(tmp_path / "store", method, **settings(method)).close()
        follow(tmp_path / "store", "1R 2T")
        (tmp_path / "receipts").mkdir()
        with Store(tmp_path / "store", write=True) as store:
            store.load()
            pending = forgetting._Pending(store, order())
            (tmp_path / "receipts" / "x.json").write_text(pending.to_json())
        run("expire", tmp_path / "store", "--receipts", tmp_path / "receipts")
        read_receipt(tmp_path / "receipts" / "x.json").verify()
        with open_store(tmp_path / "store") as agent:
            assert "2" not in agent.tasks


def test_show_exports_all_that_is_held_about_a_task(two: Path, tmp_path: Path) -> None:
    import numpy as np

    shown = json.loads(run("show", two, "2").output)
    with open_store(two) as agent:
        task = agent.state().tasks["2"]
    assert shown["facts"] == dict(task.facts)
    assert task.own is not None
    assert shown["own"].keys() == task.own.tensors.keys()
    for name, tensor in task.own.tensors.items():
        assert np.array_equal(np.array(shown["own"][name]["values"]).reshape(tensor.shape), tensor.numpy())
    run("show", two, "2", "--out", tmp_path / "shown.json")
    assert json.loads((tmp_path / "shown.json").read_text()) == shown
    run("show", two, "never", code=1)


def test_a_scope_over_people_is_one_request(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a method that forgets records will use: several leaves in several tasks, and facts that change with them."""
    from test_store_several import PEOPLE, without_ada

    monkeypatch.setattr(forgetting, "without", lambda state, **scope: without_ada(state))
    with Store(store, write=True) as opened:
        empty = opened.load()
        opened.commit(empty.with_task("1", synthetic("T", 8, PEOPLE)).with_task("2", synthetic("T", 9, PEOPLE)))
        found = forgetting.footprint(opened.standing, {"person": "ada"})
        assert (len(found.removed), len(found.rewritten)) == (4, 2)
        made = forgetting.forget_with_receipt(opened, Order({"person": "ada"}), tmp_path / "receipt.json")
        assert len(made.statement["touched"]) == len(made.statement["keys_destroyed"]) == 6
        assert len(made.statement["left"]) == 2
    read_receipt(tmp_path / "receipt.json").verify()
    assert picture_without_secrets(store)
