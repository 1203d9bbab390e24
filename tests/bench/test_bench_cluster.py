"""The benchmark on a real local Ray cluster."""

import os
import signal
from pathlib import Path

import pytest
from test_bench_run import metrics_in, tiny

from clpu import machine
from clpu.bench.run import run
from clpu.methods import METHODS, plugins
from clpu.runs.recipe import read_recipe

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from clpu.runs import cluster

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()


def workers():
    """The processes that are performing a job now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(b"ray::_perform"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_cluster_one_of_whose_workers_is_killed_gives_the_same_figures(cluster, tmp_path):
    assert run(tiny(), tmp_path / "local") == {}
    killed, events = [], []

    def kill_once(event):
        events.append(event)
        if event.kind == "step" and not killed and workers():
            killed.append(workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    # Enough steps for a worker to be caught in the middle of its job.
    longer = tiny(overrides=["epochs=40"])
    assert run(longer, tmp_path / "cluster", 2, kill_once, cluster.run_jobs) == {}
    assert killed
    assert run(longer, tmp_path / "local again") == {}
    assert metrics_in(tmp_path / "cluster") == metrics_in(tmp_path / "local again")
    assert sum(e.kind == "done" for e in events) == 4


def test_a_failing_job_is_told_and_a_later_run_goes_on(cluster, tmp_path):
    failures = run(tiny(overrides=["seq.lr=1e20"]), tmp_path, 2, performer=cluster.run_jobs)
    assert set(failures) == {"seq--actual--0", "seq--counterfactual-3--1000"}
    assert all("Diverged" in reason for reason in failures.values())
    assert [p.name for p in (tmp_path / "results").glob("*.json")] == ["clpu-der++.json"]


def test_workers_record_what_computes_and_join_a_run_of_a_machine_that_computes_alike(cluster, tmp_path):
    assert run(tiny(("seq",)), tmp_path) == {}
    assert run(tiny(), tmp_path, 2, performer=cluster.run_jobs, elsewhere=True) == {}
    recipe = read_recipe(tmp_path)
    assert len(recipe.jobs) == 4
    assert {made.key for made in recipe.machines} == {machine.here("cpu", 1).key}


def test_a_users_method_reaches_the_cluster(cluster, tmp_path):
    source = b"import clpu\n@clpu.register\nclass Mine(clpu.METHODS['seq']):\n    name = 'mine-on-ray'\n"
    plugins.load_source("mine.py", source)
    try:
        assert run(tiny(("mine-on-ray",)), tmp_path, 2, performer=cluster.run_jobs) == {}
        assert [p.name for p in (tmp_path / "results").glob("*.json")] == ["mine-on-ray.json"]
    finally:
        checksum = plugins.CHECKSUMS.pop("mine-on-ray")
        del METHODS["mine-on-ray"], plugins.LOADED[checksum]
