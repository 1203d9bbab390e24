"""Audits of people: one who is forgotten exactly leaves no trace, and every way of not quite forgetting is found."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module
from typer.testing import CliRunner

from clpu import BadData, Stream
from clpu.audit import run as auditing
from clpu.audit.api import audit
from clpu.audit.bitwise import describe_parts
from clpu.audit.page import page
from clpu.audit.plan import Design, forgotten_in, plan
from clpu.audit.probes import forgotten_part, some_people, without
from clpu.audit.residue import residue
from clpu.audit.tables import markdown
from clpu.audit.verdict import EXACT, NONE, TRACE
from clpu.cli import app
from clpu.methods.ridge import Ridge
from clpu.runs.jobs import TaskData
from clpu.runs.profiles import profile, with_overrides
from clpu.store.durable import DurableAgent
from clpu.testing import make_task

PEOPLE = [f"p{i}" for i in range(6)]


def people_task(name, examples=60):
    """A task with a test set, the records of six people, of whom p0 is different from the others."""
    x, y = make_task(name, 2 * examples)
    who = np.array([PEOPLE[i % 7 % 6] for i in range(len(y))])
    y = np.where((who == "p0") & (y == 7), 17, y)
    return (x[:examples], y[:examples], x[examples:], y[examples:], list(who[:examples]), list(who[examples:]))


TASKS = {name: people_task(name) for name in ("1", "2")}


def audited(method, requests="1R @p0F", runs=4, tasks=TASKS):
    return audit(method, tasks, requests, runs=runs, network="base:random", features=40)


def test_a_forgotten_person_leaves_no_trace():
    result = audited("ridge", "1R 2T @p0F 2F @p3F", runs=8)
    assert result.verdict.kind == EXACT
    assert "never had the records" in result.verdict.explanation
    found = result.findings
    assert [(f.request, f.what) for f in found.forgets] == [(3, "1@p0"), (3, "2@p0"), (4, "2"), (5, "1@p3")]
    assert {a.name for a in found.forgets[0].attacks} == {
        *("outputs", "side effects", "membership", "threshold", "relapse")
    }
    assert not any(attack.found for attack in found.attacks)


class StaleSums(Ridge):
    """Takes a person's rows away, but goes on answering from the sums and weights that it had."""

    name = "stale-sums"

    def forget_records(self, state, scope):
        after = super().forget_records(state, scope)
        for name, task in after.tasks.items():
            known = self.sums(state.tasks[name])
            task.records.derived("sums", lambda known=known: known)
        return after

    def carry(self, before, after, records, sign):
        """Nothing: what was derived before is kept."""


class KeptForNobody(Ridge):
    """Keeps the records of a person who leaves, without the name."""

    name = "kept-for-nobody"

    def forget_records(self, state, scope):
        gone = state.held(scope)
        after = super().forget_records(state, scope)
        for held in gone:
            task = after.tasks[held.task]
            leaves = {**task.people, (): held.records.chosen(held.chosen).to_leaf()}
            after = after.with_task(held.task, task.with_records(leaves))
        return after


class CountsLeavers(Ridge):
    """Counts in the facts of a task how many people have left it."""

    name = "counts-leavers"

    def forget_records(self, state, scope):
        after = super().forget_records(state, scope)
        for held in state.held(scope):
            task = after.tasks[held.task]
            after = after.with_task(
                held.task, replace(task, facts={**task.facts, "left": task.facts.get("left", 0) + 1})
            )
        return after


@pytest.mark.parametrize(
    ("method", "part"),
    [
        (StaleSums, "answers for task 1"),
        (KeptForNobody, "records about nobody in particular in task 1"),
        (CountsLeavers, "facts of task 1"),
    ],
)
def test_a_method_that_does_not_quite_forget_a_person_is_caught(method, part):
    result = audited(method)
    assert result.verdict.kind == TRACE
    assert result.verdict.by[0] == "bitwise"
    assert part in describe_parts(result.findings.bits[0].differing)


def test_answers_from_stale_sums_are_found_by_attacks_and_not_by_the_digest():
    """The rows are gone, so the digest is that of never having had them; only answers tell."""
    result = audited(StaleSums, runs=16)
    bits = result.findings.bits[0]
    assert bits.digest == bits.digest_counterfactual
    assert "membership" in result.verdict.by


def test_a_method_that_is_not_declared_exact_is_judged_by_attacks():
    class Undeclared(KeptForNobody):
        name, forgets = "undeclared", "records"

    result = audited(Undeclared, runs=16)
    found = replace(result.findings, declared_exact=False)
    from clpu.audit.verdict import verdict

    assert verdict(found).kind == TRACE
    assert "membership" in verdict(found).by
    quiet = replace(found, forgets=tuple(replace(f, attacks=()) for f in found.forgets))
    assert verdict(quiet).kind == NONE


def planned(requests="1R @p2F", *overrides):
    texts = ["train=200", "test=150", "features=40", *overrides]
    size = with_overrides(profile("people-digits", "smoke"), texts, {"ridge": ["features"]})
    return plan("people-digits", size, ["ridge"], Design(runs=4, images=30, members=30, stops=4), requests)


def test_an_audit_of_people_is_written_read_and_shown(tmp_path):
    assert auditing.run(planned(), tmp_path) == {}
    found = auditing.read_audit(tmp_path)
    assert "Ridge | exact (proved bitwise) | equal" in markdown(found)
    drawn = page(found)
    assert "Does a forgotten person leave a trace?" in drawn
    assert "1@p2" in drawn
    assert "or the method has no network" in drawn


def test_every_agent_knows_other_people_but_all_know_those_who_leave():
    (task,) = planned().data
    seen = [some_people(task, seed, ["@p2F"]) for seed in range(4)]
    known = [frozenset(one.train_people) for one in seen]
    assert len(set(known)) == 4
    assert all("p2" in one and 4 <= len(one) < 20 for one in known)
    assert frozenset(some_people(task, 2, ["@p2F"]).train_people) == known[2]
    assert len(seen[0].train_x) == len(seen[0].train_y) == len(seen[0].train_people)
    assert seen[0].test_people == task.test_people


def test_what_is_learned_later_has_nobody_in_it_who_left():
    (task,) = planned().data
    assert set(without(task, ["@p2F", "@p5F"]).train_people) == {*task.train_people} - {"p2", "p5"}


def test_a_person_without_test_records_is_tested_on_training_records():
    (task,) = planned().data
    gone = forgotten_part(replace(task, test_people=("p1",) * len(task.test_people)), "@p2")
    assert set(gone.train_people) == {"p2"}
    assert gone.test_x.equal(gone.train_x)


def test_what_is_looked_at_is_where_a_person_has_records():
    work = planned("1R 2R @p2F", "tasks=2")
    assert forgotten_in(Stream("1R 2R @p2F"), 3, work.data) == [("1", "@p2"), ("2", "@p2")]
    assert forgotten_in(Stream("1R 2R 2F @p2F"), 4, work.data) == [("1", "@p2")]
    alone = [work.data[0], replace(work.data[1], train_people=("p1",) * len(work.data[1].train_y))]
    assert forgotten_in(Stream("1R 2R @p2F"), 3, alone) == [("1", "@p2")]


def test_the_disk_has_nothing_of_a_forgotten_person():
    work = planned()
    assert residue("ridge", Stream("1R @p2F"), work.data, "base:random", work.recipe.settings["ridge"]) == ()


def test_the_search_would_find_what_is_held_of_a_person(monkeypatch):
    """A store that does not forget: the person's name and features are in what its keys decrypt."""
    monkeypatch.setattr(DurableAgent, "forget", lambda self, *_, **__: None)
    work = planned()
    found = residue("ridge", Stream("1R @p2F"), work.data, "base:random", work.recipe.settings["ridge"])
    assert any("@p2 after request 2: its name" in text for text in found)
    assert any("@p2 after request 2: features" in text and "decrypted" in text for text in found)


def test_people_must_be_named_for_every_record():
    with pytest.raises(BadData, match="one person per record"):
        audited("ridge", tasks={"1": (*TASKS["1"][:4], ["p0"], ["p0"])})


def test_a_benchmarks_tasks_bring_their_people():
    from clpu.audit.api import _named, _task
    from clpu.data import tasks

    ((name, arrays),) = _named(tasks("people-digits"))
    made = _task(name, arrays, "base:random", False)
    assert isinstance(made, TaskData)
    assert made.train_people[:2] == tuple(arrays[4][:2])
    assert made.train_people[0].startswith("p")


def test_the_command_audits_people_without_any_download(tmp_path):
    size = ["--set", "train=200", "--set", "test=100", "--set", "features=30", "--workers", "1", "--runs", "4"]
    arguments = ["audit", "people-digits", "--profile", "smoke", *size, "--requests", "1R @p2F", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "exact (proved bitwise)" in done.output
    assert "16 agents to train" not in done.output
    shutil.rmtree(tmp_path)
