"""The forms in which data may come, and that the form makes no difference."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from clpu import Agent, BadData, BadNetwork, BadSetting, Stream
from clpu.testing import TINY, make_task, run_stream
from test_bad_input import Pairs

X, Y = make_task("x")


#: One step on all data: how several steps add up depends on how a CPU rounds.
ONE_STEP = {"epochs": 1, "batch_size": 48}


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
    floats = images * np.float32(1 / 255)
    as_bytes, as_floats = (learned(x, Y, lr=1.0, **ONE_STEP) for x in (images, floats))
    answers = as_bytes.predict("1", images)
    assert np.allclose(answers, as_floats.predict("1", floats), rtol=0, atol=2e-6)
    assert not np.allclose(answers, as_floats.predict("1", images * np.float32(1 / 256)), rtol=0, atol=1e-5)


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
    assert agent.accuracy("1", X, np.roll(Y, 1)) < 0.05


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


def pictures(task="1"):
    rng = np.random.default_rng([*task.encode()])
    return rng.integers(0, 256, (24, 3, 8, 8), dtype=np.uint8), np.arange(24) % 2


def test_mean_and_std_normalise_images_of_bytes_and_leave_floats_alone():
    x, y = pictures()
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    normalised = (x / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    inside, outside = (learned(z, y, mean=mean, std=std, lr=0.1, **ONE_STEP) for z in (x, normalised))
    assert np.allclose(inside.predict("1", x), outside.predict("1", normalised), atol=1e-5)
    assert not np.allclose(inside.predict("1", x), learned(x, y, lr=0.1, **ONE_STEP).predict("1", x), atol=1e-3)


def test_augmentation_is_used_in_training_only_and_is_reproducible():
    x, y = pictures()
    augmented = learned(x, y, augment="crop-flip")
    assert augmented.digest() == learned(x, y, augment="crop-flip").digest()
    assert not np.allclose(augmented.predict("1", x), learned(x, y).predict("1", x))
    assert (augmented.predict("1", x) == augmented.predict("1", x)).all()
    # What is kept of a task are its images as they came, not as they were shown.
    kept = augmented.state().tasks["1"].own.tensors["memory/x"][0].numpy()
    assert {image.tobytes() for image in kept} <= {image.tobytes() for image in x}


@pytest.mark.parametrize("method", ["ind", "clpu-der++"])
def test_augmented_training_forgets_exactly(method):
    options = {"network": "resnet18", "width": 1, "epochs": 1, "augment": "crop-flip", "seeds": [1, 2]}
    stream = Stream("1R 2T 3R 2F")
    actual, never = (
        run_stream(stream, method, pictures, **options),
        run_stream(stream.counterfactual(), method, pictures, **options),
    )
    assert actual.digest() == never.digest()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mean": (0.5,)}, BadSetting),
        ({"mean": (0.5,), "std": (0.0,)}, BadSetting),
        ({"mean": ("a",), "std": (1.0,)}, BadSetting),
        ({"mean": (0.5,), "std": (0.5,)}, BadNetwork),
        ({"augment": "crop-flip"}, BadData),
        ({"augment": "blur"}, BadSetting),
    ],
)
def test_normalisation_and_augmentation_that_do_not_fit_are_refused(options, error):
    with pytest.raises(error):
        learned(X, Y, **options)
