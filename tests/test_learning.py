"""Learning works on real data: handwritten digits at five angles, the default stream, the settings of the demo."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import clpu
import clpu.data
from clpu.testing import go_on

SETTINGS = {"epochs": 10, "lr": 0.1, "seeds": range(4)}
TASKS = {task.name: task for task in clpu.data.tasks("rot-digits")}


def data(task):
    return TASKS[task].train.x, TASKS[task].train.y


def accuracy(agent, task):
    return agent.accuracy(task, TASKS[task].test.x, TASKS[task].test.y)


@pytest.fixture(scope="module")
def before_merge():
    return go_on(clpu.Agent("clpu-der++", **SETTINGS), "1R 2T 3T 4R", data)


def test_a_single_task_is_learned_at_least_as_well_as_by_logistic_regression():
    agent = go_on(clpu.Agent("seq", **{**SETTINGS, "epochs": 30}), "1R", data)
    x, y = data("1")
    linear = LogisticRegression(max_iter=500).fit(x.reshape(len(x), -1) / 255, y)
    task = TASKS["1"]
    baseline = linear.score(task.test.x.reshape(len(task.test.x), -1) / 255, task.test.y)
    assert accuracy(agent, "1").mean() >= baseline - 0.005


def test_every_remembered_task_stays_above_90_percent(before_merge):
    agent = go_on(before_merge.copy(), "2R 3F 5T 5F", data)
    assert agent.tasks == {"1": "R", "2": "R", "4": "R"}
    for task in agent.tasks:
        assert accuracy(agent, task).mean() > 0.90, task


def test_a_merge_costs_at_most_a_few_points(before_merge):
    agent = before_merge.copy()
    agent.keep("2")
    assert accuracy(agent, "2").mean() > accuracy(before_merge, "2").mean() - 0.04


def test_a_temporary_network_that_starts_from_the_main_one_is_at_least_as_good_as_one_from_scratch(before_merge):
    scratch = go_on(clpu.Agent("clpu-der++-scratch", **SETTINGS), "1R 2T 3T", data)
    for task in ("2", "3"):
        assert accuracy(before_merge, task).mean() >= accuracy(scratch, task).mean()


def test_rehearsal_protects_what_plain_descent_forgets():
    """On permuted digits, where tasks share nothing."""
    tasks = {t.name: t for t in clpu.data.tasks("perm-digits")}

    def permuted(task):
        return tasks[task].train.x, tasks[task].train.y

    first = {
        method: np.mean(
            go_on(clpu.Agent(method, **SETTINGS), "1R 2R 3R", permuted).accuracy(
                "1", tasks["1"].test.x, tasks["1"].test.y
            )
        )
        for method in ("seq", "clpu-der++")
    }
    assert first["clpu-der++"] > first["seq"] + 0.1
