"""A run is not computed partly here and partly on a machine that computes differently, unless asked for and shown."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.numpy
import torch
from rich.console import Console
from test_bench_run import metrics_in, tiny

from clpu import BadRun, jsonfile, machine
from clpu.bench.run import run
from clpu.data import benchmarks
from clpu.report import write
from clpu.report.terminal import show
from clpu.results import read_run
from clpu.runs import engine
from clpu.runs.recipe import read_recipe
from clpu.runs.shared_training import shared_folder

ROOT = Path(__file__).parent.parent.parent
ELSEWHERE = "ab" * 32


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A run in which `seq` is finished."""
    folder = tmp_path_factory.mktemp("started")
    assert run(tiny(("seq",)), folder) == {}
    return folder


@pytest.fixture
def folder(started, tmp_path):
    return shutil.copytree(started, tmp_path / "run")


@pytest.fixture
def differently(monkeypatch):
    """From here on, the machine computes differently, as far as anyone can tell."""
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def without_record(folder):
    """The folder as an older clpu left it."""

    def older(recipe):
        del recipe["machines"], recipe["jobs"], recipe["data"]["tasks_sha256"]

    edit(folder / "run.json", older)
    return folder


def test_every_job_records_what_computed_it(started):
    recipe = read_run(started).recipe
    assert sorted(recipe.jobs) == sorted(job.name for job in tiny(("seq",)).jobs["seq"])
    assert recipe.machines_of("seq") == [machine.here("cpu", 1)]


def test_results_are_never_there_without_the_record_of_what_computed_them(tmp_path, monkeypatch):
    """A kill right after they were written would make them unrecorded ones."""
    work, written = tiny(("seq",)), []

    write = jsonfile.write

    def looked_at(path, value):
        if path.name == "seq.json":
            written.append(sorted(read_recipe(tmp_path).jobs))
        return write(path, value)

    monkeypatch.setattr(jsonfile, "write", looked_at)
    assert run(work, tmp_path) == {}
    assert written == [sorted(job.name for job in work.jobs["seq"])]


def test_a_machine_that_computes_differently_is_refused_and_changes_nothing(folder, differently):
    before = contents(folder)
    with pytest.raises(
        BadRun, match=r"\(existing\), abababab \(this machine\).*choose a different --out, or give --mix-machines"
    ) as refused:
        run(tiny(), folder)
    assert "\n" not in str(refused.value)
    assert contents(folder) == before


def test_another_thread_count_or_version_is_refused(folder, monkeypatch):
    here = machine.here
    for change in ({"threads": 3}, {"versions": {**here().versions, "numpy": "0.1"}}):
        monkeypatch.setattr(machine, "here", lambda *where, change=change: replace(here(*where), **change))
        with pytest.raises(
            BadRun, match=f"{'threads' if 'threads' in change else 'numpy'}: .* \\(existing\\), .* \\(this machine\\)"
        ):
            run(tiny(), folder)


def test_a_finished_run_is_reported_by_any_machine(folder, differently):
    before = metrics_in(folder)
    assert run(tiny(("seq",)), folder) == {}
    assert metrics_in(folder) == before
    assert read_run(folder).recipe.machines[0].fingerprint != ELSEWHERE


def test_where_nothing_is_finished_nothing_can_be_mixed(folder, differently):
    shutil.rmtree(folder / "results")
    assert run(tiny(("seq",)), folder) == {}
    assert [made.fingerprint for made in read_run(folder).recipe.machines] == [ELSEWHERE]


def test_a_job_that_is_finished_counts_before_its_method_is(folder, monkeypatch):
    shutil.rmtree(folder / "results")

    def stop(event):
        if event.kind == "done":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny(("seq",)), folder, listener=stop)
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)
    with pytest.raises(BadRun, match=r"abababab \(this machine\)"):
        run(tiny(("seq",)), folder)
    assert run(tiny(("seq",)), folder, mix=True) == {}
    assert [made.fingerprint == ELSEWHERE for made in read_run(folder).recipe.machines_of("seq")] == [False, True]
    assert "part of Seq" in tables(folder)["table.md"]


def recorded(folder):
    return json.loads((folder / "run.json").read_text())["machines"]


def tables(folder):
    """Everything that a report says, by file; the terminal's too."""
    made = read_run(folder)
    console = Console(record=True, width=200, file=io.StringIO())
    show([made], console)
    return {path.name: path.read_text() for path in write([made], folder)} | {"terminal": console.export_text()}


def test_a_mixture_that_was_asked_for_is_in_the_recipe_and_in_every_report(folder, differently):
    assert run(tiny(), folder, mix=True) == {}
    recipe = json.loads((folder / "run.json").read_text())
    used = {job.partition("--")[0]: recipe["machines"][n]["fingerprint"] for job, n in recipe["jobs"].items()}
    assert used["clpu-der++"] == ELSEWHERE
    assert used["seq"] != ELSEWHERE
    told = tables(folder)
    for name in ("table.md", "report.html", "terminal"):
        words = " ".join(told[name].split())
        assert "Computed on different machines" in words, name
        assert f"(1) Seq: {machine.cpu(full=True)}" in words, name
        assert "(2) CLPU-DER++: " in words, name
        assert "fingerprint abababab" in words, name
    assert "machines that compute differently" in told["table.tex"]
    machines = [line.rpartition(",")[2] for line in told["table.csv"].splitlines()]
    assert machines == ["machine", *(made.key for made in read_run(folder).recipe.machines)]


def test_a_run_of_one_machine_says_nothing_of_mixtures(started):
    assert not any("different machines" in text for text in tables(started).values())
    assert machine.here("cpu", 1).describe() in tables(started)["report.html"]


def test_a_cpu_that_computes_alike_is_named_without_a_warning(folder):
    def moved(recipe):
        [first] = recipe["machines"]
        recipe["machines"].append({**first, "facts": {**first["facts"], "CPU": "Another CPU"}})
        recipe["jobs"][max(recipe["jobs"])] = 1

    edit(folder / "run.json", moved)
    told = tables(folder)
    assert not any("different machines" in text for text in told.values())
    assert "machines that compute differently" not in told["table.tex"]
    for cpu in (machine.cpu(full=True), "Another CPU"):
        assert f"part of Seq: {cpu}" in told["report.html"]
    assert "clpu source" in told["report.html"]


def test_a_mixture_needs_the_flag_each_time(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(machine, "fingerprint", lambda: ELSEWHERE)
        assert run(tiny(("ind",)), folder, mix=True) == {}
    with pytest.raises(BadRun, match=r"abababab \(existing\)"):
        run(tiny(), folder)


def test_learning_is_not_shared_between_machines(tmp_path, monkeypatch):
    """Or a job of one machine would hold what another one learned."""
    scratch = tmp_path / "jobs"
    work = tiny(("seq",)).jobs["seq"][0]
    here = shared_folder(scratch, work)
    assert shared_folder(scratch, work) == here
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)
    assert shared_folder(scratch, work) != here


def cluster(odd, fingerprint=ELSEWHERE):
    """A performer like Ray's: jobs are done wherever, and the `odd` ones on a machine that computes differently."""

    def performer(jobs, data, folder, workers, listener, work):
        failures = {}
        for job in jobs:
            with pytest.MonkeyPatch.context() as patch:
                if job.name in odd:
                    patch.setattr(machine, "fingerprint", lambda: fingerprint)
                failures |= engine.run_jobs([job], data, folder, 1, listener, work)
        return failures

    return performer


def test_the_result_of_a_worker_that_computes_differently_is_not_used(started, tmp_path):
    names = [job.name for job in tiny(("seq",)).jobs["seq"]]
    events = []
    failures = run(tiny(("seq",)), tmp_path, listener=events.append, performer=cluster(names[1:]), elsewhere=True)
    assert list(failures) == names[1:]
    assert "abababab (this machine)" in failures[names[1]]
    assert "--mix-machines" in failures[names[1]]
    assert [e.kind for e in events if e.kind in ("done", "failed")] == ["done", "failed"]
    assert not read_run(tmp_path).results
    assert run(tiny(("seq",)), tmp_path, performer=cluster([]), elsewhere=True) == {}
    assert metrics_in(tmp_path) == metrics_in(started)
    assert len(recorded(tmp_path)) == 1


def test_with_the_flag_the_result_of_such_a_worker_is_used_and_recorded(tmp_path):
    names = [job.name for job in tiny(("seq",)).jobs["seq"]]
    performer = cluster(names[1:])
    assert run(tiny(("seq",)), tmp_path, performer=performer, elsewhere=True, mix=True) == {}
    recipe = read_run(tmp_path).recipe
    assert [recipe.machines[recipe.jobs[name]].fingerprint == ELSEWHERE for name in names] == [False, True]


def test_the_program_that_only_hands_out_work_may_compute_differently(folder, differently):
    """What computes is the cluster; the machine that asks it does not matter."""
    real = read_run(folder).recipe.machines[0].fingerprint
    names = [job.name for job in tiny().jobs["clpu-der++"]]
    assert run(tiny(), folder, performer=cluster(names, real), elsewhere=True) == {}
    assert len(recorded(folder)) == 1


def test_a_worker_of_an_older_clpu_that_records_nothing_is_refused(tmp_path):
    work = tiny(("seq",))

    def performer(jobs, data, scratch, workers, listener, work):
        def told(event):
            path = scratch / f"{event.job}.safetensors"
            if event.kind == "done" and event.job == jobs[-1].name:
                rewrite(path, lambda metadata: metadata.pop("machine"))
            listener(event)

        return engine.run_jobs(jobs, data, scratch, workers, told, work)

    failures = run(work, tmp_path, performer=performer, elsewhere=True)
    assert list(failures) == [work.jobs["seq"][-1].name]
    assert "not recorded" in next(iter(failures.values()))


def rewrite(path, change):
    with safetensors.safe_open(path, "numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(metadata)
    path.write_bytes(safetensors.numpy.save(arrays, metadata))


@pytest.mark.parametrize("record", ["{", "[]", '{"fingerprint": "<script>"}', "[" * 9999])
def test_a_job_with_a_damaged_record_is_done_again(started, tmp_path, record):
    def stop(event):
        if event.kind == "done":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny(("seq",)), tmp_path, listener=stop)
    (path,) = (tmp_path / "jobs").glob("*.safetensors")
    rewrite(path, lambda metadata: metadata.update(machine=record))
    done = []
    assert run(tiny(("seq",)), tmp_path, listener=lambda e: done.append(e.job) if e.kind == "done" else None) == {}
    assert path.stem in done
    assert metrics_in(tmp_path) == metrics_in(started)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v.update(machines="many"), "machines: expected `array`, got `str`"),
        (lambda v: v["machines"][0].pop("threads"), r"machines\[0\]: object missing required field `threads`"),
        (
            lambda v: v["machines"][0]["facts"].update(CPU="<script>alert(1)</script>"),
            r"machines\[0\]\.facts\[\.\.\.\]: expected `str` matching",
        ),
        (lambda v: v["jobs"].update({"seq--actual--0": 7}), "names machine 7, and the recipe has 1 machines"),
        (lambda v: v["jobs"].update({"seq--actual--0": -1}), "names machine -1"),
        (lambda v: v["jobs"].update({"seq--actual--0": True}), r"jobs\[\.\.\.\]: expected `int \| null`, got `bool`"),
        (lambda v: v["jobs"].update({"<b>--actual--0": 0}), "cannot be the name of a job"),
    ],
)
def test_a_damaged_record_in_the_recipe_is_named(folder, change, says):
    edit(folder / "run.json", change)
    for use in (read_run, lambda f: run(tiny(), f, mix=True)):
        with pytest.raises(BadRun, match=says):
            use(folder)


def test_a_run_without_records_can_be_read_and_reported(folder):
    told = tables(without_record(folder))
    assert "<dt>Computed on</dt><dd>not recorded</dd>" in told["report.html"]
    assert told["table.csv"].splitlines()[1].endswith(",not recorded")
    assert "different machines" not in told["table.md"]


def test_a_run_without_records_is_resumed_with_the_flag_only(folder):
    before = contents(without_record(folder))
    with pytest.raises(BadRun, match=rf"what computed seq was not recorded \(clpu .*, torch {torch.__version__[:3]}"):
        run(tiny(), folder)
    assert contents(folder) == before
    assert run(tiny(), folder, mix=True) == {}
    assert "(1) Seq: not recorded. (2) CLPU-DER++: " in tables(folder)["table.md"]


def test_an_old_run_of_this_project_says_that_its_machine_was_not_recorded():
    made = read_run(ROOT / "reproduction" / "split-cifar10-small")
    assert made.recipe.machines_of("seq") == [None]


def test_tasks_that_are_rotated_differently_are_different_data(folder, monkeypatch):
    """A different Pillow, say; the data set itself is the same."""
    angle = benchmarks.rotation_angle
    monkeypatch.setattr(benchmarks, "rotation_angle", lambda *of: angle(*of) + 10)
    with pytest.raises(BadRun, match=r"data\.tasks_sha256"):
        run(tiny(), folder)


def clpu(folder, *arguments, **variables):
    code = "import sys; from clpu.cli import main; sys.argv[0] = 'clpu'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"} | variables,
    )


#: What torch calls a CPU without vector instructions that it uses, in older versions and today.
LEAST = ("NO AVX", "DEFAULT")


def test_a_bench_is_not_resumed_with_less_of_the_cpu(tmp_path):
    common = ("bench", "--profile", "smoke", "--seeds", "2", "--workers", "1", "--quiet", "--methods")
    assert clpu(tmp_path, *common, "seq").returncode == 0
    folder = tmp_path / "runs" / "rot-digits-smoke"
    own = read_run(folder).recipe.machines[0].facts["CPU capability"]
    if own in LEAST:
        pytest.skip("this CPU has no capability beyond the default")
    before = contents(folder)
    refused = clpu(tmp_path, *common, "seq,ind", ATEN_CPU_CAPABILITY="default")
    assert refused.returncode == 1
    assert any(f"CPU capability: {own} (existing), {least} (this machine)" in refused.stderr for least in LEAST)
    assert "fingerprint of float32 results" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert contents(folder) == before
    mixed = clpu(tmp_path, *common, "seq,ind", "--mix-machines", ATEN_CPU_CAPABILITY="default")
    assert mixed.returncode == 0, mixed.stderr
    assert "Computed on different machines" in mixed.stdout
    first, second = (made.facts["CPU capability"] for made in read_run(folder).recipe.machines)
    assert first == own
    assert second in LEAST
