"""The forms in which data may come, and that the form makes no difference."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from clpu import Agent
from clpu.testing import TINY, make_task
from test_bad_input import Pairs

X, Y = make_task("x")


def learned(x, y=None, **options):
    agent = Agent(**{**TINY, **options})
    agent.learn("1", x, y)
    return agent


@pytest.mark.parametrize(
    "form",
    [
        (torch.tensor(X), torch.tensor(Y)),
        (X.astype(np.float64), Y.astype(np.int8)),
        (X.astype(">f4"), Y.astype(">i8")),
        (np.asfortranarray(X), Y[::-1][::-1]),
        (X.tolist(), Y.tolist()),
        (torch.tensor(X, requires_grad=True), Y.astype(np.uint64)),
        (TensorDataset(torch.tensor(X), torch.tensor(Y)), None),
        (Pairs(list(zip(X, Y))), None),
        (Pairs([(torch.tensor(x), int(y)) for x, y in zip(X, Y)]), None),
    ],
)
def test_the_form_of_the_data_makes_no_difference(form):
    assert learned(*form).digest() == learned(X, Y).digest()


def test_read_only_arrays_are_taken_without_a_warning():
    x = X.copy()
    x.flags.writeable = False
    assert learned(x, Y).digest() == learned(X, Y).digest()


def test_bytes_are_images_from_0_to_1():
    images = np.random.default_rng(0).integers(0, 256, (48, 5, 5), dtype=np.uint8)
    as_bytes, as_floats = learned(images, Y), learned((images * np.float32(1 / 255)), Y)
    assert np.allclose(as_bytes.predict("1", images), as_floats.predict("1", images * np.float32(1 / 255)), atol=1e-5)


def test_tensors_are_answered_with_tensors_and_arrays_with_arrays():
    agent = learned(X, Y)
    assert isinstance(agent.predict("1", torch.tensor(X)), torch.Tensor)
    assert isinstance(agent.predict("1", X), np.ndarray)
    assert agent.predict("1", X).shape == (48, 3)
    assert agent.labels("1") == (7, 17, 27)


def test_a_population_answers_with_a_replica_axis():
    agent = learned(X, Y, seeds=range(4))
    assert agent.predict("1", X).shape == (4, 48, 3)
    assert agent.accuracy("1", X, Y).shape == (4,)
    assert agent.logits("never", X, 5).shape == (4, 48, 5)


def test_accuracy_counts_labels_not_columns():
    agent = learned(X, Y, epochs=30, lr=0.1)
    assert agent.accuracy("1", X, Y) > 0.95
    assert agent.accuracy("1", X, Y // 10) == 0.0


def test_large_inputs_are_predicted_piece_by_piece_like_small_ones():
    agent = learned(X, Y)
    many = np.tile(X, (50, 1))
    assert np.allclose(agent.predict("1", many)[:48], agent.predict("1", X), atol=1e-6)


def test_whole_numbers_reach_a_users_module_as_they_are():
    tokens = np.random.default_rng(0).integers(0, 9, (40, 4))
    module = torch.nn.Sequential(torch.nn.Embedding(9, 5), torch.nn.Flatten())
    agent = Agent(network=module, epochs=1)
    agent.learn("1", tokens, tokens[:, 0] > 4)
    assert agent.predict("1", tokens).shape == (40, 2)
    agent.learn("2", tokens, tokens[:, 1] > 4, temporary=True)
    agent.keep("2")
    assert Agent.from_state(agent.state().to_bytes(), network=module).digest() == agent.digest()


def test_a_users_module_is_left_alone():
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    before = {name: t.clone() for name, t in module.state_dict().items()}
    agent = Agent("der++", network=module, epochs=2)
    agent.learn("1", X, Y)
    agent.learn("2", X, Y)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert module.training


def test_what_the_user_set_globally_makes_no_difference():
    expected = learned(X, Y).digest()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert learned(X, Y).digest() == expected
        with torch.inference_mode():
            assert learned(X, Y).digest() == expected
    finally:
        torch.set_default_dtype(torch.float32)
