"""`clpu bench` as a person calls it."""

import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from clpu import jsonfile
from clpu.bench.command import say_features
from clpu.cli import app
from clpu.runs import engine


def clpu(folder, *arguments):
    code = "import sys; from clpu.cli import main; sys.argv[0] = 'clpu'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, cwd=folder
    )


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    arguments = ("bench", "--profile", "smoke", "--methods", "seq,clpu-der++", "--seeds", "2", "--workers", "1")
    return folder, clpu(folder, *arguments), arguments


def test_it_prints_the_table_and_writes_every_file(called):
    folder, shown, _ = called
    assert shown.returncode == 0, shown.stderr
    assert "CLPU-DER++" in shown.stdout
    assert "JS-ratio" in shown.stdout
    files = {path.name for path in (folder / "runs" / "rot-digits-smoke").iterdir()}
    assert {"run.json", "results", "table.csv", "matrix.csv", "table.md", "table.tex", "report.html"} <= files


def test_progress_is_plain_lines_when_not_a_terminal(called):
    _, shown, _ = called
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "seq actual: done (" in shown.stderr
    assert "4 of 4 jobs" in shown.stderr


def test_methods_run_in_the_order_in_which_they_were_asked_for(called):
    _, shown, _ = called
    done = re.findall(r"^(\S+) \S+: done", shown.stderr, re.MULTILINE)
    assert done == ["seq", "seq", "clpu-der++", "clpu-der++"]


@pytest.mark.parametrize(("asked", "first"), [([], []), (["--methods", "seq,ind,seq,all"], ["seq", "ind"])])
def test_with_all_methods_the_costliest_runs_first_after_those_that_are_named(tmp_path, monkeypatch, asked, first):
    ran = []
    monkeypatch.setattr(engine, "run_jobs", lambda jobs, *_, **__: ran.extend(jobs) or {})
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["bench", "--profile", "smoke", "--seeds", "1", *asked])
    order = list(dict.fromkeys(job.method for job in ran))
    costs = [sum(sum(job.costs()) for job in ran if job.method == name) for name in order]
    assert order[: len(first)] == first
    assert len(order) > 8
    assert costs[len(first) :] == sorted(costs[len(first) :], reverse=True)


def test_the_same_command_again_only_reports(called):
    folder, first, arguments = called
    again = clpu(folder, *arguments)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert "done (" not in again.stderr


def test_the_recipe_and_each_result_are_read_once(called, monkeypatch):
    folder, _, arguments = called
    read, content_of = [], jsonfile.content_of
    monkeypatch.setattr(jsonfile, "content_of", lambda path: (read.append(path.name), content_of(path))[1])
    monkeypatch.chdir(folder)
    for more in ([], ["--methods", "ind"]):  # nothing to do; a further method
        assert CliRunner().invoke(app, [*arguments, *more]).exit_code == 0
        assert sorted(read) == sorted(["run.json", "seq.json", "clpu-der++.json"])
        read.clear()


def test_a_changed_setting_is_refused_and_a_failed_job_sets_the_exit_code(called, tmp_path):
    folder, _, arguments = called
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        refused = CliRunner().invoke(app, [*arguments, "--set", "lr=0.3"])
    assert "seq.lr: 0.1 (existing), 0.3 (requested)" in refused.stderr
    failed = clpu(tmp_path, *arguments, "--set", "seq.lr=1e20", "--quiet")
    assert failed.returncode == 1
    assert "Diverged" in failed.stderr
    assert "CLPU-DER++" in failed.stdout


def test_another_methods_row_must_have_the_same_settings(called):
    folder, _, arguments = called
    others = [word if word != "seq,clpu-der++" else "ind" for word in arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        refused = CliRunner().invoke(app, [*others, "--set", "lr=0.3"])
    assert "seq.lr: 0.1 (existing), 0.3 (requested)" in refused.stderr


def test_what_the_system_refuses_is_one_line(tmp_path):
    for folder, says in (
        ("/dev/null/x", "part of the path is a file"),
        ("/proc/x", "error: No such file or directory: /proc/x"),
    ):
        refused = clpu(tmp_path, "bench", "--profile", "smoke", "--methods", "seq", "--out", folder)
        assert refused.returncode == 1
        assert says in refused.stderr
        assert "Traceback" not in refused.stderr


def test_damaged_results_of_a_method_that_was_not_asked_for_take_no_table_away(called, tmp_path):
    folder, _, arguments = called
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "runs" / "rot-digits-smoke" / "results" / "clpu-der++.json").write_text("{")
    only = [word if word != "seq,clpu-der++" else "seq" for word in arguments]
    shown = clpu(tmp_path, *only)
    assert shown.returncode == 1
    assert "Seq" in shown.stdout
    assert "clpu-der++.json is damaged" in shown.stderr
    again = clpu(tmp_path, *arguments)
    assert again.returncode == 0, again.stderr
    assert "Recomputing the results of clpu-der++" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bench", "rot-letters"), "rot-digits"),
        (("bench", "people-letters"), "people-digits"),
        (("bench", "--set", "speed=3"), "Known settings"),
        (("bench", "--requests", "1R 1F"), "CannotForget"),
        (("bench", "--workers", "0"), "at least 1"),
        (("bench", "--device", "abacus"), "abacus"),
        (("bench", "--methods", ""), "no method"),
        (("bench", "--requests", ""), "no requests"),
        (("bench", "--set", "network=brain"), "mlp, resnet18"),
    ],
)
def test_bad_arguments_are_one_clear_error_and_leave_nothing(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert re.fullmatch(r"error: \w+: .+\n", result.stderr)
    assert says in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_base_says_how_far_it_is_with_its_features(capsys):
    for done in range(1, 61):
        say_features(done, 60)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Computing the base's features of 60 images, once; they are cached"
    assert said[1:] == [f"{done} of 60 images" for done in range(6, 61, 6)]
