"""Benchmarks in which people leave: who is tested, what is compared, and what is said about it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from clpu import Agent, BadSetting, Stream
from clpu.bench.measure import perform
from clpu.bench.plan import plan
from clpu.bench.run import combine, run
from clpu.cli import app
from clpu.data.benchmarks import leaving, tasks
from clpu.errors import BadRun, CannotForget
from clpu.methods import METHODS
from clpu.methods.ridge import Ridge
from clpu.report import write
from clpu.report.summary import summarise
from clpu.report.tables import caveats
from clpu.results import alive_after, read_run
from clpu.runs.jobs import answers
from clpu.runs.plan import default_requests
from clpu.runs.profiles import profile, with_overrides

REQUESTS = "1R @p2F @p16F"


def planned(requests=REQUESTS, seeds=2, overrides=("train=200", "test=150", "features=60")):
    size = with_overrides(profile("people-digits", "smoke"), overrides, {"ridge": ["features", "penalty"]})
    return plan("people-digits", size, ["ridge"], requests, seeds)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    assert run(planned(), folder) == {}
    return folder


def agent_after(work, people):
    """An agent that learned the training records of these people."""
    (task,) = work.data
    rows = [i for i, who in enumerate(task.train_people) if who in people]
    agent = Agent("ridge", "base:random", seeds=[0], features=60)
    agent.learn("1", task.train_x[rows], task.train_y[rows], people=[task.train_people[i] for i in rows])
    return agent


def test_accuracy_is_on_the_test_records_of_those_who_stay(finished):
    work, result = planned(), read_run(finished).results["ridge"]
    (task,) = work.data
    everyone = set(task.train_people)
    staying = [i for i, who in enumerate(task.test_people) if who not in ("p2", "p16")]
    for number, gone in enumerate([set(), {"p2"}, {"p2", "p16"}]):
        agent = agent_after(work, everyone - gone)
        found = agent.predict("1", task.test_x[staying])[0].argmax(-1)
        share = (found == task.test_y[staying]).double().mean().item()
        assert result.accuracy[number, 0].tolist() == pytest.approx([share, share])


def test_what_is_forgotten_is_tested_on_that_persons_test_records(finished):
    work, result = planned(), read_run(finished).results["ridge"]
    (task,) = work.data
    first = result.forgets[0]
    assert (first.request, first.task, first.records, first.counterfactual) == (2, "", "@p2", "1@p2R")
    mine = [i for i, who in enumerate(task.test_people) if who == "p2"]
    agent = agent_after(work, set(task.train_people) - {"p2"})
    share = (agent.predict("1", task.test_x[mine])[0].argmax(-1) == task.test_y[mine]).double().mean().item()
    assert first.accuracy[0].tolist() == pytest.approx([share, share])
    assert first.counterfactual_accuracy[0].tolist() == pytest.approx([share, share])


def test_the_digest_is_that_of_an_agent_that_never_had_the_person(finished):
    work, result = planned(), read_run(finished).results["ridge"]
    assert [forget.same_digest for forget in result.forgets] == [True, True]
    job = next(job for job in work.jobs["ridge"] if job.name == "ridge--actual--0")
    never = agent_after(work, set(work.data[0].train_people) - {"p2", "p16"})
    assert perform(job, work.data).cost.digests[-1] == never.digest()


class KeepsOneRecord(Ridge):
    """Forgets a person but for one record, which it keeps under nobody's name."""

    name = "keeps-one"

    def forget_records(self, state, scope):
        held = state.held(scope)[0]
        after = super().forget_records(state, scope)
        task, leaves = after.tasks[held.task], dict(after.tasks[held.task].people)
        leaves[()] = held.records.chosen(np.arange(len(held.records)) == 0).to_leaf()
        return after.with_task(held.task, task.with_records(leaves))


def test_agents_whose_digests_are_compared_are_computed_by_one_machine():
    twins = {job.name for job in planned().jobs["ridge"] if job.twin}
    assert {name.partition("--")[2].partition("-")[0] for name in twins} == {"actual", "twin"}


def test_a_digest_that_differs_is_said(monkeypatch):
    monkeypatch.setitem(METHODS, "ridge", KeepsOneRecord)
    work = planned("1R @p2F", seeds=1)
    result = combine(work, "ridge", {job.name: perform(job, work.data) for job in work.jobs["ridge"]})
    assert [forget.same_digest for forget in result.forgets] == [False]


def test_the_report_names_people_digests_and_times(finished, tmp_path):
    found = read_run(finished)
    (row,) = summarise(found)
    assert (row.forgets, row.same_digests) == (2, 2)
    assert row.forget_seconds > 0
    assert [item.what for item in row.forgotten] == ["@p2 in task 1", "@p16 in task 1"]
    assert (row.metrics["js_ratio"].value, row.metrics["irr"].value) == (0.0, 1.0)
    said = " ".join(caveats(found, [row]))
    assert "Ridge 2 of 2 requests" in said
    assert "20 people are learned" in said
    assert "All replicas of both groups give the same answers" in said
    write([found], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "forget @p16" in page
    assert "Digest of never having had them" in page


def test_people_and_a_whole_task_may_be_forgotten_in_one_stream(tmp_path):
    work = planned("1R 2T @p2F 2F 1=3F", 1, ("train=200", "test=150", "features=60", "tasks=2"))
    assert run(work, tmp_path) == {}
    result = read_run(tmp_path).results["ridge"]
    assert result.alive == (("1",), ("1", "2"), ("1", "2"), ("1",), ("1",))
    assert [forget.records for forget in result.forgets] == ["@p2", "", "1=3"]
    assert set(result.forgets[0].in_group) == {"1", "2"}
    assert set(result.forgets[2].in_group) == {"1"}
    assert [forget.same_digest for forget in result.forgets] == [True, None, True]
    assert result.forgets[2].accuracy[0].tolist() == [0.0]  # a label that is gone is never the answer
    (row,) = summarise(read_run(tmp_path))
    assert (row.forgets, len(row.forgotten)) == (2, 4)
    write([read_run(tmp_path)], tmp_path / "report")


def test_a_label_that_is_gone_is_impossible():
    work = planned()
    (task,) = work.data
    agent = agent_after(work, set(task.train_people))
    agent.forget("1", labels=[3])
    found = answers(agent, task, task.test_x[:5])
    assert found.shape == (1, 5, 10)
    assert torch.isneginf(found[..., 3]).all()
    assert found[..., [0, 1, 2, 4]].isfinite().all()


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ("1R @p99F", "people p"),
        ("1R 1=77F", "names no record"),
        ("1R 1A", "have no ids"),
        ("1R 1#r1F", "have no ids"),
    ],
)
def test_requests_about_records_that_are_not_there_are_refused(requests, message):
    with pytest.raises(BadSetting, match=message):
        planned(requests)


def test_a_method_that_learns_records_together_is_refused():
    size = profile("people-digits", "smoke")
    with pytest.raises(CannotForget, match="ridge"):
        plan("people-digits", size, ["ind"], REQUESTS, 1)


def test_who_leaves_is_drawn_without_looking_at_the_data():
    assert default_requests("people-digits", leave=2) == REQUESTS
    assert len(set(leaving("people-hapt", 10))) == 10
    assert default_requests("rot-digits") == "clpu-2022"
    assert default_requests("people-nonsense") == "clpu-2022"


def test_generated_writers_are_always_the_same_and_in_every_split():
    (task,) = tasks("people-digits")
    assert task.train.people[:8].tolist() == tasks("people-digits")[0].train.people[:8].tolist()
    assert set(task.train.people.tolist()) == set(task.test.people.tolist()) == set(range(1, 21))
    assert [t.classes for t in tasks("people-digits", tasks=2)] == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]


def test_results_whose_records_do_not_follow_from_the_requests_are_refused(finished, tmp_path):
    (tmp_path / "results").mkdir()
    content = json.loads((finished / "results" / "ridge.json").read_text())
    content["forgets"][0]["records"] = "@p3"
    (tmp_path / "results" / "ridge.json").write_text(json.dumps(content))
    (tmp_path / "run.json").write_bytes((finished / "run.json").read_bytes())
    with pytest.raises(BadRun, match="do not follow"):
        read_run(tmp_path)


def test_a_person_who_leaves_stays_in_nobodys_active_tasks():
    assert alive_after(Stream("1R @p2F 2T 2F")) == [["1"], ["1"], ["1", "2"], ["1"]]


def test_nobody_left_to_test_is_refused():
    work = planned("1R @p2F", 1)
    (task,) = work.data
    alone = replace(task, test_people=("p2",) * len(task.test_people))
    with pytest.raises(Exception, match="no test record"):
        perform(work.jobs["ridge"][0], [alone])


def test_the_command_needs_nothing_but_the_benchmarks_name(tmp_path):
    size = ["--set", "train=150", "--set", "test=100", "--set", "features=30", "--workers", "1", "--seeds", "1"]
    done = CliRunner().invoke(
        app, ["bench", "people-digits", "--profile", "smoke", *size, "-q", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert "Ridge 10 of 10 requests" in " ".join(done.output.split())
