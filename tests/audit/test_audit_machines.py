"""An audit is not computed on machines that compute differently, unless asked for and shown; twins never are."""

import json
import shutil

import pytest
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module
from test_audit import TASKS, TINY, planned

from clpu import machine
from clpu.audit import run as auditing
from clpu.audit.api import audit
from clpu.audit.page import page
from clpu.audit.tables import markdown
from clpu.errors import BadRun
from clpu.runs.jobs import file_of

ELSEWHERE = "ab" * 32


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """An audit in which `ind` is finished."""
    folder = tmp_path_factory.mktemp("started")
    assert auditing.run(planned("ind"), folder) == {}
    return folder


@pytest.fixture
def folder(started, tmp_path):
    return shutil.copytree(started, tmp_path / "audit")


@pytest.fixture
def differently(monkeypatch):
    """From here on, the machine computes differently, as far as anyone can tell."""
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)


def test_every_job_records_what_computed_it(started):
    recipe = auditing.read_audit(started).recipe
    assert sorted(recipe.jobs) == sorted(probe.name for probe in planned("ind").jobs["ind"])
    assert recipe.machines_of("ind") == [machine.here("cpu", 1)]


def test_a_machine_that_computes_differently_is_refused_and_changes_nothing(folder, differently):
    before = (folder / "run.json").read_bytes()
    with pytest.raises(BadRun, match=r"abababab \(this machine\).*--mix-machines"):
        auditing.run(planned("ind", "seq"), folder)
    assert (folder / "run.json").read_bytes() == before


def test_a_mixture_that_was_asked_for_is_recorded_and_shown(folder, differently):
    assert auditing.run(planned("ind", "seq"), folder, mix=True) == {}
    recipe = json.loads((folder / "run.json").read_text())
    used = {job.partition("--")[0]: recipe["machines"][n]["fingerprint"] for job, n in recipe["jobs"].items()}
    assert used["seq"] == ELSEWHERE
    assert used["ind"] != ELSEWHERE
    made = auditing.read_audit(folder)
    for text in (markdown(made), page(made)):
        assert "Computed on different machines" in text
        assert "(2) Seq: " in text


def without_records(folder):
    """The folder as a version that recorded no machines would have left it."""
    value = json.loads((folder / "run.json").read_text())
    del value["machines"], value["jobs"]
    (folder / "run.json").write_text(json.dumps(value))


def test_an_audit_without_records_is_resumed_with_the_flag_only(folder):
    without_records(folder)
    with pytest.raises(BadRun, match="what computed ind was not recorded"):
        auditing.run(planned("seq"), folder)
    assert auditing.run(planned("seq"), folder, mix=True) == {}
    assert "(1) Ind: not recorded. (2) Seq: " in markdown(auditing.read_audit(folder))


def stopped_after(folder, group):
    """An audit of `seq` that was stopped after the first job of a group."""

    def stop(event):
        if event.kind == "done" and event.job.split("--")[1] == group:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        auditing.run(planned("seq"), folder, listener=stop)


def test_twins_are_computed_by_one_machine_even_with_the_flag(tmp_path, monkeypatch):
    """Or their bits would differ because of the machines, and an exact method would be flagged."""
    stopped_after(tmp_path, "bits")
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)
    assert auditing.run(planned("seq"), tmp_path, mix=True) == {}
    recipe = auditing.read_audit(tmp_path).recipe
    prints = {job: recipe.machines[n].fingerprint for job, n in recipe.jobs.items()}
    assert {prints[job] for job in prints if "--bits" in job} == {ELSEWHERE}
    assert {prints[job] for job in prints if "--actual" in job} != {ELSEWHERE}


def test_twins_that_are_all_done_are_not_done_again(tmp_path, monkeypatch):
    *_, last = probes = planned("seq").jobs["seq"]
    stopped_after(tmp_path, last.group)
    first = probes[0]
    file_of(tmp_path / "jobs", first).unlink()
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)
    done = []
    assert auditing.run(planned("seq"), tmp_path, listener=lambda e: done.append(e.job), mix=True) == {}
    assert set(done) == {first.name}


def test_the_function_has_the_same_rule(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        audit("seq", TASKS, "1R 2T 2F", runs=4, folder=tmp_path, progress=stop_after_one(), **TINY)
    monkeypatch.setattr(machine, "fingerprint", lambda: ELSEWHERE)
    with pytest.raises(BadRun, match=r"abababab \(this machine\)"):
        audit("seq", TASKS, "1R 2T 2F", runs=4, folder=tmp_path, **TINY)
    made = audit("seq", TASKS, "1R 2T 2F", runs=4, folder=tmp_path, mix_machines=True, **TINY)
    assert "part of Seq" in made.page()


def stop_after_one():
    done = []

    def stop(event):
        done.extend([event] if event.kind == "done" else [])
        if done:
            raise KeyboardInterrupt

    return stop


def test_an_audit_without_records_is_shown_without_its_machine(folder):
    without_records(folder)
    text = page(auditing.read_audit(folder))
    assert "<dt>Computed on</dt><dd>not recorded</dd>" in text
    assert "different machines" not in text
