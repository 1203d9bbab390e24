"""The commands of a durable agent."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from storekit import examples, picture
from typer.testing import CliRunner, Result

from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.workers import Workers

SMALL = ["--epochs", "1", "--set", "hidden=6", "--memory", "6"]


def run(*arguments: object, code: int = 0, **environment: str) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for task in "12":
        x, y = examples(task)
        np.savez(tmp_path / f"{task}.npz", x=x, y=y)
    return tmp_path


@pytest.fixture
def store(data: Path) -> Path:
    run("init", data / "store", *SMALL)
    run("learn", data / "store", "one", "--data", data / "1.npz")
    run("learn", data / "store", "two", "--data", data / "2.npz", "--temporary")
    return data / "store"


def test_from_init_to_forget(store: Path, data: Path) -> None:
    with open_store(store, read_only=True) as agent:
        assert agent.tasks == {"one": "R", "two": "T"}
        assert agent.settings["epochs"] == 1
        assert agent.settings["hidden"] == (6,)
    run("forget", store, "two")
    run("learn", store, "two", "--data", data / "2.npz", "--temporary")
    run("keep", store, "two")
    with open_store(store, read_only=True) as agent:
        assert agent.tasks == {"one": "R", "two": "R"}


def test_workers_share_a_request_and_end_up_with_the_same_digest(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = []

    def in_this_process(self, work, setup, pieces, *, alike=False):  # type: ignore[no-untyped-def]
        shared.append(self)
        return ((number, work(setup, piece)) for number, piece in enumerate(pieces))

    monkeypatch.setattr("clpu.bases.base.Base.at_once", 7)
    monkeypatch.setattr("clpu.workers.Workers.map", in_this_process)
    for name, options in (("alone", []), ("shared", ["--workers", "3"])):
        run("init", data / name, "--method", "ridge")
        run("learn", data / name, "one", "--data", data / "1.npz", *options)
        run("add", data / name, "one", "--data", data / "2.npz", *options)
    assert shared == [Workers(3)] * 2
    with open_store(data / "alone") as alone, open_store(data / "shared", workers=2) as agent:
        assert agent.digest() == alone.digest()
        assert agent.workers == Workers(2)


def test_status_shows_tasks_accuracy_bytes_and_digest(store: Path, data: Path) -> None:
    shown = run("status", store, "--test", f"two={data / '2.npz'}").output
    assert "forgetting exact" in shown
    assert re.search(r"one +permanent +2 +[\d,]+", shown)
    assert re.search(r"two +temporary +2 +[\d,]+ +\d+\.\d%", shown)
    about = json.loads(run("status", store, "--json", "--test", f"two={data / '2.npz'}").output)
    with open_store(store, read_only=True) as agent:
        assert about["digest"] == agent.digest()
        assert [task["task"] for task in about["tasks"]] == ["one", "two"]
        assert about["tasks"][1]["accuracy"] == agent.accuracy("two", *examples("2"))
        assert about["tasks"][1]["bytes"] == agent.storage()["tasks"]["two"]
    assert "accuracy" not in about["tasks"][0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "{store}", "two", "--out", "{store}/two.json"],
        ["predict", "{store}", "two", "--data", "{data}/2.npz", "--out", "{store}/leaves/two.csv"],
        ["export", "{store}", "--task", "two", "--forgettable", "--to", "{store}/two.pt2"],
        ["keys", "export", "{store}", "{store}/recovery.json"],
        ["forget", "{store}", "two", "--receipt", "{store}/receipt.json"],
        ["init", "{store}/inside"],
        ["clone", "{store}", "{store}/inside"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_else_is_written_into_a_store(store: Path, data: Path, arguments: list[str]) -> None:
    """A forget would not reach it there."""
    before = picture(store)
    assert "is inside the store" in run(*(a.format(store=store, data=data) for a in arguments), code=1).stderr
    assert picture(store) == before


def test_a_folder_is_not_taken_for_a_file_to_write(store: Path, data: Path) -> None:
    (data / "folder").mkdir()
    for arguments in (["show", store, "two", "--out"], ["forget", store, "two", "--receipt"]):
        assert "is a folder" in run(*arguments, data / "folder", code=1).stderr


def test_an_approximate_method_says_so(data: Path) -> None:
    assert "approximate" in run("init", data / "er", "--method", "er", *SMALL).output
    run("learn", data / "er", "one", "--data", data / "1.npz", "--temporary")
    assert "forgetting approximate" in run("status", data / "er").output
    assert "approximate" in run("forget", data / "er", "one").output


def test_predict_to_a_pipe_or_a_file(store: Path, data: Path) -> None:
    with open_store(store, read_only=True) as agent:
        expected = agent.predict("two", examples("2")[0])
    lines = run("predict", store, "two", "--data", data / "2.npz").output.splitlines()
    assert lines[0] == "label,p_3,p_4"
    printed = np.array([line.split(",") for line in lines[1:]], float)
    assert np.allclose(printed[:, 1:], expected, atol=1e-6)
    assert (printed[:, 0] == np.array([3, 4])[expected.argmax(-1)]).all()
    run("predict", store, "two", "--data", data / "2.npz", "--out", data / "out.npz")
    assert np.array_equal(np.load(data / "out.npz")["probabilities"], expected)
    run("predict", store, "two", "--data", data / "2.npz", "--out", data / "out.csv")
    assert (data / "out.csv").read_text().splitlines() == lines
    run("predict", store, "two", "--data", data / "2.npz", "--out", data / "out.txt", code=1)


def test_verify_finds_damage(store: Path) -> None:
    assert "files OK" in run("verify", store).output
    piece = next(path for path in (store / "permanent").rglob("*") if path.is_file())
    piece.write_bytes(piece.read_bytes()[:-1] + bytes([piece.read_bytes()[-1] ^ 1]))
    assert f"{piece.name} cannot be decrypted" in run("verify", store, code=1).output


def test_a_receipt_is_written_and_verified(store: Path, data: Path) -> None:
    run("forget", store, "two", "--receipt", store / "receipt.json", code=1)
    (data / "taken.json").write_text("mine")
    run("forget", store, "two", "--receipt", data / "taken.json", code=1)
    run("forget", store, "two", "--receipt", data / "no" / "folder.json", code=1)
    run("forget", store, "one", "--receipt", data / "receipt.json", code=1)
    assert not (data / "receipt.json").exists()
    run("forget", store, "two", "--receipt", data / "receipt.json")
    assert "signer not verified" in run("verify-receipt", data / "receipt.json").output
    assert "expected store" in run("verify-receipt", data / "receipt.json", "--store", store).output
    run("verify-receipt", data / "receipt.json", "--identity", "0" * 64, code=1)
    text = (data / "receipt.json").read_text()
    (data / "receipt.json").write_text(text.replace('"two"', '"six"'))
    run("verify-receipt", data / "receipt.json", code=1)
    assert (data / "taken.json").read_text() == "mine"


def test_keys_elsewhere_by_option_or_environment(data: Path) -> None:
    run("init", data / "apart", "--keys", data / "keys", *SMALL)
    run("learn", data / "apart", "one", "--data", data / "1.npz", "--temporary", code=1)
    run("learn", data / "apart", "one", "--data", data / "1.npz", "--temporary", "--keys", data / "keys")
    assert "temporary" in run("status", data / "apart", CLPU_KEYS=str(data / "keys")).output
    assert "--keys" in run("verify", data / "apart", code=1).output
    run("forget", data / "apart", "one", CLPU_KEYS=str(data / "keys"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["learn", "{store}", "one", "--data", "{data}/1.npz"],
        ["learn", "{store}", "three", "--data", "{data}/missing.npz"],
        ["learn", "{data}/nowhere", "three", "--data", "{data}/1.npz"],
        ["keep", "{store}", "three"],
        ["forget", "{store}", "one"],
        ["forget", "{store}", "three"],
        ["predict", "{store}", "three", "--data", "{data}/1.npz"],
        ["status", "{store}", "--test", "two"],
        ["status", "{data}"],
        ["init", "{store}"],
        ["init", "{data}/new", "--method", "magic"],
        ["init", "{data}/new", "--set", "colour=red"],
        ["init", "{data}/new", "--set", "colour"],
        ["verify", "{data}/nowhere"],
        ["verify-receipt", "{data}/1.npz"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_an_error_is_one_line_and_changes_nothing(store: Path, data: Path, arguments: list[str]) -> None:
    before = picture(store)
    result = run(*(argument.format(store=store, data=data) for argument in arguments), code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert picture(store) == before


def test_importing_the_commands_is_cheap() -> None:
    code = "import sys, clpu.store.cli; print([m for m in ('torch', 'numpy', 'cryptography') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


#: A program that runs a command and, at some call of a function, gets the signal of Ctrl-C.
INTERRUPTED = """
import os, signal, sys
from clpu.agent import Agent
from clpu.store.store import Store
from clpu.store.__main__ import app
cls, name, at = {"training": (Agent, "_report", 3), "saved": (Store, "_after", 1)}[sys.argv[1]]
original, calls = getattr(cls, name), []
def counted(*arguments):
    calls.append(True)
    if len(calls) == at:
        os.kill(os.getpid(), signal.SIGINT)
    return original(*arguments)
setattr(cls, name, counted)
app(sys.argv[2:])
"""


@pytest.mark.parametrize(("when", "words"), [("training", "the store is as it was"), ("saved", "was saved already")])
def test_ctrl_c_says_what_became_of_the_request(store: Path, data: Path, when: str, words: str) -> None:
    before = picture(store)
    arguments = ["learn", str(store), "three", "--data", str(data / "1.npz"), "--epochs", "20"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, when, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell that starts the tests in the background has them ignore Ctrl-C, and the child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # A shell shows 130 for both; CPython ends by the signal itself if the interrupt came while an import ran exec().
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert words in done.stderr
    assert (picture(store) == before) == (when == "training")
    with open_store(store) as agent:
        assert ("three" in agent.tasks) == (when == "saved")


def test_without_pillow_one_line_says_what_to_install_and_nothing_changes(store: Path, tmp_path: Path) -> None:
    before = picture(store)
    (tmp_path / "images" / "0").mkdir(parents=True)
    (tmp_path / "images" / "0" / "one.png").touch()
    code = f"""
import sys
sys.modules['PIL'] = None
from clpu.store.__main__ import app
app(['learn', {str(store)!r}, 'faces', '--data', 'images'])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: MissingPackage: reading images needs the package pillow: pip install pillow\n"
    assert picture(store) == before
