"""Each formula of the paper against an independent, obvious computation."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import clpu.networks.fit
from clpu import Agent
from clpu.learning.batches import Batches, Examples
from clpu.learning.losses import cross_entropy, distillation, softened, squared_error, towards_uniform, weighted
from clpu.learning.memory import Rehearsal
from clpu.learning.randomness import generators
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.learner import Descent, Learner, QuadraticPenalty
from clpu.networks.network import Network
from clpu.networks.parts import Each, Mixed
from clpu.testing import make_task, run_stream
from oracle import LEARNERS, Plain, assert_rounded, assert_steps, fisher, recorded

SETTINGS = {"hidden": (12, 8), "epochs": 2, "batch_size": 16, "lr": 0.05, "weight_decay": 0.01, "scaling": "none"}


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def examples(task):
    x, y = make_task(task)
    labels = sorted(set(y))
    return Examples(torch.tensor(x), torch.tensor([labels.index(v) for v in y]), tuple(labels))


def drawn(memories, samples, sources):
    return Rehearsal(memories, dict.fromkeys(memories, 3), samples, sources)


def by_task(samples):
    """The parts of the first replica's samples: task, x, y, logits."""
    for s in samples:
        share = s.x.shape[1] // len(s.tasks)
        for i, task in enumerate(s.tasks):
            rows = slice(i * share, (i + 1) * share)
            yield task, s.x[0, rows], s.y[0, rows], None if s.logits is None else s.logits[0, rows].double()


def known_to(agent):
    """What an agent's state holds, as networks, memories and further tensors."""
    return agent.new_method().read(agent.state())


def main_of(agent):
    return known_to(agent).main


def with_fresh_head(agent, task):
    """The main network with a head for a task of three classes that is about to be learned."""
    return agent.new_method().with_fresh_head(main_of(agent), task, 3)


def fresh(agent, task):
    """A network as drawn for the agent's seeds, with a head for the task."""
    method = agent.new_method()
    return method.with_fresh_head(method.fresh_network(Inputs((6,)), None), task, 3)


def warmed_up(agent, task):
    """The main network with a head for a task, which was trained first."""
    return agent.new_method().warm_up_head(agent.state(), main_of(agent), task, examples(task))


@pytest.fixture(params=LEARNERS)
def _path(request, monkeypatch):
    """Both ways in which `fit` trains an MLP by plain SGD."""
    if request.param == "ordinary":
        monkeypatch.setattr(clpu.networks.fit, "folded_learner", lambda network, descent: None)


both_paths = pytest.mark.usefixtures("_path")
each_learner = pytest.mark.parametrize("train", LEARNERS.values(), ids=LEARNERS)


def mixture(batch, codes, share):
    """The inputs that LSF mixes with the codes of their classes."""
    share = share.double().unsqueeze(1)
    return share * batch.x[0] + (1 - share) * codes[batch.y[0]]


# Loss terms


def test_cross_entropy_is_log_sum_exp_minus_the_chosen_output():
    logits, y = some(2, 3, 4), torch.tensor([[0, 3, 1], [2, 2, 0]])
    by_hand = sum(
        (math.log(sum(math.exp(v) for v in logits[k, i].tolist())) - float(logits[k, i, y[k, i]])) / 6
        for k in range(2)
        for i in range(3)
    )
    assert float(cross_entropy(logits, y)) == pytest.approx(by_hand, rel=1e-5)


def test_squared_error_is_the_mean_over_replicas_batch_and_classes():
    a, b = some(2, 3, 4), some(2, 3, 4, seed=1)
    by_hand = sum(((a[k] - b[k]) ** 2).sum().item() / 24 for k in range(2))
    assert float(squared_error(a, b)) == pytest.approx(by_hand, rel=1e-5)


def test_distillation_is_the_cross_entropy_of_softened_outputs():
    new, old = some(2, 3, 4), some(2, 3, 4, seed=1)
    by_hand = 0.0
    for k in range(2):
        for i in range(3):
            p = np.exp(old[k, i].numpy() / 2) / np.exp(old[k, i].numpy() / 2).sum()
            q = np.exp(new[k, i].numpy() / 2) / np.exp(new[k, i].numpy() / 2).sum()
            by_hand -= float((p * np.log(q)).sum()) / 6
    assert float(distillation(new, softened(old, 2.0), temperature=2.0)) == pytest.approx(by_hand, rel=1e-5)


def test_distillation_is_smallest_where_outputs_agree():
    old = some(1, 5, 4)
    target = softened(old, 2.0)
    assert float(distillation(old, target, temperature=2.0)) < float(
        distillation(old + 0.1 * some(1, 5, 4, seed=3), target, temperature=2.0)
    )


def test_the_uniform_term_is_smallest_at_equal_outputs_where_it_is_log_classes():
    assert float(towards_uniform(torch.zeros(1, 3, 4))) == pytest.approx(math.log(4))
    assert float(towards_uniform(some(1, 3, 4))) > math.log(4)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "term",
    [
        lambda h: cross_entropy(h, torch.tensor([[0, 3, 1], [2, 2, 0]])),
        lambda h: squared_error(h, some(2, 3, 4, seed=1)),
        lambda h: distillation(h, softened(some(2, 3, 4, seed=1), 3.0), temperature=3.0),
        towards_uniform,
    ],
)
def test_the_derivative_that_a_term_brings_is_the_one_that_autograd_finds(term, turned):
    outputs = (some(2, 4, 3).mT if turned else some(2, 3, 4)).requires_grad_()
    loss = 0.3 * term(outputs)
    [mine] = loss.terms
    [expected] = torch.autograd.grad(loss.value, outputs)
    with torch.no_grad():
        assert torch.allclose(mine.gradient(outputs, mine.weight), expected, atol=1e-7)


def test_losses_are_added_weighted_and_mixed_with_tensors_of_ones_own():
    h, y = some(2, 3, 4), torch.tensor([[0, 3, 1], [2, 2, 0]])
    ce, mse = cross_entropy(h, y), squared_error(h, torch.zeros_like(h))
    total = 2 * ce + mse / 4 + h.mean() + sum([ce, mse]) + h.std()
    by_hand = 3 * float(ce) + 1.25 * float(mse) + float(h.mean()) + float(h.std())
    assert float(total) == pytest.approx(by_hand, rel=1e-5)
    assert float(h.mean() + ce) == pytest.approx(float(ce) + float(h.mean()), rel=1e-5)
    assert float(weighted()) == 0


@each_learner
def test_a_loss_may_mix_terms_of_the_outputs_terms_of_parts_of_them_and_autograd(train):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    net = blueprint.network(Inputs((5,)), [0, 1]).with_head("a", blueprint.head(6, 4, [0, 1], "a"))
    net = net.with_head("b", blueprint.head(6, 4, [0, 1], "b"))
    x, y = some(2, 3, 5), torch.tensor([[0, 1, 1], [0, 0, 1]])
    losses = [
        lambda a, b: (
            cross_entropy(a, y) + cross_entropy(b[..., :2], y) + b.square().mean() + squared_error(a, a.detach() + 1)
        ),
        lambda a, b: (
            cross_entropy(a, y).value
            + F.cross_entropy(b[..., :2].flatten(0, 1), y.flatten())
            + b.square().mean()
            + F.mse_loss(a, a.detach() + 1)
        ),
    ]
    learners = [train(net, Descent(0.1, 0.01)) for _ in losses]
    for learner, loss in zip(learners, losses):
        learner.step(loss(*learner.logits(("a", x), ("b", x))))
    one, two = (learner.network() for learner in learners)
    for mine, theirs, start in zip(*(n.body.tensors.values() for n in (one, two, net))):
        assert torch.allclose(mine, theirs, atol=1e-7)
        assert not torch.allclose(mine, start, atol=1e-4)
    for task in "ab":
        assert torch.allclose(one.heads[task].weight, two.heads[task].weight, atol=1e-7)


@each_learner
@pytest.mark.parametrize("only", [None, ("head a.weight", "head a.bias")])
def test_a_loss_that_does_not_depend_on_the_outputs_is_refused(train, only):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    network = blueprint.network(Inputs((5,)), [0]).with_head("a", blueprint.head(6, 4, [0], "a"))
    learner = train(network, Descent(0.1, only=only))
    learner.logits(("a", some(1, 3, 5)))
    with pytest.raises(RuntimeError, match="does not depend"):
        learner.step(torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="does not depend"):  # without any call of logits
        learner.step(torch.tensor(1.0))


@each_learner
def test_a_loss_that_depends_only_on_what_is_not_trained_is_refused(train):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    network = blueprint.network(Inputs((5,)), [0])
    for task in "ab":
        network = network.with_head(task, blueprint.head(6, 4, [0], task))
    learner = train(network, Descent(0.1, only=["head a.weight", "head a.bias"]))
    with pytest.raises(RuntimeError, match="does not depend"):
        learner.step(learner.logits(("b", some(1, 3, 5)))[0].square().mean())


@each_learner
def test_a_call_that_failed_does_not_stand_in_the_way_of_the_next(train):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    network = blueprint.network(Inputs((5,)), [0]).with_head("a", blueprint.head(6, 4, [0], "a"))
    learner = train(network, Descent(0.1))
    with pytest.raises(KeyError):
        learner.logits(("b", some(1, 3, 5)))
    learner.step(learner.logits(("a", some(1, 3, 5)))[0].square().mean())


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: squared_error(a, b),
        lambda a, b: distillation(a, softened(b, 2.0), temperature=2.0),
        lambda a, b: cross_entropy(a, torch.tensor([[0, 1, 1], [0, 0, 1]])) * b.square().mean(),
        lambda a, b: towards_uniform(a) / b.square().mean() - squared_error(b, torch.zeros(())),
        lambda a, b: 1 - distillation(a, softened(torch.ones(1, 3, 4), 2.0), temperature=2.0),
    ],
)
@each_learner
def test_targets_and_factors_that_depend_on_the_network_or_broadcast_are_differentiated_like_by_autograd(loss, train):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    net = blueprint.network(Inputs((5,)), [0, 1]).with_head("a", blueprint.head(6, 4, [0, 1], "a"))
    net = net.with_head("b", blueprint.head(6, 4, [0, 1], "b"))
    x, learners = some(2, 3, 5), [train(net, Descent(0.1)) for _ in range(2)]
    for learner, made in zip(learners, (loss, lambda a, b: loss(a, b).value)):
        learner.step(made(*learner.logits(("a", x), ("b", x))))
    for mine, theirs, start in zip(*(n.body.tensors.values() for n in (*(i.network() for i in learners), net))):
        assert torch.allclose(mine, theirs, atol=1e-7)
        assert not torch.equal(mine, start)


def test_losses_that_are_no_number_are_refused():
    with pytest.raises(ValueError, match=r"one number, got a tensor of shape \(2,\)"):
        towards_uniform(some(1, 3, 4)) + torch.zeros(2)
    with pytest.raises(TypeError, match="not multiplied"):
        towards_uniform(some(1, 3, 4)) * towards_uniform(some(1, 3, 4))


def test_der_has_two_terms():
    agent = run_stream("1R", "der++", alpha=0.3, beta=0.7, **SETTINGS)
    [sample] = drawn(known_to(agent).memories, 8, generators([0], "t", "r")).draw()
    outputs = some(1, 8, 3)
    mse = ((outputs - sample.logits) ** 2).mean()
    assert torch.isclose(
        agent.new_method().replay_loss(sample, outputs).value,
        0.3 * mse + 0.7 * F.cross_entropy(outputs[0], sample.y[0]),
    )


# Descent


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


# EWC, LwF, LSF


def test_the_fisher_is_the_per_example_mean():
    agent = run_stream("1R", "ewc", seeds=[2, 9], **SETTINGS)
    data = examples("1")
    for k in range(2):
        expected = fisher(Plain(main_of(agent), k), "1", data.x, data.y)
        extras = known_to(agent).extras["1"]
        got = []
        for i in range(2):
            got += [extras[f"fisher/{i}.weight"][k].T, extras[f"fisher/{i}.bias"][k, 0]]
        for e, g in zip(expected, got):
            assert_rounded(g, e, 0 * e, "fisher")
        assert sum(float(e.sum()) for e in expected) > 0


@both_paths
def test_ewc_descends_on_cross_entropy_plus_the_penalty_of_every_past_task():
    before = run_stream("1R 2R", "ewc", seed=5, strength=30.0, **SETTINGS)
    start = with_fresh_head(before, "3")
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))

    def stored(task, kind):
        extras = known_to(before).extras[task]
        for i in range(2):
            yield extras[f"{kind}/{i}.weight"][0].T
            yield extras[f"{kind}/{i}.bias"][0, 0]

    def penalty(model):
        return 30.0 * sum(
            (f * (p - a) ** 2).sum()
            for task in "12"
            for f, a, p in zip(stored(task, "fisher"), stored(task, "anchor"), model.body.parameters())
        )

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    losses = [lambda m, b=b: F.cross_entropy(m("3", b.x[0]), b.y[0]) + penalty(m) for b in batches]
    assert_steps(*runs, start, losses, 0.05, 0.01, main_of(after))


def test_no_past_task_means_no_penalty():
    assert QuadraticPenalty.towards(100.0, []) is None


@both_paths
def test_lwf_trains_the_new_head_first_then_everything_with_distillation():
    before = run_stream("1R 2R", "lwf", seed=5, **SETTINGS)
    old = Plain(main_of(before))
    start = with_fresh_head(before, "3")
    warmed = warmed_up(before, "3")
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    warming, learning = runs
    warm = Batches(examples("3"), 2, 16, generators([5], "3", "warm-up order"))
    losses = [lambda m, b=b: F.cross_entropy(m("3", b.x[0]), b.y[0]) for b in warm]
    assert_steps(warming, start, losses, 0.05, 0.01, warmed, only="3")

    def loss(b):
        def of(model):
            total = F.cross_entropy(model("3", b.x[0]), b.y[0])
            for t in "12":
                p = F.softmax(old(t, b.x[0]).detach() / 2, -1)
                total = total - (p * F.log_softmax(model(t, b.x[0]) / 2, -1)).sum(-1).mean() / 2
            return total

        return of

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    assert_steps(learning, warmed, [loss(b) for b in batches], 0.05, 0.01, main_of(after))


@each_learner
def test_mixed_inputs_of_another_kind_at_a_later_step_are_not_taken_for_those_before(train):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    net = blueprint.network(Inputs((5,)), [0]).with_head("a", blueprint.head(6, 3, [0], "a"))
    learner = train(net, Descent(0.0))
    x, codes, y = some(1, 3, 5), some(1, 3, 5, seed=1), torch.tensor([[0, 2, 1]])
    pixels = torch.randint(0, 256, x.shape, generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    share = torch.tensor([[0.2, 0.5, 0.9]])
    for inputs, other in [(x, x), (pixels, pixels), (x, codes), (pixels, codes)]:
        floats, beside = (t / 255 if t.dtype == torch.uint8 else t for t in (inputs, other))
        mixed = share.unsqueeze(2) * floats + (1 - share.unsqueeze(2)) * codes[:, y[0]]
        outputs = learner.logits(("a", Mixed(inputs, codes, y, share)), ("a", other))
        for got, expected in zip(outputs, (mixed, beside)):
            assert torch.allclose(got, net.heads["a"](net.body.forward(expected)), atol=1e-5)
        learner.step(sum(outputs).mean())


@pytest.mark.parametrize(
    ("network", "train"),
    [
        *(("mlp", train) for train in LEARNERS.values()),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh()), Learner),
    ],
)
@pytest.mark.parametrize("pixels", [False, True])
def test_mixed_inputs_are_weighted_sums_of_each_input_and_its_classs_code(network, train, pixels):
    blueprint = Blueprint(network, {"hidden": (6, 5)} if network == "mlp" else {}, torch.device("cpu"))
    net = blueprint.network(Inputs((3, 8, 8)), [0, 1])
    for task in "ab":
        net = net.with_head(task, blueprint.head(net.body.features, 4, [0, 1], task))
    x, codes, y = some(2, 3, 3, 8, 8), some(2, 4, 3, 8, 8, seed=1), torch.tensor([[0, 3, 1], [2, 2, 0]])
    if pixels:
        x = torch.randint(0, 256, x.shape, generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    floats, share = x / 255 if pixels else x, some(2, 3, seed=2).abs() % 1
    expected = torch.stack(
        [
            torch.stack([share[k, i] * floats[k, i] + (1 - share[k, i]) * codes[k, y[k, i]] for i in range(3)])
            for k in range(2)
        ]
    )
    learner = train(net, Descent(0.1, 0.01))
    for _ in range(2):  # a second step, with weights that moved
        plain = train(learner.network(), Descent(0.1, 0.01))
        asked = [("a", x), ("a", Mixed(x, codes, y, share)), ("b", x), ("b", codes)]
        by_hand = [("a", floats), ("a", expected), ("b", floats), ("b", codes)]
        for each, parts in ((learner, asked), (plain, by_hand)):
            outputs = each.logits(*parts)
            with torch.no_grad():
                again = each.network().logits(*parts)
            assert all(torch.allclose(o, a, atol=1e-5) for o, a in zip(outputs, again))
            each.step(sum(cross_entropy(h, y) for h in outputs[:3]) + outputs[3].square().mean())
        mine, theirs = learner.network(), plain.network()
        for name, tensor in mine.parameters().items():
            assert torch.allclose(tensor, theirs.parameters()[name], atol=1e-5)
    assert not any(torch.allclose(mine.heads[task].weight, net.heads[task].weight, atol=1e-3) for task in "ab")


@both_paths
def test_lsf_forgets_by_training_on_the_codes_that_are_retained():
    before = run_stream("1R 2T 3R", "lsf", seed=5, strength=0.0, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    codes = {t: known_to(before).extras[t]["codes"][0] for t in "13"}

    def loss(model):
        return 10 * sum(F.cross_entropy(model(t, c), torch.arange(3)) for t, c in codes.items()) / 2

    assert_steps(*runs, main_of(before), [loss] * 6, 0.05, 0.01, main_of(after))
    assert set(known_to(after).extras) == {"1", "3"}


@both_paths
def test_lsf_learns_on_plain_and_mixed_inputs_codes_and_distillation():
    before = run_stream("1R", "lsf", seed=5, strength=0.0, **SETTINGS)
    warmed = warmed_up(before, "2")
    old = Plain(main_of(before))
    after = before.copy()
    with recorded() as runs:
        after.learn("2", *make_task("2"))
    codes, past = known_to(after).extras["2"]["codes"], known_to(before).extras["1"]["codes"]
    [mixing] = generators([5], "2", "mixing")

    def loss(b, share):
        def of(model):
            mixed = mixture(b, codes[0], share)
            new = F.cross_entropy(model("2", torch.cat([b.x[0], mixed])), torch.cat([b.y[0], b.y[0]]))
            p = F.softmax(old("1", b.x[0]).detach() / 2, -1)
            distilled = -(p * F.log_softmax(model("1", b.x[0]) / 2, -1)).sum(-1).mean()
            return new + distilled + 10 * F.cross_entropy(model("1", past[0]), torch.arange(3))

        return of

    batches = Batches(examples("2"), 2, 16, generators([5], "2", "order"))
    losses = [loss(b, torch.rand(b.x.shape[1], generator=mixing)) for b in batches]
    assert_steps(runs[-1], warmed, losses, 0.05, 0.01, main_of(after))


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


def test_ewc_and_lwf_protect_temporary_tasks_too():
    for method in ("ewc", "lwf"):
        kinds = {}
        for text in ("1T 2R", "1R 2R"):
            agent = run_stream(text, method, seed=5, **SETTINGS)
            agent.learn("3", *make_task("3"))
            kinds[text] = Plain(main_of(agent))
        for a, b in zip(kinds["1T 2R"].parameters(), kinds["1R 2R"].parameters()):
            assert torch.equal(a, b), method


def test_only_from_the_second_task_on_is_the_head_warmed_up():
    for method in ("lwf", "lsf"):
        phases = {}
        agent = run_stream("", method, **SETTINGS)
        for task in "12":
            seen = phases.setdefault(task, set())
            agent.progress = lambda p, seen=seen: seen.add(p.phase)
            agent.learn(task, *make_task(task))
        assert phases == {"1": {"learn"}, "2": {"warm-up", "learn"}}, method


def lsf_penalty(extras, strength):
    """strength · Σ_τ Σ F (θ − θ*)² over the body and each task's own head, as a function of a plain model."""

    def of(model):
        total = torch.zeros(())
        for task, kept in extras.items():
            parts = [("0", model.body[1]), ("1", model.body[3]), ("head", model.heads[task])]
            for name, layer in parts:
                total = (
                    total
                    + (
                        kept[f"fisher/{name}.weight"][0].T * (layer.weight - kept[f"anchor/{name}.weight"][0].T) ** 2
                    ).sum()
                )
                total = (
                    total
                    + (kept[f"fisher/{name}.bias"][0, 0] * (layer.bias - kept[f"anchor/{name}.bias"][0, 0]) ** 2).sum()
                )
        return strength * total

    return of


@both_paths
def test_lsf_learns_with_the_codes_and_the_penalty_of_every_past_task():
    before = run_stream("1R 2T", "lsf", seed=5, strength=20.0, **SETTINGS)
    warmed = warmed_up(before, "3")
    old, past = Plain(main_of(before)), known_to(before).extras
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    codes = known_to(after).extras["3"]["codes"]
    [mixing] = generators([5], "3", "mixing")
    penalty = lsf_penalty(past, 20.0)

    def loss(b, share):
        def of(model):
            mixed = mixture(b, codes[0], share)
            total = F.cross_entropy(model("3", torch.cat([b.x[0], mixed])), torch.cat([b.y[0], b.y[0]])) + penalty(
                model
            )
            for t in "12":
                p = F.softmax(old(t, b.x[0]).detach() / 2, -1)
                total = total - (p * F.log_softmax(model(t, b.x[0]) / 2, -1)).sum(-1).mean() / 2
                total = total + 10 * F.cross_entropy(model(t, past[t]["codes"][0]), torch.arange(3)) / 2
            return total

        return of

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    losses = [loss(b, torch.rand(b.x.shape[1], generator=mixing)) for b in batches]
    assert_steps(runs[-1], warmed, losses, 0.05, 0.01, main_of(after))


@both_paths
def test_lsf_forgets_with_the_penalty_of_the_tasks_that_stay():
    before = run_stream("1R 2T 3R", "lsf", seed=5, strength=20.0, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    kept = {t: known_to(before).extras[t] for t in "13"}
    penalty = lsf_penalty(kept, 20.0)

    def loss(model):
        coded = sum(F.cross_entropy(model(t, k["codes"][0]), torch.arange(3)) for t, k in kept.items())
        return 10 * coded / 2 + penalty(model)

    assert_steps(*runs, main_of(before), [loss] * 6, 0.05, 0.01, main_of(after))


def test_the_fisher_of_a_head_is_the_per_example_mean():
    agent = run_stream("1R", "lsf", **SETTINGS)
    data, model = examples("1"), Plain(main_of(agent))
    total = torch.zeros_like(model.heads["1"].weight)
    for x, y in zip(data.x, data.y):
        model.zero_grad()
        log_p = F.log_softmax(model("1", x.unsqueeze(0)), -1)[0, y]
        log_p.backward()
        total += log_p.exp().detach() * model.heads["1"].weight.grad ** 2 / len(data)
    assert_rounded(known_to(agent).extras["1"]["fisher/head.weight"][0].T, total, 0 * total, "fisher")


def test_the_fisher_may_be_estimated_from_some_of_the_examples():
    x, y = make_task("1", 48)
    some_rows = [0, 16, 31, 47]
    whole, part = (Agent("ewc", fisher_samples=n, **SETTINGS) for n in (0, 4))
    for agent in (whole, part):
        agent.learn("1", x, y)
    kept = known_to(part).extras["1"]
    assert not torch.equal(known_to(whole).extras["1"]["fisher/0.weight"], kept["fisher/0.weight"])
    classes = torch.from_numpy((y - 7) // 10)
    expected = main_of(part).fisher("1", torch.from_numpy(x)[some_rows], classes[some_rows])
    for name, value in expected.items():
        assert torch.equal(kept[f"fisher/{name}"], value)


@both_paths
def test_lsf_treats_past_tasks_alike_whatever_their_numbers_of_classes():
    classes = {"1": 3, "2": 2, "3": 3}
    before = Agent("lsf", seed=5, strength=20.0, **SETTINGS)
    for task, count in classes.items():
        before.learn(task, *make_task(task, classes=count))
    warmed = warmed_up(before, "4")
    old, past = Plain(main_of(before)), known_to(before).extras
    after = before.copy()
    with recorded() as runs:
        after.learn("4", *make_task("4"))
    codes = known_to(after).extras["4"]["codes"]
    [mixing] = generators([5], "4", "mixing")
    penalty = lsf_penalty(past, 20.0)

    def loss(b, share):
        def of(model):
            mixed = mixture(b, codes[0], share)
            total = F.cross_entropy(model("4", torch.cat([b.x[0], mixed])), torch.cat([b.y[0], b.y[0]]))
            for t, count in classes.items():
                p = F.softmax(old(t, b.x[0]).detach() / 2, -1)
                total = total - (p * F.log_softmax(model(t, b.x[0]) / 2, -1)).sum(-1).mean() / 3
                total = total + 10 * F.cross_entropy(model(t, past[t]["codes"][0]), torch.arange(count)) / 3
            return total + penalty(model)

        return of

    batches = Batches(examples("4"), 2, 16, generators([5], "4", "order"))
    losses = [loss(b, torch.rand(b.x.shape[1], generator=mixing)) for b in batches]
    assert_steps(runs[-1], warmed, losses, 0.05, 0.01, main_of(after))


def test_inputs_go_through_each_head_of_a_group_in_the_order_of_its_tasks():
    agent = run_stream("1R 2R 3R", "seq", seeds=[0, 1], **SETTINGS)
    network, x = main_of(agent), some(2, 5, 6)
    for learner in (network, *(train(network, Descent(0.1)) for train in LEARNERS.values())):
        alone = [network.logits((t, x))[0] for t in "132"]
        own, together, parts = learner.logits(("2", x), (Each(("1", "3")), x), (("1", "3"), torch.cat([x, x], 1)))
        assert torch.allclose(own, alone[2], atol=1e-6)
        assert torch.allclose(together, torch.cat(alone[:2], 1), atol=1e-6)
        assert torch.allclose(parts, together, atol=1e-6)
