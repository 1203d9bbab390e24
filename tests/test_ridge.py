"""The method `ridge`: integer sums against the obvious computation, histories of people against never having them."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import clpu
from clpu.bases.integers import exact_product, expanded, quantised
from clpu.methods.ridge import Sums
from clpu.state import Records, State
from clpu.testing import checks_for


def data(count=60, size=5, labels=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, labels, count)
    x = rng.normal(size=(count, size)) + 2 * np.eye(labels, size)[y]
    return x.astype(np.float32), y


def some_records(count, size, labels=("a", "b", "c"), seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (count, size)).astype(np.int8)
    return Records(rows, rng.integers(0, len(labels), count).astype(np.int32), tuple(labels))


def sums_by_hand(parts, labels):
    """G and M with Python's integers, record by record."""
    rows = [([int(v) for v in row] + [1], part.labels[k]) for part in parts for row, k in zip(part.rows, part.y)]
    size = len(rows[0][0])
    gram = [[sum(row[i] * row[j] for row, _ in rows) for j in range(size)] for i in range(size)]
    moments = [[sum(row[i] for row, label in rows if label == one) for one in labels] for i in range(size)]
    return gram, moments


def test_sums_are_those_of_python_integers():
    parts = [some_records(7, 4, seed=1), some_records(3, 4, ("b", "d"), seed=2)]
    sums = Sums.of(parts, 4, ("a", "b", "c", "d"))
    assert (sums.gram.tolist(), sums.moments.tolist()) == sums_by_hand(parts, "abcd")
    assert sums.moments[-1].sum() == 10, "the last row counts the records"


def test_sums_of_many_rows_at_the_limit_are_exact():
    rows = np.full((5000, 3), -127, dtype=np.int8)
    rows[:, 1] = 127
    sums = Sums.of([Records(rows, np.zeros(5000, dtype=np.int32), (1,))], 3, (1,))
    assert sums.gram[0, 0] == 5000 * 127**2
    assert sums.gram[0, 1] == -5000 * 127**2
    assert sums.moments[:, 0].tolist() == [-5000 * 127, 5000 * 127, -5000 * 127, 5000]


@given(st.lists(st.integers(1, 1500), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_taking_a_part_away_undoes_adding_it(counts, which):
    parts = [some_records(count, 3, seed=i) for i, count in enumerate(counts)]
    gone = parts[which % len(parts)]
    rest = [part for part in parts if part is not gone]
    whole = Sums.of(parts, 3, "abc")
    left = whole.changed([gone], -1)
    expected = Sums.of(rest, 3, left.labels)
    assert torch.equal(left.gram, expected.gram)
    assert torch.equal(left.moments, expected.moments)
    again = left.changed([gone], 1)
    used = [label for label, count in zip(whole.labels, whole.moments[-1].tolist()) if count]
    assert list(again.labels) == used
    assert torch.equal(again.gram, whole.gram)


def test_weights_solve_the_regularised_normal_equations():
    part = some_records(200, 6)
    sums = Sums.of([part], 6, part.labels)
    weights = sums.weights(0.01).numpy()
    phi = np.concatenate([part.rows, np.ones((200, 1))], 1).astype(float)
    penalty = 0.01 * (phi[:, :-1] ** 2).sum() / 200
    targets = np.eye(3)[part.y]
    extra = np.sqrt(penalty) * np.eye(7)[:-1]
    expected = np.linalg.lstsq(np.concatenate([phi, extra]), np.concatenate([targets, np.zeros((6, 3))]), rcond=None)[0]
    np.testing.assert_allclose(weights, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("size", [1, 6, 300])
def test_weights_are_those_of_a_plain_solve_and_the_same_bits_each_time(size):
    part = some_records(2 * size, size)
    sums = Sums.of([part], size, part.labels)
    gram, before = sums.gram.double(), sums.gram.clone()
    gram.diagonal()[:-1].add_(0.3 * gram.diagonal()[:-1].sum() / len(part))
    plain = torch.cholesky_solve(sums.moments.double(), torch.linalg.cholesky(gram))
    assert torch.allclose(sums.weights(0.3), plain, rtol=1e-8, atol=1e-12)
    assert torch.equal(sums.weights(0.3), sums.weights(0.3))
    assert torch.equal(sums.gram, before)


extremes = st.sampled_from([-127, -126, -1, 0, 1, 127])


@given(st.data(), st.integers(1, 70), st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_products_of_small_integers_are_exact(data, terms, rows, columns):
    drawn = np.array(data.draw(st.lists(extremes, min_size=7, max_size=7)), dtype=np.int8)
    a = np.resize(drawn, (terms, rows))
    b = np.resize(drawn[::-1], (terms, columns))
    expected = [[sum(int(p) * int(q) for p, q in zip(u, v)) for v in b.T] for u in a.T]
    for largest in (terms * 127**2, 2**40):
        found = exact_product(torch.from_numpy(a).mT, torch.from_numpy(b), largest)
        assert found.tolist() == expected


def test_features_that_are_all_zero_are_no_obstacle():
    agent = clpu.Agent("ridge", network="base:raw")
    agent.learn("1", np.zeros((4, 3), dtype=np.float32), [1, 1, 1, 2])
    assert agent.predict("1", np.zeros((1, 3)))[0, 0] > 0.5


def test_probabilities_order_as_scores_do_and_a_certain_answer_is_nearly_one():
    x, y = data(300)
    agent = clpu.Agent("ridge")
    agent.learn("1", x, y)
    p = agent.predict("1", x)
    assert (p.argmax(1) == y).mean() > 0.9
    assert p.max(1).mean() > 0.7


@pytest.mark.parametrize("durable", [False, True])
def test_the_sums_of_a_task_are_carried_along_and_equal_those_of_all_its_rows(durable, tmp_path):
    x, y = data(60)
    people = [["ann", "bob"][: i % 3] for i in range(60)]
    left = [i for i in range(0, 60, 3) if y[i] != 2]
    with clpu.store.create(tmp_path / "store", "ridge") if durable else nullcontext(clpu.Agent("ridge")) as agent:
        agent.learn("1", x, y, people=people, records=range(60))
        agent.learn("2", x, y, people=people)
        agent.predict("1", x[:1])
        requests = [
            lambda: agent.forget(person="ann"),
            lambda: agent.forget("1", labels=[2]),
            lambda: agent.forget("1", records=left[:2]),
            lambda: agent.add("1", x[:5], y[:5], people=["cy"] * 5),
            lambda: agent.forget("1", person="cy"),
        ]
        if durable:
            requests.append(lambda: agent.forget_with_receipt("1", records=left[2:3]))
        for request in requests:
            request()
            task = agent.state().tasks["1"]
            carried, full = task.records.known("sums"), agent.new_method().full_sums(task)
            assert carried.labels == full.labels
            assert torch.equal(carried.gram, full.gram)
            assert torch.equal(carried.moments, full.moments)
        assert agent.state().tasks["2"].records.known("sums") is None, "made before anybody asked"


PEOPLE = [f"p{i}" for i in range(5)]

operations = st.lists(
    st.tuples(
        st.sampled_from(["learn", "add", "person", "person in task", "labels", "task", "keep", "ask"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(PEOPLE),
        st.integers(0, 2**16),
    ),
    min_size=2,
    max_size=14,
)


@given(operations)
@settings(max_examples=150, deadline=None)
def test_any_history_ends_in_the_state_of_what_is_left(history):
    """The oracle keeps a plain list of records, and learns what is left of it in one go, tasks in reverse order."""
    agent, held, status = clpu.Agent("ridge", network="base:raw", gains=(20.0,)), {}, {}
    for number, (what, task, person, seed) in enumerate(history):
        rng = np.random.default_rng(seed)
        if what in ("learn", "add") and (task in held) == (what == "add"):
            count = int(rng.integers(1, 6))
            new = [
                (
                    rng.normal(size=3).astype(np.float32),
                    f"label {rng.integers(2)}",
                    sorted({*rng.choice(PEOPLE, rng.integers(0, 3)).tolist()}),
                    f"{number}-{i}",
                )
                for i in range(count)
            ]
            options = {"temporary": bool(seed % 2)} if what == "learn" else {}
            hand_in(agent.learn if what == "learn" else agent.add, task, new, **options)
            held.setdefault(task, []).extend(new)
            if what == "learn":
                status[task] = "T" if seed % 2 else "R"
        elif what in ("person", "person in task", "labels"):
            scope = {"person": person} if what != "labels" else {"labels": [f"label {seed % 2}"]}
            if what != "person":
                scope["task"] = task
            names = [task] if "task" in scope else list(held)
            gone = {t: [r for r in held.get(t, []) if concerns(r, scope)] for t in names}
            if any(gone.values()):
                agent.forget(**scope)
            elif task in held or what == "person":
                with pytest.raises(clpu.NothingHeld):
                    agent.forget(**scope)
            for name in names:
                if name in held:
                    held[name] = [record for record in held[name] if not concerns(record, scope)]
                    if not held[name]:
                        del held[name], status[name]
        elif task in held and what == "task":
            agent.forget(task)
            del held[task], status[task]
        elif task in held and what == "keep":
            agent.keep(task)
            status[task] = "R"
        elif task in held:
            agent.predict(task, np.zeros((1, 3)))  # sums and weights are carried along from here on
    never = clpu.Agent("ridge", network="base:raw", gains=(20.0,))
    for task in sorted(held, reverse=True):
        hand_in(never.learn, task, held[task][::-1], temporary=status[task] == "T")
    assert agent.tasks == never.tasks
    assert agent.digest() == never.digest()
    x = np.linspace(-2, 2, 12).reshape(4, 3).astype(np.float32)
    for task in agent.tasks:
        assert torch.equal(agent.logits(task, torch.from_numpy(x)), never.logits(task, torch.from_numpy(x)))


def hand_in(request, task, records, **options):
    x, y, people, ids = (list(column) for column in zip(*records))
    request(task, np.stack(x), np.array(y), people=people, records=ids, **options)


def concerns(record, scope):
    _, label, people, _ = record
    return ("person" not in scope or scope["person"] in people) and ("labels" not in scope or label in scope["labels"])


DIGESTS = """
import json, sys
import numpy as np, torch, clpu
rng = np.random.default_rng(0)
x, y = rng.normal(size=(300, 37)).astype(np.float32), np.arange(300) % 3
images = rng.integers(0, 256, (300, 3, 8, 8), dtype=np.uint8)
found = {"capability": torch.backends.cpu.get_cpu_capability()}
for network, inputs in (("base:raw", x), ("base:random", x), ("base:random", images)):
    for expand in (0, 50):
        agent = clpu.Agent("ridge", network=network, expand=expand)
        agent.learn("1", inputs, y, people=[f"p{i % 7}" for i in range(300)])
        agent.predict("1", inputs)
        agent.forget(person="p3")
        found[f"{network} {inputs.shape} {expand}"] = agent.digest()
print(json.dumps(found))
"""


def test_one_digest_on_every_kind_of_cpu():
    found = []
    for capability in ("default", "avx2", "avx512"):
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        done = subprocess.run([sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert len({one.pop("capability") for one in found}) > 1, "this machine has one kind of instructions only"
    assert found[0] == found[1] == found[2]


class Small(nn.Module):
    """A float network whose products depend on the size of a batch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(37, 300)
        self.second = nn.Linear(300, 64)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def networks():
    torch.manual_seed(0)
    return [("base:raw", {}), ("base:random", {}), (Small(), {}), (Small(), {"expand": 40})]


@pytest.mark.parametrize(("network", "options"), networks(), ids=["raw", "random", "module", "module expanded"])
@given(order=st.permutations(range(12)), cut=st.integers(1, 11), threads=st.sampled_from([1, 2]))
@settings(max_examples=8, deadline=None)
def test_a_records_integers_depend_on_that_record_alone(network, options, order, cut, threads):
    x = np.random.default_rng(0).normal(size=(12, 37)).astype(np.float32)
    agent = clpu.Agent("ridge", network=network, threads=threads, **options)

    def rows(some):
        one = agent.copy()
        one.learn("1", x[some], np.zeros(len(some), dtype=int), records=[str(i) for i in some])
        records = Records.of_leaf(one.state().tasks["1"].people[()])
        return dict(zip(records.ids, map(bytes, records.rows)))

    together = rows(list(range(12)))
    assert {**rows(order[:cut]), **rows(order[cut:])} == together


def test_networks_that_are_drawn_for_a_seed_are_refused():
    with pytest.raises(clpu.BadNetwork, match="never trained"):
        clpu.Agent("ridge", network="mlp")


def test_a_user_module_passes_the_checks():
    for check in checks_for(clpu.METHODS["ridge"], make_small, shape=(37,)):
        if "fresh_process" not in check.__name__:  # those are slow, and run on a base
            check(clpu.METHODS["ridge"])


def make_small():
    return Small()


def test_expanded_features_are_those_of_integer_arithmetic():
    rows = torch.from_numpy(some_records(5, 7).rows)
    wide = expanded(rows, 11)
    assert wide.dtype == torch.int8
    assert (wide >= 0).all()
    assert torch.equal(wide, torch.cat([expanded(row, 11) for row in rows.split(1)]))
    assert (wide > 0).float().mean() > 0.2


@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=20), st.floats(0.01, 100))
@settings(max_examples=50, deadline=None)
def test_quantising_is_rounding_to_even_and_clipping(values, scale):
    found = quantised(torch.tensor([values]), scale)[0].tolist()
    scaled = np.array(values, dtype=np.float32) * np.float32(scale)
    assert found == np.clip(np.rint(scaled), -127, 127).astype(int).tolist()


def test_without_a_task_one_regression_tells_all_tasks_and_labels_apart():
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(4, 5))
    agent = clpu.Agent("ridge")
    x = {k: (centres[k] + rng.normal(size=(80, 5))).astype(np.float32) for k in range(4)}
    agent.learn("a", np.concatenate([x[0], x[1]]), ["one"] * 80 + ["two"] * 80)
    agent.learn("b", np.concatenate([x[2], x[3]]), [1] * 80 + [2] * 80, temporary=True)
    assert agent.labels(None) == (("a", "one"), ("a", "two"), ("b", 1), ("b", 2), None)
    for k, pair in enumerate(agent.labels(None)[:4]):
        assert np.mean([found == pair for found in agent.classify(None, x[k])]) > 0.9, pair
    # The scores are those of one task that has all four classes.
    together = clpu.Agent("ridge")
    together.learn("all", np.concatenate([x[k] for k in range(4)]), np.repeat(np.arange(4), 80))
    four = agent.predict(None, x[0])[:, :4]
    np.testing.assert_allclose(four / four.sum(1, keepdims=True), together.predict("all", x[0]), rtol=1e-4)
    agent.forget("b")
    assert agent.labels(None) == (("a", "one"), ("a", "two"), None)


def test_too_many_records_for_64_bits_are_refused(monkeypatch):
    monkeypatch.setattr("clpu.methods.ridge.MAX_VALUE", 2**30)
    agent = clpu.Agent("ridge")
    before = agent.digest()
    with pytest.raises(clpu.BadData, match="64 bits"):
        agent.learn("1", *data())
    assert agent.digest() == before
    agent.learn("1", *data(5))
    before = agent.digest()
    for request, task in ((agent.add, "1"), (agent.learn, "2")):  # without a task, the sums of all tasks are added
        with pytest.raises(clpu.BadData, match="64 bits"):
            request(task, *data(5, seed=1))
    assert agent.digest() == before


def test_what_is_held_about_a_person_is_shown_and_gone_after_the_forget():
    x, _ = data(6, labels=2)
    agent = clpu.Agent("ridge")
    agent.learn("mail", x[:4], [0, 1, 1, 0], people=[["ann", "bob"], "bob", "ann", None], records=[10, 11, 12, 13])
    agent.learn("calls", x[4:], [5, 5], people=["ann", "cy"], temporary=True)
    assert agent.show(person="ann") == {
        "calls": {"status": "T", "records": 1, "labels": {5: 1}, "people": ["ann"], "ids": []},
        "mail": {"status": "R", "records": 2, "labels": {0: 1, 1: 1}, "people": ["ann", "bob"], "ids": ["10", "12"]},
    }
    assert agent.show("mail")["mail"]["records"] == 4
    assert list(agent.show("mail")["mail"]["labels"]) == [0, 1]
    agent.forget(person="ann")
    assert agent.show("mail")["mail"] == {
        "status": "R",
        "records": 2,
        "labels": {0: 1, 1: 1},
        "people": ["bob"],
        "ids": ["11", "13"],
    }
    with pytest.raises(clpu.NothingHeld, match="nothing is held about person 'ann'"):
        agent.show(person="ann")
    assert b"ann" not in agent.state().to_bytes()


def test_a_retry_adds_nothing_twice():
    x, y = data(10)
    agent = clpu.Agent("ridge")
    agent.learn("1", x, y, records=range(10))
    before = agent.digest()
    with pytest.raises(clpu.BadData, match="'3' already exists"):
        agent.add("1", x[3:5], y[3:5], records=[3, 77])
    assert agent.digest() == before
    agent.forget("1", records=[3])
    agent.add("1", x[3:4], y[3:4], records=[3])
    assert agent.digest() == before


FORGETS_WITHOUT_TORCH = """
import sys
from clpu.state import State
state = State.from_bytes(sys.stdin.buffer.read()).without(person="ann").without("1", labels=[1])
assert "torch" not in sys.modules
print(state.digest())
"""


def test_a_state_forgets_people_without_torch():
    x, y = data(20)
    agent = clpu.Agent("ridge")
    agent.learn("1", x, y, people=["ann", "bob"] * 10)
    saved = agent.state().to_bytes()
    done = subprocess.run([sys.executable, "-c", FORGETS_WITHOUT_TORCH], input=saved, capture_output=True)
    agent.forget(person="ann")
    agent.forget("1", labels=[1])
    assert done.stdout.decode().strip() == agent.digest(), done.stderr.decode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: Records(r.rows, r.y + 9, r.labels, r.ids),
        lambda r: Records(r.rows[:-1], r.y, r.labels, r.ids),
        lambda r: Records(r.rows, r.y, (2, 1, 0), r.ids),
        lambda r: Records(r.rows, r.y, (0, "1", 2), r.ids),
        lambda r: Records(r.rows, r.y, r.labels, ("same",) * len(r)),
    ],
    ids=["label out of range", "a row missing", "labels out of order", "labels of two kinds", "equal ids"],
)
def test_damaged_records_are_refused(damage, monkeypatch):
    x, y = data(20)
    agent = clpu.Agent("ridge")
    agent.learn("1", x, y, records=range(20))
    state = agent.state()
    bad = damage(Records.of_leaf(state.tasks["1"].people[()]))
    arrays = {"rows": bad.rows, "y": bad.y.astype(np.int32)}
    for name, names in (("labels", bad.labels), ("ids", bad.ids)):
        arrays[name] = np.frombuffer(json.dumps(list(names), separators=(",", ":")).encode(), dtype=np.uint8)
    task = state.tasks["1"]
    broken = State(state.about, None, {"1": type(task)("R", task.facts, None, {(): clpu.state.Leaf.of_arrays(arrays)})})
    with pytest.raises(clpu.BadState):
        clpu.Agent.from_state(broken)


@pytest.mark.parametrize(
    "ids",
    [[3, 4], np.array([3, 4]), torch.tensor([3, 4]), (str(i) for i in (3, 4)), {3, 4}, range(3, 5)],
    ids=["list", "array", "tensor", "generator", "set", "range"],
)
def test_records_are_named_by_any_list_of_ids(ids):
    x, y = data(10)
    agent, never = clpu.Agent("ridge"), clpu.Agent("ridge")
    agent.learn("1", x, y, records=range(10))
    agent.forget("1", records=ids)
    rest = [0, 1, 2, *range(5, 10)]
    never.learn("1", x[rest], y[rest], records=rest)
    assert agent.digest() == never.digest()


@pytest.mark.parametrize("people", [{"ann": 1, "bob": 2}, {"ann", "bob"}], ids=["dictionary", "set"])
def test_people_without_an_order_are_refused(people):
    with pytest.raises(clpu.BadData, match="people must be a list"):
        clpu.Agent("ridge").learn("1", *data(2), people=people)


def test_a_missing_person_is_nobody_in_particular():
    agent = clpu.Agent("ridge")
    agent.learn("1", *data(3), people=["ann", None, float("nan")])
    assert agent.show("1")["1"]["people"] == ["ann"]
    with pytest.raises(clpu.BadData, match=r"a string or an integer, got float: 2\.0"):
        agent.add("1", *data(3), people=[1, 2.0, 3])


@pytest.mark.parametrize("form", ["arrays", "table", "dataset"])
def test_a_request_that_leaves_people_out_takes_data_in_any_form(form):
    x, y = data(12, labels=2)
    people = ["ann", "bob", "cy"] * 4
    rest = [i for i in range(12) if people[i] != "bob"]
    never, agent = clpu.Agent("ridge"), clpu.Agent("ridge")
    columns = {str(k): x[:, k] for k in range(5)}
    if form == "table":
        never.learn("1", {name: values[rest] for name, values in columns.items()}, y[rest], people=["ann", "cy"] * 4)
        agent.handle("1@bobR", {**columns, "y": y, "who": people}, "y", people="who")
    elif form == "dataset":
        never.learn("1", x[rest], y[rest], people=["ann", "cy"] * 4)
        agent.handle("1@bobR", torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), people=people)
    else:
        never.learn("1", x[rest], y[rest], people=["ann", "cy"] * 4)
        agent.handle("1@bobR", x, y, people=people)
    assert agent.digest() == never.digest()


def test_a_request_that_leaves_everything_out_is_as_if_it_had_not_been():
    x, y = data(6)
    agent = clpu.Agent("ridge")
    assert agent.handle("1@annR", x, y, people=["ann"] * 6) is None
    assert agent.digest() == clpu.Agent("ridge").digest()


def test_methods_that_keep_no_records_do_not_say_that_nothing_is_held():
    agent = clpu.Agent("ind", hidden=(4,), epochs=1)
    agent.learn("1", *data(12))
    with pytest.raises(clpu.BadRequest, match="ind keeps no single records"):
        agent.show(person="ann")


@pytest.mark.parametrize("given", [{"expand": 50}, {"scale": 8.0}], ids=str)
def test_what_decides_about_the_rows_is_the_same_for_all_tasks(given):
    """Further records, and questions without a task, would be answered with rows of a different kind."""
    agent = clpu.Agent("ridge")
    with pytest.raises(clpu.BadSetting, match="setting of the agent"):
        agent.learn("1", *data(), **given)
    assert agent.tasks == {}


def test_a_task_keeps_the_penalty_that_it_was_learned_with():
    x, y = data()
    light, heavy = clpu.Agent("ridge"), clpu.Agent("ridge", penalty=100.0)
    light.learn("1", x[:40], y[:40], penalty=100.0)
    light.add("1", x[40:], y[40:])
    heavy.learn("1", x, y)
    assert (light.predict("1", x) == heavy.predict("1", x)).all()
