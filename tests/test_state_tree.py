"""The tree, without agents: what is in it is in the digest and in the bytes, and what is removed is in neither."""

import dataclasses
import json
import sys
import threading
from contextlib import suppress

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from clpu.errors import BadState, Error
from clpu.state import FORMAT, Leaf, Spec, State, Task
from clpu.state.leaf import DTYPES

WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)
NAMES = st.one_of(
    WORDS, st.sampled_from(["own", "shared", "people", "task", "a/b", "../c", "%2F", "body/0.weight", "/"])
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=4,
)
OBJECTS = st.dictionaries(WORDS, JSON, max_size=3)


@st.composite
def tensors(draw, dtype=None):
    """Any type of numbers, any bits, up to three dimensions, some of them empty."""
    kind = getattr(torch, dtype or draw(st.sampled_from(sorted(DTYPES.values()))))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = torch.Size(shape).numel() * torch.empty(0, dtype=kind).element_size()
    bits = draw(st.binary(min_size=count, max_size=count))
    if kind is torch.bool:
        bits = bytes(bit % 2 for bit in bits)
    return torch.frombuffer(bytearray(bits), dtype=kind).reshape(shape) if bits else torch.zeros(shape, dtype=kind)


LEAVES = st.dictionaries(NAMES, tensors(), min_size=1, max_size=3).map(Leaf)
PEOPLE = st.lists(WORDS, min_size=1, max_size=2, unique=True).map(tuple)
TASKS = st.builds(Task, st.sampled_from("RT"), OBJECTS, st.none() | LEAVES, st.dictionaries(PEOPLE, LEAVES, max_size=2))
STATES = st.builds(State, OBJECTS, st.none() | LEAVES, st.dictionaries(NAMES, TASKS, max_size=3))


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def leaf_content(leaf):
    if leaf is None:
        return None
    return {name: (str(t.dtype), tuple(t.shape), bits(t)) for name, t in leaf.tensors.items()}


def task_content(task):
    people = {who: leaf_content(leaf) for who, leaf in task.people.items()}
    return task.status, json.dumps(dict(task.facts), sort_keys=True), leaf_content(task.own), people


def content(state):
    """All that a state holds, taken from its parts one by one: the oracle for digest and bytes."""
    about = json.dumps(dict(state.about), sort_keys=True)
    return about, leaf_content(state.shared), {name: task_content(task) for name, task in state.tasks.items()}


@given(STATES)
def test_bytes_hold_the_whole_state(state):
    saved = state.to_bytes()
    restored = State.from_bytes(saved)
    # Once before the tensors are made from the bytes, and once after.
    for _ in range(2):
        assert restored.digest() == state.digest()
        assert restored.to_bytes() == saved
        assert [(path, leaf.specs, leaf.size) for path, leaf in restored.leaves()] == [
            (path, leaf.specs, leaf.size) for path, leaf in state.leaves()
        ]
        assert content(restored) == content(state)
    assert restored == state


@given(LEAVES)
def test_a_leaf_survives_its_bytes_with_and_without_torch(leaf):
    assume("__metadata__" not in leaf.specs)
    read = Leaf.from_bytes(leaf.to_bytes())
    assert (read.sha256, read.size, read.specs) == (leaf.sha256, leaf.size, leaf.specs)
    assert leaf_content(read) == leaf_content(leaf)
    assert read == leaf == Leaf(read.tensors)
    assert hash(read) == hash(leaf)


@pytest.mark.parametrize("dtype", sorted(DTYPES.values()))
@given(data=st.data())
@settings(max_examples=20)
def test_every_type_of_numbers_survives(dtype, data):
    leaf = Leaf({"x": data.draw(tensors(dtype)), "scalar": torch.ones((), dtype=getattr(torch, dtype))})
    state = State({}, leaf).with_task("1", Task("T", {}, leaf))
    assert content(State.from_bytes(state.to_bytes())) == content(state)


@given(STATES, STATES)
@example(State({}), State({}, Leaf({})))
@example(State({}).with_task("1", Task("T")), State({}).with_task("1", Task("T", {}, Leaf({}), {("p",): Leaf({})})))
def test_digests_and_bytes_are_equal_just_when_the_contents_are(one, other):
    equal = content(one) == content(other)
    assert (one.digest() == other.digest()) == equal
    assert (one.to_bytes() == other.to_bytes()) == equal


def changed_leaf(draw, leaf):
    """A leaf that differs in one thing."""
    held = dict(leaf.tensors)
    name = draw(st.sampled_from(sorted(held)))
    tensor = held[name]
    kind = draw(st.sampled_from(["bit", "name", "type", "shape", "remove", "add"]))
    if kind == "bit" and tensor.numel():
        raw = bytearray(bits(tensor))
        raw[draw(st.integers(0, len(raw) - 1))] ^= 1
        held[name] = torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape)
    elif kind == "type":
        pairs = [(torch.int32, torch.float32), (torch.int64, torch.float64), (torch.float16, torch.bfloat16)]
        same_width = {**dict(pairs), **{b: a for a, b in pairs}, torch.int8: torch.uint8, torch.uint8: torch.int8}
        same_width |= {torch.int16: torch.float16, torch.bool: torch.uint8}
        held[name] = tensor.view(same_width[tensor.dtype])
    elif kind == "shape":
        held[name] = tensor.reshape(1, *tensor.shape)
    elif kind == "remove":
        del held[name]
    else:
        held[draw(NAMES.filter(lambda new: new not in held))] = held.pop(name) if kind == "name" else tensor
    return Leaf(held)


def changed_task(draw, task, leaf):
    """A task that differs in one thing; `leaf` is another leaf."""
    kind = draw(st.sampled_from(["status", "facts", "own", "people", "who", "swap"]))
    if kind == "status":
        return dataclasses.replace(task, status="T" if task.status == "R" else "R")
    if kind == "facts":
        return dataclasses.replace(task, facts={**task.facts, draw(WORDS): draw(JSON)})
    if kind == "own":
        return dataclasses.replace(task, own=leaf if task.own is None else draw(st.none() | st.just(leaf)))
    if kind == "people":
        return dataclasses.replace(task, people={**task.people, draw(PEOPLE): leaf})
    if kind == "who" and task.people:
        who, *_ = task.people
        people = {k: v for k, v in task.people.items() if k != who}
        return dataclasses.replace(task, people={**people, (*who, "someone else"): task.people[who]})
    who = draw(PEOPLE)
    people = {**task.people, who: task.own} if task.own is not None else task.people
    return dataclasses.replace(task, own=task.people.get(who), people=people)


@st.composite
def neighbours(draw):
    """A state, and one that was made from it by one change anywhere in the tree."""
    state = draw(STATES)
    leaf = draw(LEAVES)
    kind = draw(st.sampled_from(["about", "shared", "leaf", "task", "name", "add", "remove", "swap"]))
    names = list(state.tasks)
    name = draw(st.sampled_from(names)) if names else None
    if kind == "about":
        return state, dataclasses.replace(state, about={**state.about, draw(WORDS): draw(JSON)})
    if kind == "shared":
        return state, state.with_shared(draw(st.none() | st.just(leaf)))
    if kind == "add" or name is None:
        return state, state.with_task(draw(NAMES), draw(TASKS))
    task = state.tasks[name]
    if kind == "leaf" and task.own is not None:
        return state, state.with_task(name, dataclasses.replace(task, own=changed_leaf(draw, task.own)))
    if kind == "name":
        return state, state.without(name).with_task(draw(NAMES), task)
    if kind == "remove":
        return state, state.without(name)
    if kind == "swap":
        return state, state.with_shared(task.own).with_task(name, dataclasses.replace(task, own=state.shared))
    return state, state.with_task(name, changed_task(draw, task, leaf))


@given(neighbours())
@example((State({"a": 1}), State({"a": True})))
@example((State({}).with_task("1", Task("T", {"a": 0.0})), State({}).with_task("1", Task("T", {"a": -0.0}))))
@settings(max_examples=300)
def test_digest_and_bytes_see_any_one_change(pair):
    one, other = pair
    equal = content(one) == content(other)
    assert (one.digest() == other.digest()) == equal
    assert (one.to_bytes() == other.to_bytes()) == equal
    assert (one == other) == equal
    assert (one.tasks == other.tasks) == (content(one)[2] == content(other)[2])


@given(STATES, st.randoms(use_true_random=False))
def test_the_order_of_insertion_is_not_state(state, luck):
    def shuffled(mapping):
        items = list(mapping.items())
        luck.shuffle(items)
        return dict(items)

    def mixed(leaf):
        return None if leaf is None else Leaf(shuffled(leaf.tensors))

    tasks = {}
    for name, task in shuffled(state.tasks).items():
        people = {who: mixed(leaf) for who, leaf in shuffled(task.people).items()}
        tasks[name] = Task(task.status, shuffled(task.facts), mixed(task.own), people)
    other = State(shuffled(state.about), mixed(state.shared), tasks)
    one_by_one = State(state.about, state.shared)
    for name, task in tasks.items():
        one_by_one = one_by_one.with_task(name, task)
    for made in (other, one_by_one):
        assert made.digest() == state.digest()
        assert made.to_bytes() == state.to_bytes()
        assert list(made.tasks) == list(state.tasks) == sorted(state.tasks)
        assert list(made.leaves()) == list(state.leaves())


@given(STATES, NAMES, TASKS)
@settings(max_examples=200)
def test_a_state_without_a_task_is_the_state_that_never_had_it(state, name, task):
    never = state.without(name)
    had = state.with_task(name, task)
    assert content(had)[2][name] == task_content(task)
    for after in (had.without(name), State.from_bytes(had.to_bytes()).without(name)):
        assert content(after) == content(never)
        assert after.digest() == never.digest()
        assert after.to_bytes() == never.to_bytes()
        assert list(after.leaves()) == list(never.leaves())
        assert name not in after.tasks
    # The other tasks and all else are what they were.
    about, shared, tasks = content(had)
    del tasks[name]
    assert content(never) == (about, shared, tasks)
    alone = content(had.only(name))
    assert alone == (about, shared, {name: task_content(task)})


MARKED = torch.tensor([0x4D41524B, 0x45444249, 0x54532121], dtype=torch.int32)


@pytest.mark.parametrize("status", ["R", "T"])
def test_not_a_byte_of_a_removed_task_is_left(status):
    marked = Leaf({"marked tensor": MARKED})
    task = Task(status, {"labels": [1, 2], "note": "marked fact"}, marked, {("marked person",): marked})
    state = State({"method": "any"}, Leaf({"body": torch.zeros(3)})).with_task(
        "2", Task("R", {}, Leaf({"x": MARKED + 1}))
    )
    had = state.with_task("marked name", task)
    needles = [
        bits(MARKED),
        *(f"marked {what}".encode() for what in ("fact", "tensor")),
        b"marked%20name",
        b"marked%20person",
    ]
    assert all(needle in had.to_bytes() for needle in needles)
    left = had.without("marked name")
    assert not [needle for needle in [*needles, b"marked"] if needle in left.to_bytes() + repr(left).encode()]
    assert left.digest() == state.digest()


def test_what_is_shared_stays_when_the_last_task_goes():
    """Removing a task never touches the shared leaf: a method that put something of the task there must be caught."""
    shared = Leaf({"body": torch.ones(3)})
    state = State({}, shared).with_task("1", Task("T"))
    assert state.without("1").shared is shared
    assert state.without("1").digest() != State({}).digest()


def test_a_leaf_without_tensors_is_none():
    empty = Leaf({})
    assert State({}, empty).shared is None
    task = Task("T", {}, empty, {("p",): empty})
    assert task.own is None
    assert not task.people


def test_nothing_in_a_state_can_be_replaced():
    state = State({"a": 1}, Leaf({"x": torch.zeros(2)})).with_task("1", Task("T", {"b": 2}, Leaf({"y": torch.ones(1)})))
    task = state.tasks["1"]
    for thing, name in ((state, "shared"), (state, "tasks"), (task, "own"), (task, "facts")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)
    for mapping in (state.about, state.tasks, task.facts, task.people, task.own.tensors, state.shared.tensors):
        with pytest.raises(TypeError):
            mapping["more"] = 1
    given = {"1": task}
    made = State({}, None, given)
    given["2"] = task
    assert list(made.tasks) == ["1"]


@pytest.mark.parametrize("status", ["F", "", None, "RT", 1])
def test_a_task_is_permanent_or_temporary(status):
    with pytest.raises(BadState, match="R or T"):
        Task(status)


@pytest.mark.parametrize("name", ["", " a", "x" * 101, "a\nb", 3, None])
def test_a_task_has_a_proper_name(name):
    with pytest.raises(Error):
        State({}).with_task(name, Task("T"))


def test_tensors_of_other_types_are_refused():
    with pytest.raises(BadState, match="complex64"):
        State({}, Leaf({"x": torch.zeros(2, dtype=torch.complex64)}))


def test_a_spec_admits_tensors_of_its_type_and_shape_only():
    spec = Spec("F32", (2, None))
    assert spec.admits(Spec("F32", (2, 7)))
    assert not any(
        spec.admits(Spec(*other)) for other in (("F64", (2, 7)), ("F32", (3, 7)), ("F32", (2,)), ("F32", ()))
    )


# Bytes from outside


def header(data):
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def with_header(data, change):
    """The same file with another header, in the form in which we write one."""
    fields, rest = header(data)
    fields = change(fields) or fields
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + rest


def described(data, change):
    """The same file with another description."""

    def new(fields):
        about = json.loads(fields["__metadata__"][FORMAT])
        about = change(about) or about
        fields["__metadata__"][FORMAT] = json.dumps(about, sort_keys=True, separators=(",", ":"))

    return with_header(data, new)


SAMPLE = (
    State({"method": "any"}, Leaf({"body": torch.arange(4.0)}))
    .with_task("1", Task("R", {"labels": [0, 1]}, Leaf({"head": torch.ones(2)})))
    .with_task("2", Task("T", {}, Leaf({"x": MARKED}), {("p", "q"): Leaf({"rows": torch.zeros(2, 2)})}))
)
BYTES = SAMPLE.to_bytes()
EXTRA = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}

STRANGE = {
    "nothing": b"",
    "text": b"not a state at all, but long enough",
    "cut": BYTES[:-1],
    "cut in the header": BYTES[:100],
    "a length beyond the file": b"\xff" * 8 + BYTES[8:],
    "more at the end": BYTES + b"\0",
    "a leaf": Leaf({"x": MARKED}).to_bytes(),
    "a different version": described(BYTES, lambda d: d.update(version=1)),
    "a later version": described(BYTES, lambda d: d.update(version=3)),
    "a version of another type": described(BYTES, lambda d: d.update(version=2.0)),
    "a different format": described(BYTES, lambda d: d.update(format="other")),
    "no version": described(BYTES, lambda d: d.pop("version") and None),
    "an unknown entry": described(BYTES, lambda d: d.update(history=["3"])),
    "a list": described(BYTES, lambda d: [d]),
    "about a list": described(BYTES, lambda d: d.update(about=[1])),
    "tasks a number": described(BYTES, lambda d: d.update(tasks=5)),
    "facts a list": described(BYTES, lambda d: d["tasks"]["1"].update(facts=[])),
    "no facts": described(BYTES, lambda d: d["tasks"]["1"].pop("facts") and None),
    "an unknown entry of a task": described(BYTES, lambda d: d["tasks"]["1"].update(learned="yesterday")),
    "status F": described(BYTES, lambda d: d["tasks"]["1"].update(status="F")),
    "status a list": described(BYTES, lambda d: d["tasks"]["1"].update(status=["R"])),
    "a task without a name": described(BYTES, lambda d: d["tasks"].update({"": d["tasks"]["1"]})),
    "a name with control characters": described(BYTES, lambda d: d["tasks"].update({"a\x1b": d["tasks"]["1"]})),
    "a task whose leaf is left": described(BYTES, lambda d: d["tasks"].pop("2") and None),
    "a description twice": with_header(BYTES, lambda h: h["__metadata__"].update(more="secret")),
    "a description that is not JSON": with_header(BYTES, lambda h: h["__metadata__"].update({FORMAT: "{"})),
    "a description that is deep": with_header(BYTES, lambda h: h["__metadata__"].update({FORMAT: "[" * 10**5})),
    "no description": with_header(BYTES, lambda h: h.pop("__metadata__") and None),
    "spaces in the description": with_header(
        BYTES, lambda h: h["__metadata__"].update({FORMAT: h["__metadata__"][FORMAT] + " "})
    ),
    "a tensor of no leaf": with_header(BYTES, lambda h: {**h, "loot": EXTRA}),
    "a tensor of no task": with_header(BYTES, lambda h: {**h, "task/9/own/loot": EXTRA}),
    "a tensor of people of no task": with_header(BYTES, lambda h: {**h, "task/9/people/%5B%22p%22%5D/loot": EXTRA}),
    "a leaf of another kind": with_header(BYTES, lambda h: {**h, "task/1/other/loot": EXTRA}),
    "people that are not a list": with_header(BYTES, lambda h: {**h, "task/1/people/%22p%22/loot": EXTRA}),
    "people that are numbers": with_header(BYTES, lambda h: {**h, "task/1/people/%5B1%5D/loot": EXTRA}),
    "people written in another way": with_header(BYTES, lambda h: {**h, "task/1/people/[%22p%22]/loot": EXTRA}),
    "a task's name written in another way": with_header(
        BYTES, lambda h: {k.replace("task/1/", "task/%31/"): v for k, v in h.items()}
    ),
    "a type that is not used here": with_header(BYTES, lambda h: {**h, "shared/z": {**EXTRA, "dtype": "F8_E4M3"}}),
}


TWO = SAMPLE.tasks["2"]
CHANGES = {
    "method": dataclasses.replace(SAMPLE, about={"method": "other"}),
    "no shared leaf": SAMPLE.with_shared(None),
    "shared leaf": SAMPLE.with_shared(Leaf({"body": torch.ones(4)})),
    "status": SAMPLE.with_task("2", dataclasses.replace(TWO, status="R")),
    "facts": SAMPLE.with_task("1", dataclasses.replace(SAMPLE.tasks["1"], facts={"labels": [0, 2]})),
    "a further fact": SAMPLE.with_task("2", dataclasses.replace(TWO, facts={"steps": 0})),
    "no own leaf": SAMPLE.with_task("2", dataclasses.replace(TWO, own=None)),
    "own leaf": SAMPLE.with_task("2", dataclasses.replace(TWO, own=Leaf({"x": MARKED + 1}))),
    "no people": SAMPLE.with_task("2", dataclasses.replace(TWO, people={})),
    "who": SAMPLE.with_task("2", dataclasses.replace(TWO, people={("p",): TWO.people["p", "q"]})),
    "people's leaf": SAMPLE.with_task(
        "2", dataclasses.replace(TWO, people={("p", "q"): Leaf({"rows": torch.ones(2, 2)})})
    ),
    "a tensor's name": SAMPLE.with_task("2", dataclasses.replace(TWO, own=Leaf({"y": MARKED}))),
    "a tensor's type": SAMPLE.with_task("2", dataclasses.replace(TWO, own=Leaf({"x": MARKED.view(torch.float32)}))),
    "a tensor's shape": SAMPLE.with_task("2", dataclasses.replace(TWO, own=Leaf({"x": MARKED.reshape(3, 1)}))),
    "a further tensor": SAMPLE.with_task("2", dataclasses.replace(TWO, own=Leaf({"x": MARKED, "y": torch.zeros(0)}))),
    "own leaf for shared": SAMPLE.with_shared(TWO.own).with_task("2", dataclasses.replace(TWO, own=SAMPLE.shared)),
    "own leaf of another task": SAMPLE.with_task("1", dataclasses.replace(SAMPLE.tasks["1"], own=TWO.own)).with_task(
        "2", dataclasses.replace(TWO, own=SAMPLE.tasks["1"].own)
    ),
    "a task's name": SAMPLE.without("2").with_task("3", TWO),
    "no task": SAMPLE.without("2"),
    "another task": SAMPLE.with_task("3", Task("T")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_digest_bytes_and_equality_see_each_kind_of_change(what):
    changed = CHANGES[what]
    assert changed.digest() != SAMPLE.digest()
    assert changed.to_bytes() != BYTES
    assert changed != SAMPLE
    assert content(State.from_bytes(changed.to_bytes())) == content(changed)
    assert len({state.digest() for state in CHANGES.values()}) == len(CHANGES)


def test_a_task_that_is_replaced_leaves_nothing():
    replaced = SAMPLE.with_task("2", Task("R", {"new": 1}))
    assert content(replaced)[2]["2"] == ("R", '{"new": 1}', None, {})
    assert replaced == SAMPLE.without("2").with_task("2", Task("R", {"new": 1}))


@pytest.mark.parametrize("what", STRANGE)
def test_bytes_that_we_did_not_write_are_refused(what):
    with pytest.raises(BadState):
        State.from_bytes(STRANGE[what])


@pytest.mark.parametrize(("what", "says"), [("a different version", "version 2, got 1"), ("a later version", "got 3")])
def test_a_different_version_is_named(what, says):
    with pytest.raises(BadState, match=says):
        State.from_bytes(STRANGE[what])


def test_the_sample_is_read():
    """So that it is the change that is refused."""
    assert State.from_bytes(BYTES) == SAMPLE
    assert with_header(BYTES, lambda h: None) == described(BYTES, lambda d: None) == BYTES


@st.composite
def spoilt(draw):
    """A state's bytes with some of them changed, removed, doubled or moved."""
    data = bytearray(draw(st.one_of(st.just(BYTES), STATES.map(State.to_bytes))))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 2, 8])))
        data[start:end] = draw(
            st.one_of(
                st.binary(max_size=8), st.sampled_from([b"0", b"-1", b"null", b"[]", b"1e9", b'"', b"{", b"R", b"/"])
            )
        )
    return bytes(data)


@given(st.one_of(spoilt(), st.binary(max_size=200)))
@settings(max_examples=300)
def test_any_bytes_are_the_bytes_of_a_state_or_refused(data):
    with suppress(BadState):
        assert State.from_bytes(data).to_bytes() == data


@given(st.one_of(st.binary(max_size=200), LEAVES.map(lambda leaf: leaf.to_bytes()[:-1] + b"\1")))
def test_any_bytes_are_the_bytes_of_a_leaf_or_refused(data):
    with suppress(BadState):
        assert Leaf.from_bytes(data).to_bytes() == data


LEAF = Leaf({"a": torch.zeros(2), "b": MARKED, "c": torch.zeros(0)}).to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.update(__metadata__={"note": "secret"}),
        lambda h: dict(reversed(h.items())),
        lambda h: {**h, "d": EXTRA},
    ],
)
def test_a_leaf_is_read_in_the_form_in_which_we_write_it_only(change):
    assert Leaf.from_bytes(LEAF).to_bytes() == with_header(LEAF, lambda h: None) == LEAF
    with pytest.raises(BadState):
        Leaf.from_bytes(with_header(LEAF, change))
    size = int.from_bytes(LEAF[:8], "little")
    with pytest.raises(BadState):
        Leaf.from_bytes((size + 8).to_bytes(8, "little") + LEAF[8 : 8 + size] + b" " * 8 + LEAF[8 + size :])


@given(STATES, st.data())
def test_a_tensor_that_belongs_nowhere_is_refused(state, data):
    """Orphans were invisible once: in the file, not in the digest."""
    prefix = data.draw(
        st.sampled_from(["", "task/", "task/gone/own/", "task/gone/people/%5B%22p%22%5D/", "forgotten/"])
    )
    assume("gone" not in state.tasks)
    name = prefix + data.draw(WORDS.filter(lambda word: word not in ("shared", "task")))
    with pytest.raises(BadState):
        State.from_bytes(with_header(state.to_bytes(), lambda h: {**h, name: EXTRA}))


class Overtaken(Leaf):
    """A leaf whose tensors another thread makes just when this one has found that nobody made them yet."""

    armed, made = False, None

    @property
    def _tensors(self):
        found = self.made
        if self.armed and found is None:
            self.armed = False
            assert self.tensors
        return found

    @_tensors.setter
    def _tensors(self, tensors):
        self.made = tensors


@pytest.mark.parametrize(
    "ask",
    [
        lambda leaf: leaf.sha256,
        lambda leaf: leaf.size,
        lambda leaf: leaf.specs,
        lambda leaf: leaf.to_bytes(),
        lambda leaf: leaf_content(leaf),
    ],
)
def test_a_reader_that_another_thread_overtakes_sees_the_whole_leaf(ask):
    leaf = Overtaken.from_bytes(LEAF)
    leaf.armed = True
    assert ask(leaf) == ask(Leaf.from_bytes(LEAF))
    assert not leaf.armed
    assert ask(leaf) == ask(Leaf.from_bytes(LEAF))


def test_threads_that_read_a_leaf_for_the_first_time_see_all_of_it():
    content = Leaf({str(n): torch.full((2,), float(n)) for n in range(20)}).to_bytes()
    expected = Leaf.from_bytes(content).sha256
    seen = []

    def read(leaf, barrier, tensors_first):
        barrier.wait()
        if tensors_first:
            seen.append(Leaf(leaf.tensors).sha256)
        seen.append(leaf.sha256)
        seen.append(Leaf(leaf.tensors).sha256)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            leaf, barrier = Leaf.from_bytes(content), threading.Barrier(3)
            threads = [threading.Thread(target=read, args=(leaf, barrier, n % 2 == 0)) for n in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert set(seen) == {expected}
