"""The audit audited: every leak that a method which means to be exact can have is found, and named."""

import leaky
import numpy as np
import pytest
import torch
from leaky import HARMLESS, LEAKY, BatchNormShared, HeadKept, TemporaryTaskRehearsed, network_for
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module

import clpu
from clpu.audit import run as auditing
from clpu.audit.api import audit
from clpu.audit.bitwise import fingerprint
from clpu.audit.plan import Design
from clpu.audit.plan import plan as planned
from clpu.audit.verdict import EXACT, TRACE
from clpu.methods import plugins
from clpu.methods.clpu_derpp import CLPUDERpp
from clpu.runs.profiles import profile, with_overrides
from clpu.testing import checks_for, make_task, run_stream
from clpu.testing.forgetting import what_was_forgotten_leaves_no_trace
from clpu.testing.states import nothing_is_kept_outside_the_state

TASKS = {name: make_task(name, 48) for name in "12345"}
SETTINGS = {"epochs": 1, "lr": 0.1, "memory": 20}


@pytest.fixture(autouse=True)
def _global_generator():
    with torch.random.fork_rng():
        yield


def audited(method, *requests, runs=4, **more):
    """A small audit, with the requests that audits have by default unless others are given."""
    network = network_for(method, 6, 16)
    options = {"hidden": (16,)} if network == "mlp" else {}
    return audit(method, TASKS, *requests, network=network, runs=runs, **{**SETTINGS, **options, **more})


#: Where each leak shows first, and the checks of the conformance suite that fail because of it.
NO_TRACE = "what_was_forgotten_leaves_no_trace"
CONTINUE = "requests_continue_from_bytes_in_a_fresh_process"
OUTSIDE = "nothing_is_kept_outside_the_state"
REMOVING = "forgetting_is_removing_the_task"
PLACES = {
    "leaky-rehearsal": ("shared/body/", [NO_TRACE]),
    "leaky-reservoir": ("task/2/own/memory/", [NO_TRACE]),
    "leaky-head": ("shared/forgotten/1/", [NO_TRACE, REMOVING]),
    "leaky-batchnorm": ("running_mean", [NO_TRACE]),
    "leaky-inputs": ("shared/inputs", [NO_TRACE]),
    "leaky-random": ("shared/body/", [NO_TRACE, "randomness_is_the_agents_own"]),
    "leaky-counter": ("task/2/facts", [NO_TRACE]),
    "leaky-columns": ("task/2/facts", [NO_TRACE]),
    "leaky-order": ("task/2/own/memory/", [NO_TRACE, REMOVING]),
    "leaky-mean-facts": ("task/2/facts", [NO_TRACE]),
    "leaky-mean-shared": ("shared/mean", [NO_TRACE]),
    "leaky-mean-pixels": ("outside/blueprint.pixels", [NO_TRACE, OUTSIDE]),
    "leaky-class": ("outside/CounterOnClass.forgotten", [CONTINUE, OUTSIDE]),
    "leaky-module": ("outside/leaky.COUNTER", [CONTINUE, OUTSIDE]),
    "leaky-closure": ("outside/CounterInClosure.count", [CONTINUE, OUTSIDE]),
    "leaky-blueprint": ("outside/blueprint.forgotten", [NO_TRACE, CONTINUE, OUTSIDE]),
    "leaky-settings": ("outside/settings.forgotten", [NO_TRACE, CONTINUE, OUTSIDE]),
    "leaky-idle": ("outside/CounterIdle.forgotten", [OUTSIDE]),
    "leaky-stash": ("outside/leaky.STASH", [CONTINUE, OUTSIDE]),
}


@pytest.mark.parametrize("method", LEAKY, ids=lambda method: method.name)
def test_every_leak_is_caught_by_the_bits_of_a_default_audit_and_named(method):
    result = audited(method)
    assert result.verdict.kind == TRACE
    assert result.verdict.by[0] == "bitwise"
    first = next(bits for bits in result.findings.bits if not bits.equal)
    place, _ = PLACES[method.name]
    assert any(place in part for part in first.differing), first.differing


@pytest.mark.parametrize(
    "method",
    [*(method for method in LEAKY if issubclass(method, leaky.Counting)), leaky.ExamplesStashed],
    ids=lambda method: method.name,
)
def test_the_default_requests_let_what_is_kept_outside_the_state_come_back(method):
    """After the forget requests tasks are kept and learned, so that the digest itself shows it."""
    *_, last = audited(method).findings.bits
    assert last.digest != last.digest_counterfactual


PLUGIN = b"""
import clpu
forgotten = 0

@clpu.register
class Counts(clpu.METHODS["clpu-der++"]):
    name = "counts-in-its-file"

    def forget(self, state, task):
        global forgotten
        forgotten += 1
        return super().forget(state, task)
"""


def test_a_leak_in_a_file_of_a_users_method_is_caught_in_worker_processes(tmp_path):
    [name] = plugins.load_source("counts.py", PLUGIN)
    try:
        chosen = with_overrides(profile("rot-digits", "smoke"), ["train=96"], {name: []})
        plan = planned("rot-digits", chosen, [name], Design(runs=4, images=30, members=30, stops=4), "1R 2T 2F")
        assert auditing.run(plan, tmp_path, workers=2) == {}
    finally:
        checksum = plugins.CHECKSUMS.pop(name)
        del clpu.METHODS[name], plugins.LOADED[checksum]
    findings = auditing.read_audit(tmp_path).findings[name]
    assert [part.rpartition(".")[2] for part in findings.bits[0].differing] == ["forgotten"]


@pytest.fixture
def _as_imported(monkeypatch):
    """Nothing is kept outside the state by tests that ran before, or for those that follow."""
    monkeypatch.setattr(leaky.CounterOnClass, "forgotten", 0)
    monkeypatch.setattr(leaky.CounterIdle, "forgotten", 0)
    monkeypatch.setattr(leaky.COUNTER, "forgotten", 0)
    monkeypatch.setattr(leaky, "STASH", [])


@pytest.mark.usefixtures("_as_imported")
@pytest.mark.parametrize(
    ("method", "check"),
    [(method, check) for method in LEAKY for check in PLACES[method.name][1]],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_leak_is_caught_by_the_conformance_suite(method, check):
    network = {"network": with_batchnorm, "shape": (16,)} if method is BatchNormShared else {}
    [chosen] = [c for c in checks_for(method, **network) if getattr(c, "func", c).__name__ == check]
    with pytest.raises(AssertionError):
        chosen(method)


def with_batchnorm():
    return network_for(BatchNormShared, 16, 8)


@pytest.mark.parametrize("method", [CLPUDERpp, *HARMLESS], ids=lambda method: method.name)
def test_a_method_without_a_leak_is_proved_exact(method):
    """What a method keeps on itself, and the order of tasks in the state that it returns, reach no other request."""
    result = audited(method)
    assert result.verdict.kind == EXACT
    assert [bits.request for bits in result.findings.bits] == [2, 7, 9]  # the forget requests and the last one


@pytest.mark.parametrize("method", HARMLESS, ids=lambda method: method.name)
def test_what_cannot_leak_passes_the_checks_too(method):
    for check in (what_was_forgotten_leaves_no_trace, nothing_is_kept_outside_the_state):
        check(method)


def test_nothing_can_be_kept_under_a_name_that_is_not_a_task():
    agent = run_stream("1R 2T", CLPUDERpp, **SETTINGS)
    method, state = agent.new_method(), agent.state()
    for part, kept in (("memories", method.read(state).memories["2"]), ("isolated", method.read(state).main)):
        known = method.read(state)
        getattr(known, part)["archive of 2"] = kept
        with pytest.raises(RuntimeError, match="archive of 2"):
            method.write(state, known)


@pytest.mark.usefixtures("_as_imported")
@pytest.mark.parametrize("method", [leaky.CounterOnClass, leaky.ExamplesStashed], ids=lambda method: method.name)
def test_what_a_method_keeps_outside_the_state_reaches_no_other_job_of_the_audit(method):
    """Otherwise twins could come out equal by accident, and an audit would depend on those before it."""
    first, second = audited(method).findings, audited(method).findings
    assert first == second
    assert (leaky.CounterOnClass.forgotten, leaky.STASH) == (0, [])


@pytest.mark.usefixtures("_as_imported")
def test_the_agents_own_digest_does_not_see_what_is_outside_the_state():
    """Why the audit looks further than `Agent.digest`."""
    options = {"hidden": (8,), "epochs": 1}
    agent = run_stream("1R 2T", leaky.CounterIdle, **options)
    before = agent.state().without("2").digest(), fingerprint(agent)["outside/CounterIdle.forgotten"]
    agent.forget("2")
    assert agent.digest() == before[0]
    assert fingerprint(agent)["outside/CounterIdle.forgotten"] != before[1]


@pytest.mark.parametrize(
    ("method", "attack"), [(TemporaryTaskRehearsed, "relearning"), (HeadKept, "membership")], ids=["body", "head"]
)
def test_attacks_alone_find_what_reaches_the_networks(method, attack):
    """Not declared exact, and so without the bits: the trace in the body, and that in the head."""
    undeclared = type(method.__name__, (method,), {"forgets": "nothing"})
    result = audited(undeclared, "1R 2T 3R 4R 2F", runs=10, error_rate=0.05, epochs=16)
    assert result.verdict.kind == TRACE
    assert attack in result.verdict.by
    hit = max((a for a in result.findings.attacks if a.name == attack), key=lambda a: a.effect.low)
    assert hit.effect.low > hit.effect.chance


def test_equal_bits_need_equal_outputs_too():
    """Outputs of every task, known or not, are part of the fingerprint."""
    agent = run_stream("1R", "seq", hidden=(8,), epochs=1)
    task = next(t for t in _data() if t.name == "2")
    assert set(fingerprint(agent, [task])) - set(fingerprint(agent)) == {"outputs/2"}


def _data():
    from clpu.audit.api import _named, _task

    return [
        _task(name, arrays, "mlp", False)
        for name, arrays in _named({k: tuple(map(np.asarray, v)) for k, v in TASKS.items()})
    ]
