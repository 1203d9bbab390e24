"""How good a task was learned: a part of its data is held out, record by record."""

import numpy as np
import pytest
import torch

from clpu import Agent, BadSetting, BadState, CannotForget, UnknownTask
from clpu.holdout import chosen, with_every_class
from clpu.methods import METHODS
from clpu.outcome import HeldOut
from clpu.testing import TINY, make_task

X, Y = make_task("x", 300)


def test_about_the_share_asked_for_is_held_out_and_each_record_by_itself():
    x = torch.tensor(X)
    held = chosen(x, 0.2, 0, "task")
    assert 0.12 < held.mean() < 0.28
    some = np.array([3, 250, 7, 7])
    assert (chosen(x[some], 0.2, 0, "task") == held[some]).all(), "which side a record is on depends on the others"
    assert (chosen(x, 0.3, 0, "task") >= held).all()


def test_the_side_depends_on_the_key():
    x = torch.tensor(X)
    sides = [chosen(x, 0.5, seed, task).tolist() for seed, task in ((0, "a"), (1, "a"), (0, "b"))]
    assert len({tuple(side) for side in sides}) == 3


def test_a_class_is_never_held_out_as_a_whole():
    held = with_every_class(np.array([True, True, False, True]), np.array([0, 0, 1, 1]))
    assert held.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("n", "correct", "low", "high"), [(50, 45, 0.7864, 0.9565), (10, 10, 0.7225, 1.0), (8, 0, 0.0, 0.3244)]
)
def test_the_interval_is_wilsons(n, correct, low, high):
    """Values of statsmodels' proportion_confint(method="wilson")."""
    assert np.allclose(HeldOut(n, correct, 0).interval, (low, high), atol=1e-4)


def test_the_figure_is_the_accuracy_on_what_was_not_learned_from():
    agent = Agent("ind", **{**TINY, "epochs": 30, "lr": 0.1})
    outcome = agent.learn("1", X, Y, holdout=0.25)
    held = chosen(torch.tensor(X), 0.25, 0, "1")
    without = Agent("ind", **{**TINY, "epochs": 30, "lr": 0.1})
    without.learn("1", X[~held], Y[~held])
    assert without.state().tasks["1"].own == agent.state().tasks["1"].own
    found = outcome.held_out
    assert found.examples == held.sum()
    assert found.accuracy == pytest.approx(agent.accuracy("1", X[held], Y[held]))
    assert found.better
    most = np.bincount(Y[~held]).argmax()
    assert found.largest == pytest.approx((Y[held] == most).mean())
    assert HeldOut.from_facts(agent.state().tasks["1"].facts) == found
    assert f"of {held.sum()} held-out examples" in str(found)


def test_nothing_is_held_out_unless_asked_for():
    agent = Agent("ind", **TINY)
    assert agent.learn("1", X, Y).held_out is None
    assert "held_out" not in agent.state().tasks["1"].facts


def test_labels_that_mean_nothing_are_found_out():
    rng = np.random.default_rng(0)
    agent = Agent("ind", **TINY)
    found = agent.learn("1", rng.normal(size=(400, 5)), rng.random(400) < 0.1, holdout=0.3).held_out
    assert not found.better
    assert found.largest > 0.8


def test_a_population_is_judged_by_its_mean():
    agent = Agent("ind", seeds=[0, 1], **TINY)
    found = agent.learn("1", X, Y, holdout=0.3).held_out
    held = chosen(torch.tensor(X), 0.3, 0, "1")
    assert found.accuracy == pytest.approx(agent.accuracy("1", X[held], Y[held]).mean())


@pytest.mark.parametrize("share", [1, -0.1, "a", True, float("nan")])
def test_an_absurd_share_is_refused(share):
    agent = Agent(**TINY)
    with pytest.raises(BadSetting, match="holdout"):
        agent.learn("1", X, Y, holdout=share)
    assert agent.tasks == {}


def test_where_single_records_can_leave_the_figure_is_told_and_not_kept():
    """Without the records of one person it would be different, and would reveal that they existed."""
    people = [f"p{i % 10}" for i in range(300)]
    agent, never = Agent("ridge", network="base:raw"), Agent("ridge", network="base:raw")
    result = agent.learn("1", X, Y, people=people, holdout=0.3).held_out
    assert result.accuracy > 0.9
    agent.forget(person="p3")
    rest = np.array(people) != "p3"
    never.learn("1", X[rest], Y[rest], people=[p for p in people if p != "p3"], holdout=0.3)
    assert agent.digest() == never.digest()


@pytest.mark.parametrize(
    "result",
    [3, {}, {"examples": 0, "correct": 0.0, "most_frequent": 0}, {"examples": 5, "correct": 9.0, "most_frequent": 0}],
)
def test_a_damaged_result_is_refused(result):
    agent = Agent("ind", **TINY)
    agent.learn("1", X, Y)
    state = agent.state()
    entry = state.tasks["1"]
    broken = type(entry)("R", {**entry.facts, "held_out": result}, entry.own)
    with pytest.raises(BadState, match="held-out"):
        Agent.from_state(state.with_task("1", broken))


@pytest.mark.parametrize(("method", "temporary"), [("ind", False), ("ind", True), ("clpu-der++", True)])
def test_relearning_is_as_if_the_first_time_had_not_been(method, temporary):
    other = make_task("other", 60, 4)
    agent, once = Agent(method, **TINY), Agent(method, **TINY)
    for each in (agent, once):
        each.learn("before", X, Y)
    agent.learn("1", 1000 * X, Y, temporary=temporary)
    agent.relearn("1", *other, epochs=3)
    once.learn("1", *other, temporary=temporary, epochs=3)
    assert agent.digest() == once.digest()
    assert agent.tasks == once.tasks


def test_what_cannot_be_forgotten_cannot_be_relearned():
    for method in METHODS:
        agent = Agent(method, **(TINY if METHODS[method].forgets != "records" else {}))
        agent.learn("1", X, Y)
        before = agent.digest()
        if METHODS[method].forgets not in ("tasks", "records"):
            with pytest.raises(CannotForget):
                agent.relearn("1", X, Y)
        with pytest.raises(UnknownTask):
            agent.relearn("2", X, Y)
        assert agent.digest() == before


def test_a_refused_relearning_leaves_the_task_as_it_was():
    agent = Agent("ind", **TINY)
    agent.learn("1", X, Y)
    before = agent.digest()
    with pytest.raises(BadSetting):
        agent.relearn("1", X, Y, nonsense=3)
    assert agent.digest() == before


def test_balanced_classes_are_seen_equally_often():
    from clpu.learning.batches import Batches, Examples

    y = torch.tensor([0] * 50 + [1] * 7 + [2] * 3)
    data = Examples(torch.arange(60.0)[:, None], y, (0, 1, 2))
    for epoch in range(2):
        sources = [torch.Generator().manual_seed(s + epoch) for s in (0, 1)]
        for k in range(2):
            rows = torch.cat([batch.index[k] for batch in Batches(data, 1, 16, sources, balanced=True)])
            assert torch.bincount(y[rows]).tolist() == [20, 20, 20]
            zeros = rows[y[rows] == 0]
            assert len(zeros.unique()) == 20, "no example is repeated while others have not been seen"
            assert rows.tolist() != rows.sort().values.tolist()


def test_balanced_training_finds_a_rare_class():
    rng = np.random.default_rng(1)
    y = (rng.random(2000) < 0.05).astype(int)
    x = rng.normal(size=(2000, 4)) + 1.2 * y[:, None]
    plain, balanced = Agent("ind", epochs=10), Agent("ind", epochs=10, class_weight="balanced")
    recall = []
    for agent in (plain, balanced):
        agent.learn("1", x[:1000], y[:1000])
        found = agent.classify("1", x[1000:])
        recall.append((found[y[1000:] == 1] == 1).mean())
    assert recall[1] > recall[0] + 0.1
