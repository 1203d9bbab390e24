"""CLPU-Live: blends against the obvious computation, each step of its training against the oracle, and its leaves."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clpu.networks.fit
from clpu import Agent, BadSetting, BadState
from clpu.learning.batches import Batches, Examples
from clpu.learning.blends import STEPS_AT_ONCE, Blends
from clpu.learning.memory import Memory, Rehearsal
from clpu.learning.randomness import generators
from clpu.methods import clpu_live
from clpu.methods.clpu_live import Lessons
from clpu.networks.parts import Pixels
from clpu.state import Leaf
from clpu.testing import checks_for, make_task, run_stream
from oracle import LEARNERS, Plain, assert_steps, recorded

SETTINGS = {
    "hidden": (12, 8),
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.05,
    "weight_decay": 0.01,
    "noise": 0.34,
    "scaling": "none",
}


def known_to(agent):
    return agent.new_method().read(agent.state())


def blends_of(memories, purpose, task, count=32, noise=0.34, seeds=(5,), pixels=None, classes=3):
    sources = generators(seeds, task, purpose)
    return Blends(memories, dict.fromkeys(memories, classes), count, noise, sources, pixels or Pixels())


def examples(task):
    x, y = make_task(task)
    labels = sorted(set(y))
    return Examples(torch.tensor(x), torch.tensor([labels.index(v) for v in y]), tuple(labels))


@pytest.fixture(params=LEARNERS)
def _path(request, monkeypatch):
    """Both ways in which `fit` trains an MLP by plain SGD."""
    if request.param == "ordinary":
        monkeypatch.setattr(clpu.networks.fit, "folded_learner", lambda network, descent: None)


# Blends


def memory_of(kind, replicas=2, kept=7, shape=(2, 3), seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (replicas, kept, *shape), generator=source)
    x = {"bytes": x.to(torch.uint8), "floats": x / 16 - 4, "tokens": x}[kind]
    return Memory(x, torch.zeros(replicas, kept, dtype=torch.int64))


@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_a_blend_is_lambda_a_plus_the_rest_of_b_with_noise_in_a_share_of_places(kind):
    memories = {"a": memory_of(kind), "b": memory_of(kind, seed=1)}
    drawn = blends_of(memories, "p", "t", count=10, noise=0.5, seeds=[3, 4], pixels=Pixels())
    numbers = torch.stack(
        [torch.rand(STEPS_AT_ONCE, 2, 5, 3 + 2 * 3, generator=g) for g in generators([3, 4], "t", "p")]
    ).double()
    for step in range(3):
        [(tasks, x)] = drawn.draw()
        assert tasks == ("a", "b")
        assert x.shape == (2, 10, 2, 3)
        for k in range(2):
            for t, name in enumerate("ab"):
                memory = memories[name].x[k].double() / (255 if kind == "bytes" else 1)
                for i in range(5):
                    a, b, share, *rest = numbers[k, step, t, i].tolist()
                    expected = (share * memory[int(a * 7)] + (1 - share) * memory[int(b * 7)]).flatten()
                    for stretch, (where, value) in enumerate(zip(rest[:3], rest[3:])):
                        place = 2 * stretch + int(where * 2)
                        ends = (0, 1)
                        if kind == "floats":
                            here = memory.flatten(1)[:, place]
                            ends = (here.min(), here.max())
                        expected[place] = ends[0] + value * (ends[1] - ends[0])
                    assert torch.allclose(x[k, 5 * t + i].flatten().double(), expected, atol=1e-5)


def test_without_noise_a_blend_lies_between_two_examples_and_new_numbers_come_after_those_drawn_ahead():
    memory = memory_of("floats", replicas=1, kept=2)
    drawn = blends_of({"a": memory}, "p", "t", count=2000, noise=0)
    seen = [drawn.draw()[0][1] for _ in range(STEPS_AT_ONCE + 2)]
    low, high = memory.x.amin(1, keepdim=True), memory.x.amax(1, keepdim=True)
    assert all(((x >= low - 1e-4) & (x <= high + 1e-4)).all() for x in seen)
    assert len({tuple(x.flatten()[:600].tolist()) for x in seen}) == len(seen)
    one, other = memory.x[0, 0].flatten(), memory.x[0, 1].flatten()
    share = (seen[0].flatten(2)[0] - other) @ (one - other) / (one - other).square().sum()
    inside = share[(share > 1e-4) & (share < 1 - 1e-4)]
    assert 0.4 < len(inside) / 2000 < 0.6  # half of the pairs are an example with itself
    assert abs(float(inside.mean()) - 0.5) < 0.05


def test_tokens_are_drawn_as_they_are():
    memory = memory_of("tokens", replicas=1, kept=3)
    [(_, x)] = blends_of({"a": memory}, "p", "t", count=40).draw()
    rows = {tuple(row.flatten().tolist()) for row in x[0]}
    assert rows == {tuple(row.flatten().tolist()) for row in memory.x[0]}


def test_bytes_are_normalised_before_they_are_blended():
    memories, pixels = {"a": memory_of("bytes", shape=(2, 2, 2))}, Pixels((0.5, 0.25), (0.25, 0.5))
    [(_, plain)] = blends_of(memories, "p", "t", seeds=[3, 4], noise=0.25).draw()
    [(_, normal)] = blends_of(memories, "p", "t", seeds=[3, 4], noise=0.25, pixels=pixels).draw()
    mean, std = torch.tensor(pixels.mean).view(2, 1, 1), torch.tensor(pixels.std).view(2, 1, 1)
    assert torch.allclose(normal, (plain - mean) / std, atol=1e-5)


def test_a_mean_over_parts_is_the_mean_over_tasks():
    memories = {"a": memory_of("floats"), "b": memory_of("floats", kept=9), "c": memory_of("floats")}
    drawn = blends_of(memories, "p", "t")
    assert [tasks for tasks, _ in drawn.draw()] == [("a", "c"), ("b",)]
    assert float(drawn.mean([torch.tensor(3.0), torch.tensor(9.0)])) == pytest.approx(5)
    assert float(blends_of({}, "p", "t").mean([])) == 0


@pytest.mark.parametrize("noise", [-0.1, 1.1])
def test_noise_is_a_share(noise):
    with pytest.raises(BadSetting, match="noise must be at"):
        Agent("clpu-live", noise=noise)


# Training


def lessons_of(memories, purpose, task, teacher):
    """One step's loss after another, for the first replica: 1/n Σ (w·(f − g)² on blends + ℓ on examples)."""
    blends = blends_of(memories, purpose, task)
    replayed = Rehearsal(memories, dict.fromkeys(memories, 3), 32, generators([5], task, f"labelled {purpose}"))
    count = len(memories)

    def step(x, sample):
        assert x.shape[1] == sample.x.shape[1] == 32

        def loss(model):
            total = 0
            parts = zip(memories, x[0].chunk(count), sample.x[0].chunk(count), sample.y[0].chunk(count))
            for name, blended, example, y in parts:
                error = (model(name, blended) - teacher(name, blended).detach()).square().mean()
                total = total + (0.15 * error + F.cross_entropy(model(name, example), y)) / count  # 3 / (400·0.05)
            return total

        return loss

    while True:
        [(_, x)], [sample] = blends.draw(), replayed.draw()
        yield step(x, sample)


@pytest.mark.usefixtures("_path")
def test_a_task_is_learned_with_the_network_before_it_as_the_teacher_of_the_remembered_ones():
    before = run_stream("1R 2R", "clpu-live", seed=5, **SETTINGS)
    known = known_to(before)
    start = before.new_method().with_fresh_head(known.main, "3", 3)
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    teacher = Plain(known.main)
    lessons = lessons_of({t: known.memories[t] for t in "12"}, "rehearsal", "3", teacher)

    def loss(batch, lesson):
        return lambda model: F.cross_entropy(model("3", batch.x[0]), batch.y[0]) + lesson(model)

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    losses = [loss(batch, next(lessons)) for batch in batches]
    assert_steps(*runs, start, losses, 0.05, 0.01, known_to(after).main)


@pytest.mark.usefixtures("_path")
def test_a_merge_is_taught_by_both_networks_and_starts_from_the_temporary_ones_head():
    before = run_stream("1R 3R 2T", "clpu-live", seed=5, **SETTINGS)
    known = known_to(before)
    start = known.main.with_head("2", known.isolated["2"].heads["2"])
    after = before.copy()
    with recorded() as runs:
        after.keep("2")
    main, isolated = Plain(known.main), Plain(known.isolated["2"])
    mine = lessons_of({"2": known.memories["2"]}, "merge", "2", isolated)
    others = lessons_of({t: known.memories[t] for t in "13"}, "merge rehearsal", "2", main)
    losses = [
        lambda model, own=own, past=past: own(model) + past(model) for own, past, _ in zip(mine, others, range(6))
    ]
    assert_steps(*runs, start, losses, 0.05, 0.01, known_to(after).main)
    assert "2" not in known_to(after).isolated


@pytest.mark.parametrize(("lr", "classes", "weight"), [(0.01, 10, 1), (0.1, 10, 0.25), (0.01, 2, 0.5), (0.05, 20, 1)])
def test_the_squared_error_has_less_weight_where_steps_are_large_for_it(lr, classes, weight):
    lessons = Lessons(None, None, None, lr)
    assert lessons.weight(torch.zeros(1, 4, classes)) == pytest.approx(weight)


@pytest.mark.parametrize("steepest", [400, 1e-9])
def test_with_less_weight_large_steps_do_not_ruin_a_merge(steepest, monkeypatch):
    monkeypatch.setattr(clpu_live, "STEEPEST", steepest)
    digits, agent = clpu.data.load("digits").train, Agent("clpu-live", epochs=10, lr=0.2, seeds=[0, 1])
    for task, classes in {"1": [0, 1, 2, 3], "2": [4, 5, 6], "4": [7, 8, 9]}.items():
        rows = np.flatnonzero(np.isin(digits.y, classes))[:320]
        agent.learn(task, digits.x[rows], digits.y[rows], temporary=task == "2")
    worst = min(change.after for change in agent.keep("2").memory.values())
    assert worst > 0.9 if steepest == 400 else worst < 0.6  # 0.99 and 0.27, with either learner


def test_where_nothing_is_remembered_the_temporary_network_becomes_the_main_one():
    before = run_stream("2T 3T", "clpu-live", seed=5, **SETTINGS)
    after = before.copy()
    after.keep("2")
    isolated, main = known_to(before).isolated["2"], known_to(after).main
    assert main.parameters().keys() == isolated.parameters().keys()
    assert all(torch.equal(t, main.parameters()[name]) for name, t in isolated.parameters().items())
    assert after.state().tasks["3"].own is before.state().tasks["3"].own


# The state


def module():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 9), torch.nn.BatchNorm1d(9), torch.nn.ReLU())


@pytest.mark.parametrize("network", ["resnet18", "module"])
def test_it_conforms_on_other_networks(network):
    on = {"resnet18": ("resnet18",), "module": (module, (16,))}[network]
    for check in checks_for(clpu.METHODS["clpu-live"], *on):
        check(clpu.METHODS["clpu-live"])


def test_tasks_of_tokens_are_learned_merged_and_forgotten_exactly():
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(20, 8)

        def forward(self, x):
            return self.table(x).mean(1)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Words()

    def words(task):
        rng = np.random.default_rng([*task.encode()])
        y = np.arange(40) % 2
        return rng.integers(0, 10, (40, 5)) + 10 * y[:, None], y

    run = {
        s: run_stream(s, "clpu-live", words, network=module, epochs=4, lr=0.5) for s in ("1R 2T 3T 2R 3F", "1R 2T 2R")
    }
    actual, never = run.values()
    assert actual.digest() == never.digest()
    assert actual.accuracy("2", *words("2")) > 0.9


def test_a_leaf_holds_a_memory_without_logits_and_nothing_more():
    agent = run_stream("1R 2T", "clpu-live", **SETTINGS)
    tasks = agent.state().tasks
    assert sorted(tasks["1"].own.specs) == ["head/bias", "head/weight", "memory/x", "memory/y"]
    assert sorted(tasks["2"].own.specs)[:2] == ["isolated/bias", "isolated/weight"]
    tensors = {**tasks["1"].own.tensors, "memory/logits": torch.zeros(1, 48, 3)}
    entry = type(tasks["1"])("R", tasks["1"].facts, Leaf(tensors))
    with pytest.raises(BadState, match="unexpected tensor 'memory/logits'"):
        Agent.from_state(agent.state().with_task("1", entry))
