"""The audit audited: every leak that a method which means to be exact can have is found, and named."""

import numpy as np
import pytest
import torch
from leaky import (
    LEAKY,
    BatchNormShared,
    CounterHidden,
    CounterKept,
    GlobalRandomState,
    HeadKept,
    MemoryUnderAnotherName,
    SharedReservoir,
    TemporaryTaskRehearsed,
    network_for,
)
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module

import clpu
from clpu.audit.api import audit
from clpu.audit.bitwise import fingerprint
from clpu.audit.verdict import EXACT, TRACE
from clpu.methods.clpu_derpp import CLPUDERpp
from clpu.testing import make_task, play

REQUESTS = "1R 2T 3R 2F 4R"
TASKS = {name: make_task(name, 96) for name in ("1", "2", "3", "4")}
SETTINGS = {"epochs": 4, "lr": 0.1, "memory": 20}


@pytest.fixture(autouse=True)
def _global_generator():
    with torch.random.fork_rng():
        yield


def audited(method, runs=4, **more):
    network = network_for(method, 6, 16)
    options = {"hidden": (16,)} if network == "mlp" else {}
    return audit(method, TASKS, REQUESTS, network=network, runs=runs, **{**SETTINGS, **options, **more})


#: Where each leak shows first, as the verdict names it.
PLACES = {
    TemporaryTaskRehearsed: "main/body/",
    SharedReservoir: "main/body/",
    HeadKept: "main/head/2/",
    CounterKept: "task/1/extra/learnings",
    CounterHidden: "attribute/learnings",
    MemoryUnderAnotherName: "task/archive%20of%202/memory/",
    GlobalRandomState: "main/body/",
    BatchNormShared: "running_mean",
}


@pytest.mark.parametrize("method", LEAKY, ids=lambda method: method.name)
def test_every_leak_is_caught_bit_by_bit_and_named(method):
    result = audited(method)
    assert result.verdict.kind == TRACE
    assert result.verdict.by[0] == "bitwise"
    first = result.findings.bits[0]
    assert any(PLACES[method] in part for part in first.differing), first.differing


def test_the_method_without_a_leak_is_proved_exact():
    result = audited(CLPUDERpp)
    assert result.verdict.kind == EXACT
    assert len(result.findings.bits) == 2  # after the forget and after the last request


@pytest.mark.parametrize("method", [CounterHidden, MemoryUnderAnotherName], ids=lambda method: method.name)
def test_the_agents_own_digest_does_not_see_what_hides_outside_the_state(method):
    """Why the audit looks further than `Agent.digest`."""
    stream, options = clpu.Stream("1R 2T 2F"), {"hidden": (8,), "epochs": 1}
    actual, never = play(stream, method, **options), play(stream.counterfactual(), method, **options)
    assert actual.digest() == never.digest()
    assert fingerprint(actual) != fingerprint(never)


@pytest.mark.parametrize(
    ("method", "attack"), [(TemporaryTaskRehearsed, "relearning"), (HeadKept, "membership")], ids=["body", "head"]
)
def test_attacks_alone_find_what_reaches_the_networks(method, attack):
    """Without the promise of exactness, and so without the bits: the trace in the body, and that in the head."""
    unpromising = type(method.__name__, (method,), {"exact": False})
    result = audited(unpromising, runs=10, error_rate=0.05)
    assert result.verdict.kind == TRACE
    assert attack in result.verdict.by
    hit = next(a for a in result.findings.attacks if a.name == attack)
    assert hit.effect.low > hit.effect.chance


def test_equal_bits_need_equal_outputs_too():
    """Outputs of every task, known or not, are part of the fingerprint."""
    agent = play("1R", "seq", hidden=(8,), epochs=1)
    task = next(t for t in _data() if t.name == "2")
    assert set(fingerprint(agent, [task])) - set(fingerprint(agent)) == {"outputs/2"}


def _data():
    from clpu.audit.api import _named, _task

    return [_task(name, arrays) for name, arrays in _named({k: tuple(map(np.asarray, v)) for k, v in TASKS.items()})]
