"""Commands that only read files, print or parse arguments start quickly: they do not import torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "report"))
from fabricate import run_folder

import clpu.store

CODE = """
import sys
from clpu.cli import main
sys.argv = ["clpu", *sys.argv[1:]]
try:
    main()
finally:
    heavy = [name for name in ("torch", "numpy", "sklearn", "ray") if name in sys.modules]
    print("imported:", *heavy, file=sys.stderr)
"""


def run(*arguments, code=0):
    """Run a command; what it printed, and which heavy packages it imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == code, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("imported:")
    return done.stdout, set(last.removeprefix("imported:").split())


@pytest.fixture
def store(tmp_path):
    """A store with a permanent and two temporary tasks."""
    x = np.random.default_rng(0).normal(size=(20, 4))
    with clpu.store.create(tmp_path / "store", hidden=(6,), epochs=1) as agent:
        for task, temporary in (("one", False), ("two", True), ("three", True)):
            agent.learn(task, x, np.arange(20) % 2, temporary=temporary)
    return tmp_path / "store"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["data", "list"], ["forget", "--help"]])
def test_help_and_lists_need_neither_torch_nor_numpy(arguments):
    printed, imported = run(*arguments)
    assert printed
    assert not imported


def test_a_report_needs_no_torch(tmp_path):
    folder = run_folder(tmp_path / "run", methods=("seq", "clpu-der++"), seeds=2)
    printed, imported = run("report", folder)
    assert "CLPU-DER++" in printed
    assert "torch" not in imported


def test_a_store_is_listed_and_verified_without_torch_and_numpy(store):
    with clpu.store.open(store, read_only=True) as agent:
        digest, storage = agent.digest(), agent.storage()
    printed, imported = run("status", store)
    assert digest in printed
    assert not imported
    printed, imported = run("status", store, "--json")
    about = json.loads(printed)
    assert about["digest"] == digest
    assert {task["task"]: task["bytes"] for task in about["tasks"]} == storage["tasks"]
    assert about["bytes"]["main"] == storage["main"]
    assert not imported
    for command in (
        ["verify", store, "--files-only"],
        ["show", store, "two"],
        ["forget", store, "two", "--dry-run"],
        ["expire", store],
    ):
        printed, imported = run(*command)
        assert printed
        assert not imported


def test_a_task_is_forgotten_without_torch_and_numpy(store, tmp_path):
    with clpu.store.open(store, read_only=True) as agent:
        expected = [agent.state().without("two").digest(), agent.state().without("two").without("three").digest()]
    _, imported = run("forget", store, "two")
    assert not imported
    with clpu.store.open(store, read_only=True) as agent:
        assert agent.digest() == expected[0]
    _, imported = run("forget", store, "three", "--receipt", tmp_path / "receipt.json", "--digests")
    assert not imported
    with clpu.store.open(store, read_only=True) as agent:
        assert agent.tasks == {"one": "R"}
        assert agent.digest() == expected[1]
    statement = json.loads((tmp_path / "receipt.json").read_text())["statement"]
    assert [statement["digest_before"], statement["digest_after"]] == expected
    printed, imported = run("verify-receipt", tmp_path / "receipt.json", "--store", store)
    assert "valid signature by the expected store" in printed
    assert not imported


def test_a_refused_forget_needs_no_torch_either(store):
    for task, says in (("one", "CannotForget"), ("four", "UnknownTask")):
        _, imported = run("forget", store, task, code=1)
        assert not imported, says


def test_an_inexact_method_is_asked_to_forget(tmp_path):
    """The counterexample: here torch is needed, and the check sees it."""
    x = np.random.default_rng(0).normal(size=(20, 4))
    with clpu.store.create(tmp_path / "store", "er", hidden=(6,), epochs=1) as agent:
        agent.learn("one", x, np.arange(20) % 2, temporary=True)
    printed, imported = run("forget", tmp_path / "store", "one")
    assert "only approximately" in printed
    assert "torch" in imported


def test_what_is_imported_when_it_is_asked_for_is_there_and_listed():
    """`dir(clpu)` is what an interactive session completes names from."""
    code = (
        "import clpu; names = [name for name in dir(clpu) if not name.startswith('__')]; "
        "assert {'Agent', 'open', 'create', 'export', 'data'} <= {*names}, names; "
        "assert not {'Any', 'TYPE_CHECKING', 'annotations'} & {*names}, names; "
        "[getattr(clpu, name) for name in names]; clpu.export.export"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
