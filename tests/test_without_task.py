"""Predictions without naming the task: over all pairs of task and label, and "none of these"."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from clpu import Agent, BadState, UnknownTask
from clpu.methods import METHODS
from clpu.testing import TINY, make_task, run_stream, tiny

SIZE = 16


def task(name):
    return make_task(name, 90, 3, SIZE)


def taught(method="ind", **options):
    agent = Agent(method, **{**TINY, "epochs": 60, "lr": 0.1, **options})
    agent.learn("1", *task("1"))
    agent.learn("2", task("2")[0], np.array(["a", "b", "c"])[task("2")[1] // 10], temporary=True)
    return agent


@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_without_a_task(method):
    agent = run_stream("1R 2T", method, **tiny(method))
    x = make_task("1")[0]
    p = agent.predict(None, x)
    assert agent.labels(None) == (("1", 7), ("1", 17), ("1", 27), ("2", 7), ("2", 17), ("2", 27), None)
    assert p.shape == (48, 7)
    assert np.allclose(p.sum(-1), 1)
    assert {*agent.classify(None, x)} <= {*agent.labels(None)}


def test_the_formula_is_the_documented_one():
    agent = taught()
    x, own = task("2")[0], {name: task(name)[0] for name in ("1", "2")}
    columns = []
    for name in agent.tasks:
        z, mine = (agent.logits(name, a).double().numpy() for a in (x, own[name]))
        middle, low = np.quantile(logsumexp(mine, -1), [0.5, 0.05])
        familiarity = (logsumexp(z, -1) - middle) / (middle - low)
        columns.append(3 * familiarity[:, None] + np.log(softmax(z, -1)))
    columns.append(np.full((len(x), 1), -3.0))
    assert np.allclose(agent.predict(None, x), softmax(np.concatenate(columns, 1), -1), atol=1e-6)


@pytest.mark.parametrize("scaling", ["none", "task"])
def test_five_percent_of_a_tasks_own_data_are_unfamiliar(scaling):
    """With scaling there are two reasons to find an input unfamiliar; together they give 5 %, not 10."""
    x = np.random.default_rng(0).normal(size=(400, 6))
    agent = Agent("ind", **{**TINY, "scaling": scaling, "epochs": 20, "lr": 0.1})
    agent.learn("1", x, x[:, 0] > 0)
    share = np.mean([answer is None for answer in agent.classify(None, x)])
    assert 0.02 < share <= 0.055


def test_an_input_is_ascribed_to_the_task_that_knows_it():
    agent = taught()
    for name in agent.tasks:
        x, _ = task(name)
        answers = agent.classify(None, x)
        assert np.mean([answer is not None and answer[0] == name for answer in answers]) > 0.85
        named = agent.classify(name, x)
        right = [answer == (name, label) for answer, label in zip(answers, named.tolist()) if answer is not None]
        assert np.mean(right) > 0.9


def test_what_no_task_knows_is_none_of_these():
    agent = taught()
    answers = agent.classify(None, np.zeros((5, SIZE)))
    assert answers == [None] * 5
    assert (agent.predict(None, np.zeros((5, SIZE)))[:, -1] > 0.5).all()


def test_a_population_has_a_replica_axis():
    agent = taught(seeds=[0, 1])
    x = task("1")[0]
    assert agent.predict(None, x).shape == (2, 90, 7)
    assert [len(row) for row in agent.classify(None, x)] == [90, 90]
    one = taught(seed=1)
    assert np.allclose(agent.predict(None, x)[1], one.predict(None, x), atol=1e-2)


def test_without_tasks_there_is_nothing_to_tell_apart():
    with pytest.raises(UnknownTask, match="learn one first"):
        Agent().predict(None, np.zeros((1, 3)))
    assert Agent().labels(None) == (None,)


def test_a_forgotten_task_is_not_among_the_answers():
    agent, never = taught(), Agent("ind", **{**TINY, "epochs": 60, "lr": 0.1})
    never.learn("1", *task("1"))
    agent.forget("2")
    x = task("2")[0]
    assert agent.labels(None) == never.labels(None)
    assert (agent.predict(None, x) == never.predict(None, x)).all()


def test_tensors_are_answered_with_tensors():
    assert isinstance(taught().predict(None, torch.zeros(1, SIZE)), torch.Tensor)


@pytest.mark.parametrize("energy", [[], [[1.0]], [[1.0, "a"]], [[1.0, float("nan")]], [[1.0, 0.5], [1.0, 0.5]], 3])
def test_a_damaged_calibration_is_refused(energy):
    state = taught().state()
    entry = state.tasks["1"]
    broken = type(entry)("R", {**entry.facts, "familiar": {"energy": energy}}, entry.own)
    with pytest.raises(BadState, match="calibration"):
        Agent.from_state(state.with_task("1", broken))
