"""State out and in, the digest, storage, and damaged states."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clpu
from clpu import Agent, BadState
from clpu.snapshot import Snapshot
from clpu.testing import TINY, go_on, make_task, play

STREAM = "1R 2T 3T 4R 2R"
SAVED = play(STREAM, "clpu-der++", **TINY)
BYTES = SAVED.state().to_bytes()


def test_equal_states_give_equal_bytes_whatever_their_history():
    again = play("5T 1R 2T 3T 5F 4R 2R", "clpu-der++", **TINY)
    assert again.state().to_bytes() == BYTES
    assert again.digest() == SAVED.digest()


@pytest.mark.parametrize(
    "other",
    [
        lambda: play("1R 2T 3T 4R", "clpu-der++", **TINY),
        lambda: play("1R 3T 2T 4R 2R", "clpu-der++", **TINY),
        lambda: play(STREAM, "clpu-der++", seed=1, **TINY),
        lambda: play(STREAM, "clpu-der++", alpha=0.4, **TINY),
        lambda: play(STREAM, "clpu-der++-scratch", **TINY),
    ],
)
def test_different_states_give_different_digests(other):
    assert other().digest() != SAVED.digest()


def test_the_digest_sees_a_single_bit():
    snapshot = SAVED.state()
    name = sorted(snapshot.tensors)[0]
    changed = snapshot.tensors[name].clone()
    changed.view(torch.uint8).flatten()[0] ^= 1
    assert Snapshot(snapshot.meta, {**snapshot.tensors, name: changed}).digest() != snapshot.digest()


@pytest.mark.parametrize("method", list(clpu.METHODS))
def test_a_narrow_resnet_survives_a_round_trip(method):
    x = torch.randint(0, 256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    agent = Agent(method, "resnet18", width=1, epochs=1, seeds=[1, 2])
    agent.learn("1", x, [0, 1] * 4)
    agent.learn("2", x, [3, 5] * 4, temporary=True)
    restored = Agent.from_state(agent.state().to_bytes())
    assert restored.digest() == agent.digest()
    for a in (agent, restored):
        a.keep("2")
    assert restored.digest() == agent.digest()


def test_a_population_survives_a_round_trip():
    agent = play("1R 2T", "clpu-der++", seeds=[4, 2], **TINY)
    restored = Agent.from_state(agent.state().to_bytes())
    assert restored.predict("1", make_task("1")[0]).shape == (2, 48, 3)
    assert go_on(restored, "2R").digest() == go_on(agent, "2R").digest()


def test_names_with_any_printable_character_survive():
    agent = Agent(**TINY)
    for task in ("a/b", "main", "..", "%2F", "Ä ö 漢", "task/x/memory"):
        agent.learn(task, *make_task("1"), temporary=True)
    restored = Agent.from_state(agent.state().to_bytes())
    assert restored.tasks == agent.tasks
    assert restored.digest() == agent.digest()


def test_storage_is_what_the_documentation_says():
    """docs/methods.md: bytes of a body, a head and a memory, and which of them each method keeps."""
    size, hidden, classes, kept = 6, (12, 8), 3, 40
    body = 4 * ((size + 1) * hidden[0] + (hidden[0] + 1) * hidden[1])
    head = 4 * (hidden[1] + 1) * classes
    plain = kept * (4 * size + 8)
    dark = plain + kept * 4 * classes
    codes = 4 * classes * size
    expected = {  # after 1R 2T: main, task 1, task 2
        "ind": (0, body + head, body + head),
        "seq": (body + 2 * head, 0, 0),
        "ewc": (body + 2 * head, 2 * body, 2 * body),
        "er": (body + 2 * head, plain, plain),
        "lwf": (body + 2 * head, 0, 0),
        "lsf": (body + 2 * head, 2 * body + 2 * head + codes, 2 * body + 2 * head + codes),
        "der++": (body + 2 * head, dark, dark),
        "clpu-der++-scratch": (body + head, dark, body + head + dark),
        "clpu-der++": (body + head, dark, body + head + dark),
    }
    for method, (main, first, second) in expected.items():
        options = {"memory": kept} if dark and "er" in method else {}
        storage = play("1R 2T", method, **TINY, **options).storage()
        assert storage == {"main": main, "tasks": {"1": first, "2": second}}, method


def header(data):
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size])


def with_meta(**changes):
    snapshot = SAVED.state()
    return Snapshot({**snapshot.meta, **changes}, snapshot.tensors)


def with_tensors(change):
    snapshot = SAVED.state()
    return Snapshot(snapshot.meta, change(dict(snapshot.tensors)))


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (b"", "no saved agent"),
        (b"not a state at all, but long enough", "no saved agent"),
        (BYTES[:-1], "no saved agent"),
        (BYTES[:100], "no saved agent"),
        (b"\xff" * 8 + BYTES[8:], "no saved agent"),
        (with_meta(version=2), "version 1"),
        (with_meta(format="other"), "other"),
        (with_meta(method="gem"), "gem"),
        (with_meta(network="module"), "module"),
        (with_meta(network=[1]), "network"),
        (with_meta(settings={"epochs": 0}), "epochs"),
        (with_meta(settings=7), "cannot be used"),
        (with_meta(seeds=[]), "seeds"),
        (with_meta(seeds=[0, 1]), "expected shape"),
        (with_meta(seeds="many"), "seeds"),
        (with_meta(inputs=None), "inputs"),
        (with_meta(inputs=[[0], False]), "positive"),
        (with_meta(inputs=[[9], False]), "expected shape"),
        (with_meta(ledger=[["1", "X", [0, 1], 3]]), "damaged"),
        (with_meta(ledger=[["", "R", [0, 1], 3]]), "damaged"),
        (with_meta(ledger=[["9", "R", [0, 1], 3]]), "no task"),
        (with_meta(ledger=5), "damaged"),
        (with_tensors(lambda t: {**t, "loot": torch.zeros(1)}), "loot"),
        (with_tensors(lambda t: {**t, "main/loot": torch.zeros(1)}), "loot"),
        (with_tensors(lambda t: {**t, "task/3/loot/x": torch.zeros(1)}), "loot"),
        (with_tensors(lambda t: {k: v for k, v in t.items() if k != "main/body/0.bias"}), "0.bias"),
        (with_tensors(lambda t: {k: v for k, v in t.items() if k != "main/head/1/bias"}), "head/1/weight"),
        (with_tensors(lambda t: {k: v for k, v in t.items() if k != "task/3/memory/y"}), "memory must have"),
        (with_tensors(lambda t: {**t, "task/3/memory/y": t["task/3/memory/y"] + 7}), "classes"),
        (with_tensors(lambda t: {**t, "main/body/0.bias": t["main/body/0.bias"].double()}), "float32"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused(damaged, says):
    with pytest.raises(BadState, match=says):
        Agent.from_state(damaged)


def test_deep_json_is_refused():
    data = Snapshot({"clpu": 1}, {}).to_bytes()
    bomb = "[" * 100_000
    fields = header(data)
    fields["__metadata__"]["clpu-agent"] = bomb
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    with pytest.raises(BadState):
        Agent.from_state(len(text).to_bytes(8, "little") + text)


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
