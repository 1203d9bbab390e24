"""Inputs of any scale: constants of the task's own, tails that do no harm, missing values, and no leak."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clpu import Agent, BadData, BadState, Stream
from clpu.methods import METHODS
from clpu.scaling import GAINS, Scaling, fixed
from clpu.testing import FORGETFUL, TINY, make_task, run_stream

SCALED = {**TINY, "scaling": "auto"}
EXACT = [name for name, method in METHODS.items() if method.forgets_exactly() and method.takes("mlp")]


def scaled_task(task):
    """Each task at its own scale, columns from 1e-3 to 1e4, with a constant column and missing values."""
    x, y = make_task(task)
    x = x.astype(np.float64) * 10.0 ** (3 * (ord(task[0]) % 3)) * np.logspace(-3, 4, x.shape[1])
    x[:, 2] = 5.0
    x[::7, 1] = np.nan
    return x, y


def fitted(x, network="mlp"):
    return Scaling.fitted(torch.tensor(x, dtype=torch.float64), network)


def test_constants_are_those_of_the_values_without_their_tails():
    x = np.random.default_rng(0).standard_t(2, size=(500, 3)) * [1e-3, 1, 1e4] + [0, 5, -1e5]
    low, high = np.quantile(x, [0.01, 0.99], axis=0)
    cut = np.clip(x, low, high)
    found = fitted(x)
    assert np.allclose(found.mean, cut.mean(0))
    assert np.allclose(1 / found.factor, cut.std(0))


def test_values_beyond_three_spreads_grow_with_their_logarithm():
    scaling = Scaling(np.zeros(1), np.ones(1))
    z = torch.tensor([[0.0], [-3.0], [2.5], [-30.0], [3e6]], dtype=torch.float64)
    expected = [0, -3, 2.5, -3 * (1 + np.log(10)), 3 * (1 + np.log(1e6))]
    assert np.allclose(scaling(z).numpy()[:, 0], expected)


@pytest.mark.parametrize("column", [[5.0] * 50, [np.nan] * 50, [1e-300] * 50, [0.1 + 0.2] * 25 + [0.3] * 25])
def test_a_column_that_says_nothing_becomes_zero(column):
    x = np.stack([column, np.linspace(-1, 1, 50)], 1)
    scaling = fitted(x)
    assert (scaling(torch.tensor(x))[:, 0] == 0).all()
    assert (scaling(torch.tensor([[123.0, 0.0]]))[:, 0] == 0).all()


def test_a_rare_value_is_not_taken_for_a_constant():
    x = np.zeros((1000, 2))
    x[500] = 1
    x[:, 1] = np.arange(1000)
    z = fitted(x)(torch.tensor(x))[:, 0]
    assert z[500] > 3
    assert z[0].abs() < 0.1


def test_missing_values_become_the_mean_and_are_left_out_of_the_constants():
    x = np.random.default_rng(0).normal(3, 2, size=(100, 2))
    holes = x.copy()
    holes[::3, 0] = np.nan
    z = fitted(holes)(torch.tensor(holes))
    assert (z[::3, 0] == 0).all()
    present = np.delete(x[:, 0], np.arange(0, 100, 3))
    low, high = np.quantile(present, [0.01, 0.99])
    assert np.isclose(fitted(holes).mean[0], np.clip(present, low, high).mean())


def test_images_are_scaled_by_channel_unless_the_network_is_fully_connected():
    x = np.random.default_rng(0).normal(size=(20, 3, 4, 4)) * np.reshape([1, 10, 100], (3, 1, 1))
    by_channel, by_pixel, alike = fitted(x, "resnet18"), fitted(x), fitted(x[:, 0], "resnet18")
    assert by_channel.mean.shape == (3, 1, 1)
    assert by_pixel.mean.shape == (3, 4, 4)
    assert alike.mean.shape == (1, 1)
    assert np.allclose(1 / by_channel.factor.ravel() / [1, 10, 100], 1, atol=0.15)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(width=32, allow_infinity=False), min_size=3, max_size=3), min_size=2, max_size=30
    ).filter(lambda rows: not np.isnan(rows).all())
)
def test_no_numbers_make_nan_and_the_constants_survive_json(rows):
    x = torch.tensor(rows, dtype=torch.float64)
    scaling = Scaling.fitted(x, "mlp")
    z = scaling(x)
    assert bool(z.isfinite().all())
    assert float(z.abs().max()) < 600
    assert torch.equal(Scaling.from_json(scaling.to_json())(x), z)


def test_the_fixed_transform_is_asinh_at_three_gains_and_an_indicator():
    x = torch.tensor([[1e-3, 1e4], [float("nan"), -2.0]], dtype=torch.float64)
    z = fixed(x).double().numpy()
    filled = np.nan_to_num(x.numpy())
    expected = [*(np.arcsinh(gain * filled) for gain in GAINS), np.isnan(x.numpy())]
    assert np.allclose(z, np.concatenate(expected, 1))


def test_answers_do_not_depend_on_the_scale():
    """A power of two changes no bit of what is learned; the offset is that of the data."""
    x, y = make_task("x")
    one, other = Agent(**SCALED), Agent(**SCALED)
    one.learn("1", x, y)
    other.learn("1", x * 2.0**20, y)
    assert one.state().tasks["1"].own.sha256 == other.state().tasks["1"].own.sha256
    assert (one.predict("1", x) == other.predict("1", x * 2.0**20)).all()


def test_a_population_shares_the_constants():
    x, y = scaled_task("1")
    agents = [Agent("ind", **SCALED, **seeds) for seeds in ({"seed": 3}, {"seeds": [3, 4]})]
    for agent in agents:
        agent.learn("1", x, y)
    first, second = (agent.state().tasks["1"].facts["scaling"] for agent in agents)
    assert first == second
    assert np.allclose(agents[1].predict("1", x)[0], agents[0].predict("1", x), atol=1e-4)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("text", ["1T 1F 2R", *FORGETFUL[3:5]])
def test_scaling_leaves_no_trace_of_a_forgotten_task(method, text):
    stream = Stream(text)
    actual = run_stream(stream, method, scaled_task, **SCALED)
    never = run_stream(stream.counterfactual(), method, scaled_task, **SCALED)
    assert actual.digest() == never.digest()
    x = scaled_task("2")[0]
    assert torch.equal(actual.logits("2", x, 3), never.logits("2", x, 3))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_from_raw_columns(method):
    x, y = scaled_task("1")
    agent = Agent(method, **({"hidden": (16,)} if METHODS[method].takes("mlp") else {}))
    agent.learn("1", x, y)
    assert agent.accuracy("1", x, y) > 0.95
    restored = Agent.from_state(agent.state().to_bytes())
    assert (restored.predict("1", x) == agent.predict("1", x)).all()


def test_nothing_of_the_scale_is_in_what_tasks_share_or_in_the_description():
    agents = [Agent("clpu-der++", **SCALED) for _ in range(2)]
    x, y = make_task("1")
    for agent, factor in zip(agents, (1.0, 1024.0)):
        agent.learn("1", x * factor, y)
    one, other = (agent.state() for agent in agents)
    assert one.about == other.about
    assert one.shared == other.shared


def test_what_cannot_be_scaled_is_refused_and_says_why():
    x, y = make_task("1")
    agent = Agent(**SCALED)
    with pytest.raises(BadData, match="every value of every input is missing"):
        agent.learn("1", np.full_like(x, np.nan), y)
    with pytest.raises(BadData, match="48 of 48 inputs hold infinity"):
        agent.learn("1", np.where(x > 0, np.inf, -np.inf), y)
    agent.learn("1", x, y)
    with pytest.raises(BadData, match=r"these are bytes, which stand for pixels.*x / 255"):
        agent.predict("1", np.zeros((2, 6), dtype=np.uint8))
    with pytest.raises(BadData, match="NaN"):
        Agent(**{**SCALED, "scaling": "none"}).learn("1", np.where(x > 2, np.nan, x), y)


def test_bytes_and_tokens_are_left_alone():
    images = np.random.default_rng(0).integers(0, 256, (48, 6), dtype=np.uint8)
    agent = Agent(**SCALED)
    agent.learn("1", images, make_task("1")[1])
    assert "scaling" not in agent.state().tasks["1"].facts
    module = torch.nn.Sequential(torch.nn.Embedding(256, 2), torch.nn.Flatten())
    tokens = Agent(network=module, epochs=1)
    tokens.learn("1", images.astype(int), make_task("1")[1])
    assert "scaling" not in tokens.state().tasks["1"].facts


@pytest.mark.parametrize(
    "damage",
    [
        {"shape": [7]}, {"mean": [0.0]}, {"factor": [float("nan")] * 6}, {"factor": ["1"] * 6}, {"extra": 1},
        {"shape": None},
    ],
)  # fmt: skip
def test_a_damaged_scaling_is_refused(damage):
    agent = Agent(**SCALED)
    agent.learn("1", *make_task("1"))
    state = agent.state()
    entry = state.tasks["1"]
    facts = {**entry.facts, "scaling": {**entry.facts["scaling"], **damage}}
    with pytest.raises(BadState, match="scaling"):
        Agent.from_state(state.with_task("1", type(entry)("R", facts, entry.own)))
