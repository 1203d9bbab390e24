"""A job that is killed continues after its last finished request, bit for bit as if it had not been killed."""

import io
import multiprocessing
import os
import platform
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import torch
from rich.console import Console
from test_bench_run import metrics_in, tiny

from clpu import machine
from clpu.bench.measure import load, measure, perform, save
from clpu.bench.run import BENCHMARK, run
from clpu.runs import display, engine
from clpu.runs.display import Display
from clpu.runs.engine import Event
from clpu.runs.folder import RunFolder
from clpu.runs.jobs import checkpoint_of, file_of, write_arrays
from clpu.state import State
from clpu.threads import computing_with

REQUESTS = "1R 2T 3R 2F"


class Killed(BaseException):
    """Ends a job like a kill: nobody catches it."""


def planned(*methods):
    return tiny(methods, requests=REQUESTS)


def interrupted(job, data, path, after):
    """Perform a job until some steps of the request after `after` are done."""

    def progress(number, step):
        if number == after + 1 and step is not None and step.step == 2:
            raise Killed

    with pytest.raises(Killed):
        measure(job, data, path, progress)
    return checkpoint_of(path)


def same(a, b):
    assert np.array_equal(a.accuracy, b.accuracy)
    assert a.outputs.keys() == b.outputs.keys()
    assert all(np.array_equal(a.outputs[key], b.outputs[key]) for key in a.outputs)
    assert a.cost.bytes == b.cost.bytes


@pytest.mark.parametrize("method", ["clpu-der++", "lsf", "ind", "er"])
def test_a_job_continues_with_the_same_bits(tmp_path, method):
    plan = planned(method)
    job, path = plan.jobs[method][0], tmp_path / "job.safetensors"
    digests = {}

    def digest_of(name):
        def progress(number, step):
            if step is None and number == 3:
                digests[name] = State.from_bytes(load(checkpoint_of(tmp_path / name), job).state).digest()

        return progress

    undisturbed = perform(job, plan.data, digest_of("a"), checkpoint=checkpoint_of(tmp_path / "a"))
    interrupted(job, plan.data, path, 2).rename(checkpoint_of(tmp_path / "b"))
    steps = []

    def watch(number, step):
        steps.extend([number] if step else [])
        digest_of("b")(number, step)

    resumed = perform(job, plan.data, watch, checkpoint=checkpoint_of(tmp_path / "b"))
    assert set(steps) <= {3, 4}
    same(resumed, undisturbed)
    assert digests["a"] == digests["b"]


def test_a_finished_job_leaves_no_checkpoint(tmp_path):
    plan = planned("seq")
    job, path = plan.jobs["seq"][0], tmp_path / "job.safetensors"
    checkpoint = interrupted(job, plan.data, path, 1)
    assert checkpoint.is_file()
    measure(job, plan.data, path, lambda number, step: None)
    assert not checkpoint.exists()
    finished = load(path, job)
    same(finished, perform(job, plan.data))
    assert finished.state == b""


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_not_used(tmp_path, damage):
    plan = planned("seq")
    job, path = plan.jobs["seq"][0], tmp_path / "job.safetensors"
    damage(interrupted(job, plan.data, path, 2))
    numbers = []
    measure(job, plan.data, path, lambda number, step: numbers.append(number))
    assert numbers.count(1) > 1
    same(load(path, job), perform(job, plan.data))


def test_a_checkpoint_of_a_different_machine_or_job_is_not_used(tmp_path, monkeypatch):
    plan = planned("seq")
    job, other = plan.jobs["seq"][:2]
    path = tmp_path / "job.safetensors"
    checkpoint = interrupted(job, plan.data, path, 2)
    for chosen, fingerprint in ((other, machine.fingerprint()), (job, "ab" * 32)):
        monkeypatch.setattr(machine, "fingerprint", lambda fingerprint=fingerprint: fingerprint)
        begun = []
        perform(chosen, plan.data, lambda n, s, begun=begun: begun.extend([n] if s else []), checkpoint=checkpoint)
        assert 1 in begun


def test_a_full_disk_costs_the_checkpoint_only(tmp_path, monkeypatch):
    def full(path, job, result):
        if path.suffix == ".checkpoint":
            raise OSError(28, "No space left on device")
        save(path, job, result)

    monkeypatch.setattr("clpu.bench.measure.save", full)
    plan = planned("seq")
    path = tmp_path / "job.safetensors"
    measure(plan.jobs["seq"][0], plan.data, path, lambda number, step: None)
    assert list(tmp_path.glob("job.*")) == [path]


def test_a_run_whose_worker_is_killed_resumes_inside_the_job(tmp_path):
    plan = planned("clpu-der++")
    assert run(plan, tmp_path / "undisturbed") == {}
    killed = []

    def kill_after_two(event):
        if event.kind == "step" and event.request == 3 and not killed:
            # Both workers: the one at this job is among them.
            killed.extend(multiprocessing.active_children())
            for victim in killed:
                os.kill(victim.pid, signal.SIGKILL)

    failures = run(plan, tmp_path / "killed", workers=2, listener=kill_after_two)
    assert any("SIGKILL" in reason for reason in failures.values())
    with RunFolder(tmp_path / "killed", BENCHMARK) as folder, computing_with(2):  # not the workers' thread count
        folder.resume(plan)
        begun = dict(folder.begun)
    assert begun["clpu-der++--actual--0"] >= 2
    steps = []
    assert run(plan, tmp_path / "killed", listener=lambda e: steps.append((e.job, e.request, e.kind))) == {}
    assert not any(kind == "step" and number <= begun[job] for job, number, kind in steps)
    assert metrics_in(tmp_path / "killed") == metrics_in(tmp_path / "undisturbed")
    assert not (tmp_path / "killed" / "jobs").exists()


def write_niceness(job, data, path, progress):
    group = Path("/proc/self/autogroup")
    sessions = group.read_text().split()[-1] if group.exists() and group.read_text() else "19"
    write_arrays(path, {"nice": np.array([os.nice(0), int(sessions)])}, {})


@pytest.mark.skipif(not hasattr(os, "nice"), reason="this system has no such priorities")
def test_nice_workers_run_at_the_lowest_priority(tmp_path):
    plan, before = planned("seq"), os.nice(0)
    job = plan.jobs["seq"][0]
    assert engine.run_jobs([job], plan.data, tmp_path, 1, lambda event: None, write_niceness, nice=True) == {}
    assert safetensors.numpy.load_file(file_of(tmp_path, job))["nice"].tolist() == [19, 19]
    assert os.nice(0) == before


@pytest.mark.parametrize(("accepted", "options"), [(1, [-3, -1]), (0, [-3])], ids=["glibc", "limit refused"])
def test_freed_memory_is_kept_with_both_options_or_none(monkeypatch, accepted, options):
    """One alone would stop glibc from adjusting the other, and make things worse."""
    called = []
    libc = SimpleNamespace(mallopt=lambda option, value: called.append(option) or accepted)
    monkeypatch.setattr(engine.ctypes, "CDLL", lambda name: libc)
    engine.keep_freed_memory()
    assert called == options


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_bytes_given_back(job, data, path, progress):
    """Allocate 128 MiB, and write down how much of it goes back to the system when it is freed."""
    activations = [torch.ones(2**21) for _ in range(16)]
    before = resident_bytes()
    del activations
    write_arrays(path, {"given back": np.array([before - resident_bytes()])}, {})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_worker_keeps_the_memory_that_a_step_freed(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)  # a different malloc, perhaps
    plan = planned("seq")
    job = plan.jobs["seq"][0]
    assert engine.run_jobs([job], plan.data, tmp_path, 1, lambda event: None, write_bytes_given_back, nice=True) == {}
    assert safetensors.numpy.load_file(file_of(tmp_path, job))["given back"][0] < 2**24


def test_a_system_without_mallopt_computes_all_the_same(monkeypatch):
    monkeypatch.setattr(engine.ctypes, "CDLL", lambda name: SimpleNamespace())
    engine.keep_freed_memory()


def test_progress_and_time_left_survive_a_restart(monkeypatch):
    jobs, clock = planned("seq").jobs["seq"], iter([100.0, 110.0, 110.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock, 110.0))
    total = sum(sum(job.costs()) for job in jobs)
    behind = {jobs[0].name: 4, jobs[1].name: 1}
    before = (sum(jobs[0].costs()) + jobs[1].costs()[0]) / total
    shown = Display(jobs, Console(file=io.StringIO()), True, behind, spent=60.0)
    assert shown.share == pytest.approx(before)
    assert shown.left() == f"about {display.duration(60 * (1 - before) / before)} left"
    # From then on by what this process takes: what was done before costs it nothing.
    shown(Event("request", jobs[1].name, 2))
    gained = jobs[1].costs()[1] / total
    assert shown.left() == f"about {display.duration(10 * (1 - before - gained) / gained)} left"
    assert Display(jobs, Console(file=io.StringIO()), True, behind).left() == "time left not known yet"
