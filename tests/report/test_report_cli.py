"""`clpu report` from the outside."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import typer
from fabricate import run_folder
from typer.testing import CliRunner

from clpu.report import FILES
from clpu.report.cli import add_commands
from clpu.results import read_run
from clpu.terminal import Program


@pytest.fixture
def report():
    app = typer.Typer(cls=Program)
    app.callback()(lambda: None)
    add_commands(app)
    return lambda *arguments: CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_writes_into_the_run_folder_and_prints_the_table(report, tmp_path):
    folder = run_folder(tmp_path / "run", methods=["er", "clpu-der++"])
    done = report(folder)
    assert done.exit_code == 0, done.output
    assert all((folder / name).stat().st_size > 200 for name in FILES)
    assert "CLPU-DER++" in done.output


def test_several_runs_make_one_report_in_the_given_folder(report, tmp_path):
    folders = [run_folder(tmp_path / name, methods=["er"]) for name in ("a", "b")]
    done = report(*folders, "--out", tmp_path / "both", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.output == ""
    assert len((tmp_path / "both" / "table.csv").read_text().splitlines()) == 3
    assert not (folders[0] / "report.html").exists()


def test_a_folder_that_is_no_run_is_refused_in_one_line(report, tmp_path):
    done = report(tmp_path)
    assert done.exit_code == 1
    assert done.output.startswith("error: BadRun: ")
    assert "not a run folder" in done.output
    assert done.output.count("\n") == 1


def test_the_command_is_declared_without_numpy_and_torch():
    code = "import sys, clpu.report.cli; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_report_needs_no_torch(tmp_path):
    folder = run_folder(tmp_path / "run", methods=["ind", "clpu-der++", "my-own"])
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from clpu.report import write; from clpu.results import read_run\n"
        "write([read_run(sys.argv[1])], sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "CLPU-DER++" in (folder / "report.html").read_text(encoding="utf-8")


def test_two_runs_with_the_same_seeds_are_compared_seed_by_seed(tmp_path, report):
    first = run_folder(tmp_path / "first", methods=["er", "seq"], seeds=3)
    second = run_folder(tmp_path / "second", methods=["er"], seeds=3, settings={"er": {"lr": 0.1}})
    other = run_folder(tmp_path / "other", methods=["er"], seeds=2)
    shown = report(first, second, "--out", tmp_path / "out").output
    _, _, table = shown.partition("Paired difference in ACC, second − first, in points:")
    runs = [read_run(folder) for folder in (first, second)]
    results = [run.results["er"] for run in runs]
    # ACC: the mean over all requests of the accuracies of the tasks active after each.
    pairs = [(n, results[0].tasks.index(t)) for n, alive in enumerate(results[0].alive) for t in alive]
    acc = [np.mean([result.accuracy[n, t] for n, t in pairs], axis=0) for result in results]
    cells = [f"{100 * value:+.2f}".replace("-", "−") for value in acc[1] - acc[0]]
    [line] = [line for line in table.splitlines() if line.startswith("ER")]
    assert line.split()[-3:] == cells
    assert "Seq" not in table
    unpaired = report(first, other, "--out", tmp_path / "out").output
    assert "Paired" not in unpaired
