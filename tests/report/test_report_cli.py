"""`clpu report` from the outside."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from fabricate import run_folder
from typer.testing import CliRunner

from clpu.report import FILES
from clpu.report.cli import add_commands
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
    assert "no run folder" in done.output
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
