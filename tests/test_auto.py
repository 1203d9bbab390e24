"""Settings that follow from the data, and settings of single requests."""

import numpy as np
import pytest

from clpu import Agent, BadSetting, BadState, Diverged, auto
from clpu.testing import TINY, make_task

X, Y = make_task("x")
AUTO = {"epochs": "auto", "batch_size": "auto", "lr": "auto"}


@pytest.mark.parametrize(
    ("examples", "network", "steps"),
    [
        (10, "mlp", 1000), (105, "mlp", 1000), (1257, "mlp", 1600), (14_000, "mlp", 17_520), (60_000, "mlp", 20_000),
        (10**7, "mlp", 312_500), (10_000, "resnet18", 3130), (50, "resnet18", 300), (50_000, "module", 10_000),
    ],
)  # fmt: skip
def test_the_number_of_steps_follows_from_the_number_of_examples(examples, network, steps):
    found = auto.resolved(AUTO, examples, 10, network)
    per_pass = -(-examples // 32)
    assert abs(found["epochs"] * per_pass - steps) <= per_pass / 2
    assert found["epochs"] >= 1


def test_what_is_given_stays():
    assert auto.resolved({"epochs": 3, "batch_size": 8, "lr": 0.5}, 1000, 10, "mlp") == {}
    assert auto.resolved({}, 1000, 10, "mlp") == {}


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("momentum", 0.01), ("adam", 0.001), ("adamw", 0.001)])
def test_the_learning_rate_suits_the_optimizer(optimizer, lr):
    assert auto.resolved({"lr": "auto", "optimizer": optimizer}, 10, 10, "mlp") == {"lr": lr}


@pytest.mark.parametrize(
    ("examples", "inputs", "network", "decay"),
    [(100, 400, "mlp", 0.02), (1000, 100, "mlp", 0.002), (10_000, 10, "mlp", 0.0005), (100, 400, "resnet18", 0.0005)],
)
def test_few_examples_of_many_numbers_get_more_weight_decay(examples, inputs, network, decay):
    found = auto.resolved({"weight_decay": "auto"}, examples, inputs, network)
    assert found == {"weight_decay": pytest.approx(decay)}


def test_the_agent_says_auto_and_the_task_what_it_stood_for():
    agent = Agent("clpu-der++", hidden=(8,))
    agent.learn("1", X, Y, temporary=True)
    assert {name: agent.settings[name] for name in AUTO} == AUTO
    assert agent.state().tasks["1"].facts["settings"] == {
        "batch_size": 32, "epochs": 500, "lr": 0.1, "weight_decay": 0.02 * 6 / 48,
    }  # fmt: skip
    assert agent.state().tasks["1"].facts["steps"] == 1000


def test_auto_is_what_the_rule_says():
    one, other = (
        Agent("ind", hidden=(8,)),
        Agent("ind", hidden=(8,), epochs=500, batch_size=32, lr=0.1, weight_decay=0.02 * 6 / 48),
    )
    for agent in (one, other):
        agent.learn("1", X, Y)
    assert one.state().tasks["1"].own == other.state().tasks["1"].own
    assert "settings" not in other.state().tasks["1"].facts


def test_a_request_may_have_settings_of_its_own():
    agent, other = Agent("clpu-der++", **TINY), Agent("clpu-der++", **{**TINY, "epochs": 5, "weight_decay": 0.1})
    agent.learn("1", X, Y, temporary=True, epochs=5, weight_decay=0.1)
    other.learn("1", X, Y, temporary=True)
    assert agent.state().tasks["1"].own == other.state().tasks["1"].own
    assert agent.state().tasks["1"].facts["settings"] == {"epochs": 5, "weight_decay": 0.1}
    for both in (agent, other):
        both.keep("1")
    assert agent.state().shared == other.state().shared, "keep uses the settings that the task was learned with"
    agent.learn("2", X, Y)
    assert "settings" not in agent.state().tasks["2"].facts


def test_a_request_with_a_setting_that_does_not_exist_changes_nothing():
    agent = Agent(**TINY)
    before = agent.digest()
    with pytest.raises(BadSetting, match="'lr'"):
        agent.learn("1", X, Y, learning_rate=0.1)
    with pytest.raises(BadSetting, match="at least 1"):
        agent.learn("1", X, Y, epochs=0)
    assert agent.digest() == before


def test_a_learning_rate_that_diverges_is_lowered_if_it_is_auto():
    x = X * 1e6
    agent = Agent("ind", hidden=(8,), scaling="none", epochs=20)
    agent.learn("1", X * 30, Y)
    found = agent.state().tasks["1"].facts["settings"]["lr"]
    assert found in [0.1 / 4**n for n in range(4)]
    with pytest.raises(Diverged):
        Agent("ind", **{**TINY, "lr": 1e20}).learn("1", x, Y)


def test_divergence_is_tried_again_with_a_quarter_of_the_rate(monkeypatch):
    rates = []

    def learn(self, state, task, data, temporary):
        rates.append(self.settings.lr)
        if len(rates) < 3:
            raise Diverged("too fast")
        return original(self, state, task, data, temporary)

    from clpu.methods.ind import Ind

    original = Ind.learn
    monkeypatch.setattr(Ind, "learn", learn)
    agent = Agent("ind", hidden=(8,), epochs=1)
    agent.learn("1", X, Y)
    assert np.allclose(rates, [0.1, 0.025, 0.00625])
    assert agent.state().tasks["1"].facts["settings"]["lr"] == rates[-1]


@pytest.mark.parametrize("settings", [{"epochs": 0}, {"epochs": "auto"}, {"nonsense": 1}, [1], "epochs", {"lr": "x"}])
def test_damaged_settings_of_a_task_are_refused(settings):
    agent = Agent("ind", **TINY)
    agent.learn("1", X, Y)
    state = agent.state()
    entry = state.tasks["1"]
    broken = type(entry)("R", {**entry.facts, "settings": settings}, entry.own)
    with pytest.raises(BadState, match="settings of task '1'"):
        Agent.from_state(state.with_task("1", broken))
