"""The state of an agent: out and in, the digest, storage, and states that no agent can have made."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clpu
from clpu import Agent, BadState
from clpu.state import Leaf, State
from clpu.testing import TINY, continue_stream, make_task, run_stream, tiny

STREAM = "1R 2T 3T 4R 2R"
SAVED = run_stream(STREAM, "clpu-der++", **TINY)
BYTES = SAVED.state().to_bytes()
EWC = run_stream("1R 2T", "ewc", **TINY)


@pytest.mark.parametrize("stream", ["5T 1R 2T 3T 5F 4R 2R", "1R 3T 2T 4R 2R", "1R 2T 3T 2F 2T 4R 2R 2R"])
def test_equal_states_give_equal_bytes_whatever_their_history(stream):
    again = run_stream(stream, "clpu-der++", **TINY)
    assert again.state().to_bytes() == BYTES
    assert again.digest() == SAVED.digest()
    assert list(again.tasks) == list(SAVED.tasks) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "other",
    [
        lambda: run_stream("1R 2T 3T 4R", "clpu-der++", **TINY),
        lambda: run_stream("1R 2R 3T 4R", "clpu-der++", **TINY),
        lambda: run_stream(STREAM, "clpu-der++", seed=1, **TINY),
        lambda: run_stream(STREAM, "clpu-der++", seeds=[0], **TINY),
        lambda: run_stream(STREAM, "clpu-der++", alpha=0.4, **TINY),
        lambda: run_stream(STREAM, "clpu-der++-scratch", **TINY),
        lambda: run_stream(STREAM, "clpu-der++", lambda task: (make_task(task)[0], make_task(task)[1] + 1), **TINY),
    ],
)
def test_different_states_give_different_digests(other):
    assert other().digest() != SAVED.digest()


def test_the_digest_sees_a_single_bit_of_every_leaf():
    state = SAVED.state()
    paths = [path for path, _ in state.leaves()]
    assert paths == ["shared", *(f"task/{task}/own" for task in "1234")]
    for path, leaf in state.leaves():
        for name in leaf.tensors:
            tensors = {n: t.clone() for n, t in leaf.tensors.items()}
            tensors[name].view(torch.uint8).flatten()[0] ^= 1
            assert with_leaf(state, path, tensors).digest() != state.digest(), (path, name)


def with_leaf(state, path, tensors):
    """The state with other tensors in one of its leaves."""
    if path == "shared":
        return state.with_shared(Leaf(tensors))
    task = path.split("/")[1]
    return state.with_task(task, dataclasses.replace(state.tasks[task], own=Leaf(tensors)))


@pytest.mark.parametrize("method", [name for name, method in clpu.METHODS.items() if method.takes("mlp")])
def test_a_narrow_resnet_survives_a_round_trip(method):
    x = torch.randint(0, 256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    agent = Agent(method, "resnet18", width=1, epochs=1, seeds=[1, 2])
    agent.learn("1", x, [0, 1] * 4)
    agent.learn("2", x, [3, 5] * 4, temporary=True)
    restored = Agent.from_state(agent.state().to_bytes())
    assert restored.digest() == agent.digest()
    for a in (agent, restored):
        a.keep("2")
        a.learn("3", x, [0, 1] * 4)
    assert restored.digest() == agent.digest()


def test_a_population_survives_a_round_trip():
    agent = run_stream("1R 2T", "clpu-der++", seeds=[4, 2], **TINY)
    restored = Agent.from_state(agent.state().to_bytes())
    assert restored.predict("1", make_task("1")[0]).shape == (2, 48, 3)
    assert continue_stream(restored, "2R").digest() == continue_stream(agent, "2R").digest()


def test_names_with_any_printable_character_survive():
    agent = Agent(**TINY)
    for task in ("a/b", "main", "shared", "..", "%2F", "Ä ö 漢", "task/x/memory", "1/own", "own"):
        agent.learn(task, *make_task("1"), temporary=True)
    restored = Agent.from_state(agent.state().to_bytes())
    assert restored.tasks == agent.tasks
    assert restored.digest() == agent.digest()


def test_storage_is_what_the_documentation_says():
    """docs/methods.md: bytes of a body, a head and a memory, and which of them each method keeps."""
    size, hidden, classes, kept = 6, (12, 8), 3, 40
    body = 4 * ((size + 1) * hidden[0] + (hidden[0] + 1) * hidden[1])
    head = 4 * (hidden[1] + 1) * classes
    shared = body + 8 * (1 + 1)  # and what inputs look like: their kind and each of their sizes
    plain = kept * (4 * size + 8)
    dark = plain + kept * 4 * classes
    codes = 4 * classes * size
    expected = {  # after 1R 2T: main, task 1, task 2
        "ind": (0, body + head, body + head),
        "seq": (shared, head, head),
        "ewc": (shared, head + 2 * body, head + 2 * body),
        "er": (shared, head + plain, head + plain),
        "lwf": (shared, head, head),
        "lsf": (shared, 3 * head + 2 * body + codes, 3 * head + 2 * body + codes),
        "der++": (shared, head + dark, head + dark),
        "clpu-der++-scratch": (shared, head + dark, body + head + dark),
        "clpu-der++": (shared, head + dark, body + head + dark),
        "clpu-live": (shared, head + plain, body + head + plain),
    }
    for method, (main, first, second) in expected.items():
        options = {"memory": kept} if "er" in method or method == "clpu-live" else {}
        storage = run_stream("1R 2T", method, **TINY, **options).storage()
        assert storage == {"main": main, "tasks": {"1": first, "2": second}}, method


@pytest.mark.parametrize("method", [name for name, method in clpu.METHODS.items() if method.forgets_exactly()])
def test_forgetting_removes_the_leaves_the_facts_and_the_name_and_nothing_else(method):
    """The state after a forget request, part by part, is the state before the task was learned."""
    agent = run_stream("1R 2T 3R", method, **tiny(method))
    before = agent.state()
    saved = before.to_bytes()
    continue_stream(agent, "4T 5T")
    had = agent.state()
    assert had.tasks.keys() - before.tasks.keys() == {"4", "5"}
    continue_stream(agent, "5F")
    assert agent.state() == had.without("5")
    continue_stream(agent, "4F")
    after = agent.state()
    assert after.to_bytes() == saved
    assert [(path, leaf.sha256) for path, leaf in after.leaves()] == [(p, leaf.sha256) for p, leaf in before.leaves()]
    assert dict(after.about) == dict(before.about)
    assert {name: dict(task.facts) for name, task in after.tasks.items()} == {
        name: dict(task.facts) for name, task in before.tasks.items()
    }


def test_a_temporary_task_of_an_isolating_method_has_no_part_in_the_shared_leaf():
    agent = run_stream("1T 2T", "clpu-der++", **TINY)
    assert agent.state().shared is None
    agent = run_stream("1R", "clpu-der++", **TINY)
    shared = agent.state().shared
    assert continue_stream(agent, "2T 3T 2F").state().shared is shared


# States that no agent can have made


def with_about(**changes):
    state = SAVED.state()
    return State({**state.about, **changes}, state.shared, state.tasks)


def with_task(name="1", agent=SAVED, **changes):
    state = agent.state()
    return state.with_task(name, dataclasses.replace(state.tasks[name], **changes))


def with_facts(**changes):
    """Other facts of task 1; `None` leaves one out."""
    facts = {**SAVED.state().tasks["1"].facts, **changes}
    return with_task(facts={name: value for name, value in facts.items() if value is not None})


def with_tensors(path, change, agent=SAVED):
    leaf = dict(agent.state().leaves())[path]
    return with_leaf(agent.state(), path, change(dict(leaf.tensors)))


def without(path, *parts, agent=SAVED):
    """A leaf without the tensors whose names have one of these parts."""
    return with_tensors(path, lambda t: {n: v for n, v in t.items() if not any(p in n for p in parts)}, agent)


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (b"", "safetensors"),
        (b"not a state at all, but long enough", "safetensors"),
        (BYTES[:-1], "safetensors"),
        (BYTES[:100], "safetensors"),
        (b"\xff" * 8 + BYTES[8:], "safetensors"),
        (with_about(method="gem"), "gem"),
        (with_about(method=["gem"]), "method"),
        (with_about(network="module"), "module"),
        (with_about(network=[1]), "network"),
        (with_about(settings={"epochs": 0}), "epochs"),
        (with_about(settings=7), "cannot be used"),
        (with_about(seeds=[]), "seeds"),
        (with_about(seeds=[0, 1]), "must be F32"),
        (with_about(seeds="many"), "seeds"),
        (with_about(forgets="nothing"), "description"),
        (with_about(start="0" * 64), "start"),
        (with_about(history="3F"), "history"),
        (with_facts(inputs=None), "inputs"),
        (with_facts(inputs={"shape": [0], "integer": False}), "inputs"),
        (with_facts(inputs={"shape": [9], "integer": False}), "must be F32|different shapes"),
        (with_task(own=None), "missing"),
        (SAVED.state().with_task("9", dataclasses.replace(SAVED.state().tasks["1"], own=None)), "missing"),
        (with_tensors("shared", lambda t: {**t, "loot": torch.zeros(1)}), "loot"),
        (with_tensors("shared", lambda t: {**t, "body/loot": torch.zeros(1)}), "loot"),
        (with_tensors("task/3/own", lambda t: {**t, "loot": torch.zeros(1)}), "loot"),
        (with_tensors("task/3/own", lambda t: {**t, "memory/loot": torch.zeros(1)}), "loot"),
        (with_task(people={("p",): Leaf({"rows": torch.zeros(1)})}), "rows"),
        (without("shared", "0.bias"), "0.bias"),
        (without("task/1/own", "head/bias"), "head/bias"),
        (without("task/3/own", "memory/y"), "memory/y"),
        (with_tensors("task/3/own", lambda t: {**t, "memory/y": t["memory/y"] + 7}), "classes"),
        (with_tensors("task/3/own", lambda t: {**t, "memory/y": t["memory/y"][:, :-1]}), "different numbers"),
        (with_tensors("shared", lambda t: {**t, "body/0.bias": t["body/0.bias"].double()}), "F32.*got F64"),
        (with_tensors("task/3/own", lambda t: {**t, "memory/y": t["memory/y"].to(torch.int32)}), "I64.*got I32"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused(damaged, says):
    with pytest.raises(BadState, match=says):
        Agent.from_state(damaged)


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
@settings(max_examples=60)
def test_any_flipped_byte_is_refused_or_changes_the_digest(place, change):
    damaged = bytearray(BYTES)
    damaged[place] ^= change
    try:
        agent = Agent.from_state(bytes(damaged))
    except clpu.Error:
        return
    assert agent.digest() != SAVED.digest()


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (without("shared", ""), "main network, which is missing"),
        (without("task/1/own", ""), "missing"),
        (without("task/1/own", "head/"), "head"),
        (without("task/3/own", "network"), "network|main"),
        (without("task/3/own", "memory"), "memory"),
        (without("task/1/own", "memory/logits"), "logits"),
        (without("task/1/own", "fisher", agent=EWC), "fisher"),
        (without("task/1/own", "extra/anchor/0.bias", agent=EWC), "anchor/0.bias"),
        (with_facts(labels=[27, 7, 7]), "ascending"),
        (with_facts(labels=[7, 7, 27]), "ascending"),
        (with_facts(labels=[1.7, 2.9]), "integers"),
        (with_facts(labels=[0, 10**30]), "integers"),
        (with_facts(labels=[[], {}]), "integers"),
        (with_facts(labels=[True, 2]), "integers"),
        (with_facts(labels=None), "labels"),
        (with_facts(labels="ab"), "labels"),
        (with_facts(labels=[7, 17]), "must be F32"),
        (with_facts(steps=-1), "steps"),
        (with_facts(steps=2**60), "steps"),
        (with_facts(steps=1.5), "steps"),
        (with_facts(inputs={"shape": [10**10], "integer": False}), "inputs"),
        (with_facts(inputs={"shape": [10**30], "integer": False}), "inputs"),
        (with_facts(inputs={"shape": [2**31 - 1], "integer": False}), "must be F32|different shapes"),
        (with_facts(inputs={"shape": [6], "integer": True}), "must be|different shapes"),
        (with_facts(inputs="6"), "inputs"),
        (with_about(settings={**SAVED.state().about["settings"], "hidden": [10**6, 10**6]}), "must be F32"),
        (with_about(settings={**SAVED.state().about["settings"], "hidden": [10**30]}), "hidden"),
        (with_about(settings={**SAVED.state().about["settings"], "lr": 10**400}), "lr"),
        (with_about(method="seq"), "setting"),
        (with_tensors("shared", lambda t: {**t, "body/0.bias": t["body/0.bias"] * float("nan")}), "NaN"),
        (
            with_tensors("task/3/own", lambda t: {**t, "isolated/bias": t["isolated/bias"] + float("inf")}),
            "NaN or infinity",
        ),
        (
            with_tensors("shared", lambda t: {**t, "forgotten/9/weight": torch.zeros(1, 8, 3)}),
            "unexpected tensor 'forgotten/9/weight'",
        ),
        (with_tensors("task/3/own", lambda t: {**t, "memory/y": torch.tensor(3)}), "memory"),
        (None, "NoneType"),
        ("text", "str"),
    ],
)
def test_an_incomplete_or_absurd_state_is_refused_before_anything_is_built(damaged, says):
    with pytest.raises(BadState, match=says):
        Agent.from_state(damaged)


def test_a_state_wants_its_own_method():
    with pytest.raises(BadState, match="method"):
        Agent.from_state(run_stream("1R", "seq", **TINY).state(), method=clpu.METHODS["ind"])


def test_what_is_done_to_a_copy_of_the_tensors_leaves_the_agent_alone():
    """A state cannot be changed (test_state_tree.py); what is read from its bytes is a copy."""
    agent = run_stream("1R", "seq", **TINY)
    before, x = agent.digest(), make_task("1")[0]
    answers = agent.predict("1", x)
    for _, leaf in State.from_bytes(agent.state().to_bytes()).leaves():
        for tensor in leaf.tensors.values():
            tensor.zero_()
    assert agent.digest() == before == Agent.from_state(agent.state().to_bytes()).digest()
    assert (agent.predict("1", x) == answers).all()


def test_the_digest_sees_types_and_shapes():
    zeros = torch.zeros(4)
    digests = {State({}, Leaf({"x": t})).digest() for t in (zeros, zeros.view(2, 2), zeros.view(torch.int32))}
    assert len(digests) == 3
