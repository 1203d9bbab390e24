"""What `learn` and `keep` report about the tasks in memory, in Python and on the command line."""

import contextlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import clpu
from clpu import Agent, Change, Outcome
from clpu.cli import app
from clpu.networks.linear import Linear
from clpu.outcome import HeldOut
from clpu.testing import TINY, make_task, run_stream

NINE = {**TINY, "memory": 9}


def on_memory(agent, task):
    """The share of the examples in memory that `predict` gets right, one replica after the other."""
    shares = []
    tensors, labels = agent.state().tasks[task].own.tensors, np.array(agent.labels(task))
    for k in range(len(agent.seeds)):
        found = np.asarray(agent.predict(task, tensors["memory/x"][k])).reshape(len(agent.seeds), 9, -1)[k].argmax(-1)
        shares.append((labels[found] == labels[tensors["memory/y"][k]]).mean())
    return pytest.approx(np.mean(shares))


@pytest.mark.parametrize("method", ["clpu-live", "clpu-der++", "der++"])
@pytest.mark.parametrize("seeds", [[3], [3, 4]])
def test_keep_and_learn_report_the_accuracy_on_each_memory_before_and_after(method, seeds):
    agent = run_stream("1R 2R 3T 4T", method, seeds=seeds, **NINE)
    before = {task: on_memory(agent, task) for task in "1234"}
    kept = agent.keep("3")
    assert kept.memory.keys() == {"1", "2", "3"}
    for task, change in kept.memory.items():
        assert (change.before, change.after) == (before[task], on_memory(agent, task))
    learned = agent.learn("5", *make_task("5"))
    assert learned.memory.keys() == {"1", "2", "3", "5"}
    assert learned.memory["5"] == Change(None, learned.memory["5"].after)
    for task, change in learned.memory.items():
        assert change.after == on_memory(agent, task)
        assert task == "5" or change.before == pytest.approx(kept.memory[task].after)


def test_a_temporary_task_is_reported_when_it_is_learned_and_no_other_temporary_one():
    agent = run_stream("1R 2T", "clpu-live", **NINE)
    outcome = agent.learn("3", *make_task("3"), temporary=True)
    assert outcome.memory.keys() == {"1", "3"}
    assert outcome.memory["1"].before == outcome.memory["1"].after


def test_a_method_without_memories_has_nothing_to_report():
    agent = Agent("ind", **TINY)
    assert agent.learn("1", *make_task("1"), temporary=True) == Outcome({})
    assert agent.keep("1") == agent.keep("1") == Outcome({})
    assert agent.handle("1F") is None


def test_keeping_a_remembered_task_again_changes_nothing_and_says_so():
    agent = run_stream("1R", "clpu-live", **NINE)
    digest = agent.digest()
    outcome = agent.keep("1")
    assert outcome.memory["1"].before == outcome.memory["1"].after == on_memory(agent, "1")
    assert agent.digest() == digest
    assert agent.handle("1R") == outcome


def test_losses_are_those_above_a_limit():
    outcome = Outcome({"a": Change(0.9, 0.86), "b": Change(0.9, 0.88), "c": Change(None, 0.1), "d": Change(0.1, 0.9)})
    assert outcome.losses() == {"a": pytest.approx(0.04)}
    assert outcome.losses(of=0.01).keys() == {"a", "b"}


def test_what_is_printed_in_python_is_what_the_command_line_says():
    outcome = Outcome({"a": Change(0.9, 0.5), "b": Change(None, 0.25)}, HeldOut(10, 3.0, 4))
    assert str(outcome).splitlines() == [
        f"accuracy: {outcome.held_out}",
        "correct in memory: a 50.0% (before: 90.0%), b 25.0%",
        "warning: that is no better than always answering with the most frequent label",
        "warning: a lost 40.0 points on its memory",
    ]
    assert outcome.warnings(lambda name: "it")[1] == "it lost 40.0 points on its memory"
    assert str(Outcome({})) == ""


@pytest.fixture
def spoilt(monkeypatch):
    """A merge that ruins the main network."""
    keep = clpu.METHODS["clpu-live"].keep

    def ruined(self, state, task):
        state = keep(self, state, task)
        known = self.read(state)
        for name, head in known.main.heads.items():
            known.main.heads[name] = Linear(torch.zeros_like(head.weight), torch.zeros_like(head.bias))
        return self.write(state, known)

    monkeypatch.setattr(clpu.METHODS["clpu-live"], "keep", ruined)


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def store_with(path, *tasks):
    command("init", path / "agent", "--method", "clpu-live", "--epochs", 5, "--lr", 0.1, "--memory", 9)
    for task in tasks:
        x, y = make_task(task)
        np.savez(path / f"{task}.npz", x=x, y=y)
    return path / "agent"


def test_the_command_line_says_what_a_keep_did_without_naming_tasks(tmp_path):
    store = store_with(tmp_path, "north", "south")
    first = command("learn", store, "north", "--data", tmp_path / "north.npz")
    assert re.search(r"learned permanently from \d+ examples; correct in memory: this task 100.0%\n", first.stdout)
    command("learn", store, "south", "--data", tmp_path / "south.npz", "--temporary")
    kept = command("keep", store, "south")
    assert "made permanent; correct in memory: this task" in kept.stdout
    assert "(before: 100.0%), 1 remembered task " in kept.stdout
    assert command("keep", store, "south").stdout.startswith("permanent already; correct in memory: this task")
    assert "north" not in kept.output
    assert "south" not in kept.output


@pytest.mark.usefixtures("spoilt")
def test_the_command_line_warns_of_large_losses(tmp_path):
    store = store_with(tmp_path, "north", "south")
    command("learn", store, "north", "--data", tmp_path / "north.npz")
    command("learn", store, "south", "--data", tmp_path / "south.npz", "--temporary")
    kept = command("keep", store, "south")
    assert re.search(r"warning: this task lost \d\d\.\d points on its memory\n", kept.stderr)
    assert re.search(r"warning: a remembered task lost \d\d\.\d points on its memory\n", kept.stderr)


def test_in_a_terminal_the_table_comes_when_the_progress_bar_is_gone(tmp_path):
    pty = pytest.importorskip("pty")
    store = store_with(tmp_path, "north", "south")
    command("learn", store, "north", "--data", tmp_path / "north.npz")
    command("learn", store, "south", "--data", tmp_path / "south.npz", "--temporary")
    code = [sys.executable, "-c", "from clpu.cli import main; main()", "keep", str(store), "south"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(code, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "90"})
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to any more with an error
        while part := os.read(ours, 4096):
            seen += part
    os.close(ours)
    assert process.wait() == 0
    assert 0 <= seen.rindex(b"merge") < seen.index(b"correct in memory")
    assert seen.count(b"north") == 1
