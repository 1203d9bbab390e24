"""Exact means bitwise: the state and every output after any stream equal those after its counterfactual."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import clpu
from clpu.testing import TINY, make_task, run_stream
from strategies import streams

TRAINED = {name: method for name, method in clpu.METHODS.items() if method.takes("mlp")}
EXACT = [name for name, method in TRAINED.items() if method.forgets_exactly()]
LEAKY = [name for name, method in TRAINED.items() if not method.forgets_exactly()]
ASKED = ["1", "2", "3", "4", "5", "never seen"]


def images(task):
    rng = np.random.default_rng([*task.encode()])
    return rng.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8), np.arange(12) % 2


def assert_no_trace(stream, method, data, classes, **options):
    actual, never = (
        run_stream(stream, method, data, **options),
        run_stream(stream.counterfactual(), method, data, **options),
    )
    assert actual.tasks == never.tasks
    assert actual.digest() == never.digest()
    assert actual.state().to_bytes() == never.state().to_bytes()
    for task in ASKED:
        x = data(task)[0]
        assert torch.equal(actual.logits(task, x, classes), never.logits(task, x, classes)), task


@pytest.mark.parametrize("method", EXACT)
@given(stream=streams())
@settings(max_examples=40)
def test_any_stream_equals_its_counterfactual(method, stream):
    assert_no_trace(stream, method, make_task, 3, **TINY)


@pytest.mark.parametrize("method", [name for name in EXACT if clpu.METHODS[name].forgets in ("tasks", "records")])
@given(stream=streams(forgets="tasks"))
@settings(max_examples=20)
def test_any_stream_that_forgets_permanent_tasks_too_equals_its_counterfactual(method, stream):
    assert_no_trace(stream, method, make_task, 3, **TINY)


@given(stream=streams(forgets="tasks"))
@settings(max_examples=20)
def test_any_stream_equals_its_counterfactual_where_records_are_summed(stream):
    assert_no_trace(stream, "ridge", make_task, 3)
    assert_no_trace(stream, "ridge", make_task, 3, network="base:raw", expand=20)


@pytest.mark.parametrize("method", EXACT)
@given(stream=streams(longest=7))
@settings(max_examples=5)
def test_any_stream_equals_its_counterfactual_with_batchnorm(method, stream):
    assert_no_trace(stream, method, images, 2, network="resnet18", width=2, epochs=1, batch_size=8)


@pytest.mark.parametrize("method", EXACT)
@given(stream=streams(longest=7))
@settings(max_examples=8)
def test_any_stream_equals_its_counterfactual_for_a_population(method, stream):
    assert_no_trace(stream, method, make_task, 3, seeds=[0, 7, 21], **TINY)


@pytest.mark.parametrize("method", EXACT)
@given(stream=streams(longest=6))
@settings(max_examples=8)
def test_any_stream_equals_its_counterfactual_with_a_users_module_that_drops_out(method, stream):
    module = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.ReLU(), torch.nn.Dropout(0.4))
    assert_no_trace(stream, method, make_task, 3, network=module, epochs=1, batch_size=16)


@pytest.mark.parametrize("method", EXACT)
def test_the_counterfactual_at_every_request_is_reached(method):
    """Not only at the end: after each request, the state is that of the counterfactual up to there."""
    stream = clpu.Stream("1T 2R 3T 1F 3R 1T 4T 4F 1R")
    for count in range(len(stream) + 1):
        actual, never = (
            run_stream(stream[:count], method, **TINY),
            run_stream(stream.counterfactual(count), method, **TINY),
        )
        assert actual.digest() == never.digest(), count


@pytest.mark.parametrize("method", LEAKY)
@pytest.mark.parametrize("text", ["1R 2T 2F", "1R 2T 3T 4R 2R 3F 5T 5F"])
def test_the_check_finds_the_trace_that_other_methods_leave(method, text):
    stream = clpu.Stream(text)
    actual, never = run_stream(stream, method, **TINY), run_stream(stream.counterfactual(), method, **TINY)
    assert actual.digest() != never.digest()
    x = make_task("1")[0]
    assert not torch.equal(actual.logits("1", x), never.logits("1", x))


def test_the_default_stream_exercises_all_four_cases():
    active, meanings = {}, set()
    for request in clpu.Stream("clpu-2022"):
        meanings.add((clpu.requests.meaning(request, active), request.instruction.value))
        active[request.task] = request.instruction.value
    assert meanings == {("learn", "R"), ("learn", "T"), ("keep", "R"), ("forget", "F")}
