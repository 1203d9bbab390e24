"""Labels keep their names and types, from learning to the answer."""

import numpy as np
import pytest
import torch

from clpu import Agent, BadData, BadState
from clpu.state import State
from clpu.testing import TINY, make_task

X, Y = make_task("x")
NAMES = np.array(["ant", "bee", "cat"])[(Y - 7) // 10]
FORMS = {
    "text": NAMES,
    "a list of text": NAMES.tolist(),
    "objects": NAMES.astype(object),
    "integers": Y,
    "booleans": Y > 7,
    "a tensor of booleans": torch.tensor(Y > 7),
    "negative integers": -Y,
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_labels_as_they_were_given(form):
    y = FORMS[form]
    agent = Agent(**{**TINY, "epochs": 30, "lr": 0.1})
    agent.learn("1", X, y)
    expected = np.asarray(y)
    kinds = {type(label) for label in agent.labels("1")}
    assert kinds == {type(expected.ravel()[0].item() if hasattr(expected.ravel()[0], "item") else expected[0])}
    assert list(agent.labels("1")) == sorted(set(expected.tolist()))
    assert (agent.classify("1", X) == expected).mean() > 0.95
    assert agent.accuracy("1", X, y) > 0.95
    again = Agent.from_state(agent.state().to_bytes())
    assert again.labels("1") == agent.labels("1")
    assert (again.classify("1", X) == agent.classify("1", X)).all()


def test_names_make_no_difference_to_what_is_learned():
    """Classes are numbered in ascending order of the label, whatever the labels are."""
    by_name, by_number = Agent(**TINY), Agent(**TINY)
    by_name.learn("1", X, NAMES)
    by_number.learn("1", X, Y)
    assert by_name.state().tasks["1"].own.sha256 == by_number.state().tasks["1"].own.sha256


def test_a_population_classifies_with_a_replica_axis():
    agent = Agent(**TINY, seeds=[0, 1])
    agent.learn("1", X, NAMES)
    assert agent.classify("1", X).shape == (2, 48)


def test_labels_that_were_never_taught_are_named():
    agent = Agent(**TINY)
    agent.learn("1", X, NAMES)
    with pytest.raises(BadData, match=r"was not taught the labels 'dog', 'elk'; its labels are 'ant', 'bee', 'cat'"):
        agent.accuracy("1", X, np.where(NAMES == "ant", "elk", "dog"))
    with pytest.raises(BadData, match="was not taught the labels 7, 17, 27"):
        agent.accuracy("1", X, Y)


def test_test_data_may_lack_classes():
    agent = Agent(**{**TINY, "epochs": 30, "lr": 0.1})
    agent.learn("1", X, NAMES)
    some = NAMES != "ant"
    assert agent.accuracy("1", X[some], NAMES[some]) > 0.9


@pytest.mark.parametrize("labels", [["b", "a"], ["a", 1], [1, True], [0.5, 1.5], ["a", "a"], [None], [2**64, 2**65]])
def test_saved_states_with_other_labels_are_refused(labels):
    agent = Agent("ind", **TINY)
    agent.learn("1", X, Y)
    state = agent.state()
    described = state.tasks["1"].facts
    changed = State(
        state.about, state.shared, {"1": type(state.tasks["1"])("R", {**described, "labels": labels}, None)}
    )
    with pytest.raises(BadState, match="labels"):
        Agent.from_state(changed)
