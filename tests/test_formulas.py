"""The formulas of the paper for training and replay, each against an independent, obvious computation."""

import torch
import torch.nn.functional as F

from clpu import Agent
from clpu.learning.batches import Batches
from clpu.learning.randomness import generators
from clpu.networks.blueprint import Inputs
from clpu.networks.network import Network
from clpu.testing import make_task, run_stream
from formulakit import (
    SETTINGS,
    both_paths,
    by_task,
    drawn,
    examples,
    fresh,
    known_to,
    main_of,
    with_fresh_head,
)
from oracle import Plain, assert_steps, recorded


@both_paths
def test_learning_is_plain_sgd_on_cross_entropy():
    data = examples("1")
    with recorded() as runs:
        agent = run_stream("1R", "seq", seeds=[3, 8], **SETTINGS)
    start = fresh(agent, "1")
    batches = list(Batches(data, 2, 16, generators([3, 8], "1", "order")))
    for k in range(2):
        losses = [lambda m, b=b: F.cross_entropy(m("1", b.x[k]), b.y[k]) for b in batches]  # noqa: B023
        assert_steps(*runs, start, losses, 0.05, 0.01, main_of(agent), k)


@both_paths
def test_a_second_task_with_der_is_sgd_on_the_papers_objective():
    before = run_stream("1R 2R", "der++", seed=5, **SETTINGS)
    start = with_fresh_head(before, "3")
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    rehearsal = drawn(known_to(before).memories, 32, generators([5], "3", "rehearsal"))

    def loss(batch, samples):
        def of(model):
            total = F.cross_entropy(model("3", batch.x[0]), batch.y[0])
            for task, x, y, logits in by_task(samples):
                out = model(task, x)
                total = total + (0.5 * F.mse_loss(out, logits) + 1.0 * F.cross_entropy(out, y)) / 2
            return total

        return of

    losses = [loss(b, rehearsal.draw()) for b in Batches(examples("3"), 2, 16, generators([5], "3", "order"))]
    assert_steps(*runs, start, losses, 0.05, 0.01, main_of(after))


@both_paths
def test_a_merge_is_sgd_on_the_tasks_own_memory_and_the_mean_over_remembered_ones():
    before = run_stream("1R 3R 2T", "clpu-der++", seed=5, alpha=0.4, beta=0.9, **SETTINGS)
    memories = known_to(before).memories
    start = with_fresh_head(before, "2")
    after = before.copy()
    with recorded() as runs:
        after.keep("2")
    own = drawn({"2": memories["2"]}, 32, generators([5], "2", "merge"))
    others = drawn({t: memories[t] for t in "13"}, 32, generators([5], "2", "merge rehearsal"))

    def step():
        [mine], past = list(by_task(own.draw())), list(by_task(others.draw()))
        assert len(mine[1]) == 32
        assert [(p[0], len(p[1])) for p in past] == [("1", 16), ("3", 16)]

        def term(model, part):
            task, x, y, logits = part
            return 0.4 * F.mse_loss(model(task, x), logits) + 0.9 * F.cross_entropy(model(task, x), y)

        return lambda model: term(model, mine) + (term(model, past[0]) + term(model, past[1])) / 2

    steps = before.state().tasks["2"].facts["steps"]
    assert steps == 2 * 3
    assert_steps(*runs, start, [step() for _ in range(steps)], 0.05, 0.01, main_of(after))
    assert "2" not in known_to(after).isolated
    assert after.tasks["2"] == "R"


@both_paths
def test_forgetting_with_er_is_sgd_on_the_memories_that_remain():
    before = run_stream("1R 2T 3R", "er", seed=5, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    left = {t: known_to(before).memories[t] for t in "13"}
    rehearsal = drawn(left, 32, generators([5], "2", "forget"))

    def loss(samples):
        return lambda model: sum(F.cross_entropy(model(task, x), y) for task, x, y, _ in by_task(samples)) / 2

    losses = [loss(rehearsal.draw()) for _ in range(6)]
    assert_steps(*runs, main_of(before), losses, 0.05, 0.01, main_of(after))


def test_the_memory_holds_the_logits_that_each_example_had_when_it_was_seen_or_has_in_the_end():
    agent = run_stream("1R", "der++", memory=1000, logits="online", **SETTINGS)
    start, online = fresh(agent, "1"), known_to(agent)
    final = known_to(run_stream("1R", "der++", memory=1000, logits="final", **SETTINGS))
    first = next(iter(Batches(examples("1"), 2, 16, generators([0], "1", "order"))))
    memory = online.memories["1"]
    assert torch.equal(memory.x[:, :16], first.x)  # the reservoir is larger than the data, so it keeps their order
    assert torch.allclose(memory.logits[0, :16].double(), Plain(start)("1", first.x[0]), atol=1e-5)
    memory = final.memories["1"]
    assert torch.allclose(memory.logits[0].double(), Plain(final.main)("1", memory.x[0]), atol=1e-5)
    assert not torch.allclose(memory.logits, online.memories["1"].logits, atol=1e-3)


@both_paths
def test_a_temporary_network_starts_from_the_main_one_or_from_scratch():
    for name, start_of in [
        ("clpu-der++", main_of),
        ("clpu-der++-scratch", lambda agent: agent.new_method().fresh_network(Inputs((6,)), "2")),
    ]:
        before = run_stream("1R", name, seed=5, **SETTINGS)
        head = before.new_method().blueprint.head(8, 3, [5], "2")
        start = Network(start_of(before).body, {"2": head}, main_of(before).pixels)
        after = before.copy()
        with recorded() as runs:
            after.learn("2", *make_task("2"), temporary=True)
        batches = Batches(examples("2"), 2, 16, generators([5], "2", "order"))
        losses = [lambda m, b=b: F.cross_entropy(m("2", b.x[0]), b.y[0]) for b in batches]
        assert_steps(*runs, start, losses, 0.05, 0.01, known_to(after).isolated["2"])
        assert after.state().shared is before.state().shared


@both_paths
def test_er_can_pull_the_forgotten_task_to_uniform():
    before = run_stream("1R 2T 3R", "er", seed=5, uniform_loss=True, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    memories = known_to(before).memories
    kept = drawn({t: memories[t] for t in "13"}, 32, generators([5], "2", "forget"))
    gone = drawn({"2": memories["2"]}, 32, generators([5], "2", "forget uniformly"))

    def loss(kept, gone):
        def of(model):
            [(task, x, _, _)] = by_task(gone)
            retained = sum(F.cross_entropy(model(t, x), y) for t, x, y, _ in by_task(kept)) / 2
            return retained - F.log_softmax(model(task, x), -1).mean()

        return of

    losses = [loss(kept.draw(), gone.draw()) for _ in range(6)]
    assert_steps(*runs, main_of(before), losses, 0.05, 0.01, main_of(after))


def test_settings_default_to_the_papers():
    """But for epochs, batch size and learning rate, which follow from the data (tests/test_auto.py)."""
    defaults = Agent("der++").settings
    expected = {
        "memory": 200,
        "replay_batch_size": 32,
    }
    assert expected.items() <= defaults.items()
    assert {
        "alpha": 0.5,
        "beta": 1.0,
        "logits": "online",
        "uniform_loss": False,
        "hidden": (100, 100),
    }.items() <= defaults.items()
    assert Agent("ewc").settings["strength"] == 100.0
    assert Agent("lwf").settings["temperature"] == 2.0
    assert Agent("lsf").settings["mnemonic"] == 10.0
    assert Agent(network="resnet18").settings["width"] == 64


# Tasks of unequal sizes, temporary tasks among the past ones


def unequal(task):
    return make_task(task, examples={"1": 48, "2": 20, "3": 80}.get(task, 48))


def test_a_merge_and_a_forget_take_as_many_steps_as_their_own_task_took():
    for method, requests, phase in [("clpu-der++", "1R 3R 2T", "merge"), ("der++", "1R 3R 2T", "forget")]:
        agent = run_stream(requests, method, unequal, **SETTINGS)
        steps = []
        agent.progress = lambda p, steps=steps: steps.append((p.phase, p.steps))
        agent.keep("2") if phase == "merge" else agent.forget("2")
        assert set(steps) == {(phase, 2 * 2)}, method


@both_paths
def test_forgetting_with_der_rehearses_the_others_with_weights_1_and_1():
    before = run_stream("1R 2T 3T", "der++", seed=5, alpha=0.2, beta=0.3, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    rehearsal = drawn({t: known_to(before).memories[t] for t in "13"}, 32, generators([5], "2", "forget"))

    def loss(samples):
        def of(model):
            parts = list(by_task(samples))
            return sum(F.mse_loss(model(t, x), h) + F.cross_entropy(model(t, x), y) for t, x, y, h in parts) / 2

        return of

    losses = [loss(rehearsal.draw()) for _ in range(6)]
    assert_steps(*runs, main_of(before), losses, 0.05, 0.01, main_of(after))


@both_paths
def test_er_rehearses_temporary_tasks_too():
    before = run_stream("1T 2R", "er", seed=5, **SETTINGS)
    start = with_fresh_head(before, "3")
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    rehearsal = drawn(known_to(before).memories, 32, generators([5], "3", "rehearsal"))

    def loss(batch, samples):
        parts = list(by_task(samples))
        assert [p[0] for p in parts] == ["1", "2"]
        return lambda m: (
            F.cross_entropy(m("3", batch.x[0]), batch.y[0])
            + sum(F.cross_entropy(m(t, x), y) for t, x, y, _ in parts) / 2
        )

    losses = [loss(b, rehearsal.draw()) for b in Batches(examples("3"), 2, 16, generators([5], "3", "order"))]
    assert_steps(*runs, start, losses, 0.05, 0.01, main_of(after))
