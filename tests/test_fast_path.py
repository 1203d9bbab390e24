"""The fast path of `fit` against the ordinary learner, one step at a time from a common state.

The oracle is the ordinary learner in float64; what may differ is the rounding of one step in float32. These are the
tests of speed: without the folder clpu/networks/fast there is nothing to test.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("clpu.networks.fast")

from clpu.learning.losses import (
    Loss,
    cross_entropy,
    distillation,
    mean,
    softened,
    squared_error,
    towards_uniform,
    weighted,
)
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.body import PrecomputedFeatures
from clpu.networks.fast import folded_learner
from clpu.networks.learner import Descent, Learner, QuadraticPenalty
from clpu.networks.linear import Linear
from clpu.networks.network import Network
from clpu.networks.parts import Each, Mixed, Pixels
from oracle import EPS, ClearOfBends, assert_rounded

SHAPE = (2, 2, 2)
#: Tasks and their numbers of classes.
CLASSES = {"a": 3, "b": 3, "c": 3, "d": 2}
BODY = ("0.weight", "0.bias", "1.weight", "1.bias")
PIXELS = {"plain": Pixels(), "normalised": Pixels(mean=(0.4, 0.6), std=(0.3, 0.2))}

replicas = pytest.mark.parametrize("replicas", [1, 3])


def some(*shape, seed=0):
    """Numbers that are the same on every CPU."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).float()


def bytes_like(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def classes_of(outputs, classes=None):
    """A class for every row of some outputs."""
    rows = torch.arange(outputs.shape[0] * outputs.shape[1]).view(outputs.shape[:2])
    return rows * 5 // 3 % (classes or outputs.shape[2])


def network(replicas=2, pixels=PIXELS["plain"]):
    """An MLP with a head for each task."""
    blueprint = Blueprint("mlp", {"hidden": (7, 6)}, torch.device("cpu"))
    seeds = range(10, 10 + replicas)
    heads = {task: blueprint.head(6, classes, seeds, task) for task, classes in CLASSES.items()}
    return Network(blueprint.body(Inputs(SHAPE), seeds), heads, pixels)


def head_of(*tasks):
    return [f"head {task}.{part}" for task in tasks for part in ("weight", "bias")]


class InFloat64:
    """The ordinary learner on a copy of a network in float64; notes the outputs that it gave."""

    def __init__(self, network, descent):
        tensors = {name: tensor.double() for name, tensor in network.body.tensors.items()}
        heads = {task: Linear(head.weight.double(), head.bias.double()) for task, head in network.heads.items()}
        self.pixels = network.pixels
        self.learner = Learner(Network(network.body.with_tensors(tensors), heads, Pixels()), descent)
        self.parameters, self.step, self.network = self.learner.parameters, self.learner.step, self.learner.network
        self.outputs = []

    def logits(self, *parts):
        with ClearOfBends():
            outputs = self.learner.logits(*((tasks, self._wide(x)) for tasks, x in parts))
        self.outputs += outputs
        return outputs

    def _wide(self, x):
        if isinstance(x, Mixed):
            return Mixed(self._wide(x.x), self._wide(x.codes), x.y, x.share)
        if x.dtype != torch.uint8 or not self.pixels.mean:
            return x.double() / (255 if x.dtype == torch.uint8 else 1)
        mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (self.pixels.mean, self.pixels.std))
        return (x.double() / 255 - mean) / std


class Noting:
    """The fast learner, with a note of the outputs that it gave."""

    def __init__(self, network, descent):
        self.learner = folded_learner(network, descent)
        assert self.learner is not None, "this should take the fast path"
        self.parameters, self.step, self.network = self.learner.parameters, self.learner.step, self.learner.network
        self.outputs = []

    def logits(self, *parts):
        outputs = self.learner.logits(*parts)
        self.outputs += outputs
        return outputs


def assert_same_steps(start, descent, losses):
    """The fast learner takes a step on each of these losses, and each time the ordinary one takes the same step.

    A loss is a function of what is being trained. Returns the network at the end.
    """
    fast = Noting(start, descent)
    for number, loss in enumerate(losses):
        slow, fast.outputs = InFloat64(fast.network(), descent), []
        old = {name: tensor.clone() for name, tensor in fast.network().parameters().items()}
        wanted, mine = loss(slow), loss(fast)
        for got, expected in zip(fast.outputs, slow.outputs, strict=True):
            assert got.shape == expected.shape
            assert (got - expected).abs().max() <= 64 * EPS * (1 + expected.abs().max())
        try:
            slow.step(wanted)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)):
                fast.step(mine)
            continue
        fast.step(mine)
        after, expected = fast.network().parameters(), slow.network().parameters()
        assert after.keys() == expected.keys()
        for name, tensor in after.items():
            if torch.equal(expected[name], old[name].double()):
                assert torch.equal(tensor, old[name]), f"step {number}: {name} should not move"
            assert_rounded(tensor, expected[name], old[name], f"step {number}, {name}")
    return fast.network()


def moved(start, end):
    """The names of the parameters that training changed."""
    return {name for name, tensor in end.parameters().items() if not torch.equal(tensor, start.parameters()[name])}


def penalty(network, names, strength=3.0):
    """A penalty with two terms on some parameters."""
    anchors = {n: t + 0.1 for n, t in network.parameters().items() if n in names}
    terms = [({n: some(*t.shape, seed=s).abs() for n, t in anchors.items()}, anchors) for s in (5, 6)]
    return QuadraticPenalty.towards(strength, terms)


# What methods do


@replicas
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("pixels", PIXELS.values(), ids=PIXELS)
def test_cross_entropy_alone(replicas, dtype, pixels):
    start = network(replicas, pixels)
    made = some if dtype == torch.float32 else bytes_like

    def loss(seed):
        x = made(replicas, 6, *SHAPE, seed=seed)
        return lambda net: cross_entropy(h := net.logits(("a", x))[0], classes_of(h))

    end = assert_same_steps(start, Descent(0.1, 0.01), [loss(seed) for seed in range(4)])
    assert moved(start, end) == {*BODY, *head_of("a")}


def replay(replicas, seed, made=some):
    """DER++ with three past tasks, two of which are drawn together."""
    new, old, other = (made(replicas, n, *SHAPE, seed=10 * seed + n) for n in (5, 8, 4))

    def loss(net):
        h, together, alone = net.logits(("c", new), (("a", "b"), old), ("d", other))
        terms = [
            weighted((0.5, squared_error(o, some(*o.shape, seed=seed))), (0.7, cross_entropy(o, classes_of(o))))
            for o in (together, alone)
        ]
        return cross_entropy(h, classes_of(h)) + weighted((2 / 3, terms[0]), (1 / 3, terms[1]))

    return loss


@replicas
@pytest.mark.parametrize("made", [some, bytes_like])
@pytest.mark.parametrize("pixels", PIXELS.values(), ids=PIXELS)
def test_replay_with_several_tasks_in_one_part(replicas, made, pixels):
    start = network(replicas, pixels)
    end = assert_same_steps(start, Descent(0.1, 0.01), [replay(replicas, seed, made) for seed in range(3)])
    assert moved(start, end) == start.parameters().keys()


@replicas
def test_distillation_through_each_of_several_heads(replicas):
    start = network(replicas)

    def loss(seed):
        x = some(replicas, 6, *SHAPE, seed=seed)

        def of(net):
            new, *old = net.logits(("c", x), (Each(("a", "b")), x), (Each(("d",)), x))
            targets = [softened(some(*h.shape, seed=seed), 2.0) for h in old]
            kept = [distillation(h, t, temperature=2.0) for h, t in zip(old, targets)]
            return cross_entropy(new, classes_of(new)) + weighted((2 / 3, kept[0]), (1 / 3, kept[1]))

        return of

    assert_same_steps(start, Descent(0.1, 0.01), [loss(seed) for seed in range(3)])


@replicas
@pytest.mark.parametrize("made", [some, bytes_like])
@pytest.mark.parametrize("pixels", PIXELS.values(), ids=PIXELS)
def test_mixed_inputs_with_codes_distillation_and_a_penalty(replicas, made, pixels):
    """LSF, whose first layer answers for mixtures without computing them."""
    start, codes = network(replicas, pixels), some(replicas, 3, *SHAPE, seed=7)
    past = some(replicas, 6, *SHAPE, seed=8)

    def loss(seed):
        x = made(replicas, 5, *SHAPE, seed=seed)
        y = classes_of(x, 3)
        mixed = Mixed(x, codes, y, some(replicas, 5, seed=seed).abs() % 1)

        def of(net):
            plain, blended, old, coded = net.logits(("c", x), ("c", mixed), (Each(("a", "b")), x), (("a", "b"), past))
            kept = distillation(old, softened(some(*old.shape, seed=seed), 2.0), temperature=2.0)
            return (
                mean(cross_entropy(h, y) for h in (plain, blended)) + kept + 4 * cross_entropy(coded, classes_of(coded))
            )

        return of

    descent = Descent(0.05, 0.01, penalty=penalty(start, [*BODY, *head_of("a", "b")]))
    assert_same_steps(start, descent, [loss(seed) for seed in range(3)])


@replicas
def test_mixtures_with_codes_that_are_the_inputs_themselves(replicas):
    x = some(replicas, 4, *SHAPE)
    mixed = Mixed(x, x, torch.tensor([0, 2, 1, 3]).repeat(replicas, 1), some(replicas, 4, seed=1).abs() % 1)
    assert_same_steps(network(replicas), Descent(0.1), [lambda net: net.logits(("a", mixed))[0].square().mean()])


@replicas
@pytest.mark.parametrize("names", [BODY, BODY[:1], head_of("a"), ("1.bias", "head a.weight"), head_of("b", "d")])
def test_a_penalty_pulls_what_the_loss_depends_on(replicas, names):
    start = network(replicas)
    descent = Descent(0.1, 0.01, penalty=penalty(start, names))
    x = some(replicas, 6, *SHAPE)
    alone = [lambda net: cross_entropy(h := net.logits(("a", x))[0], classes_of(h))] * 2
    end = assert_same_steps(start, descent, alone)
    assert moved(start, end) == {*BODY, *head_of("a")}
    assert_same_steps(start, descent, [replay(replicas, seed) for seed in range(2)])


@replicas
@pytest.mark.parametrize(
    ("trains_body", "tasks"),
    [(True, "a"), (True, "ab"), (True, "bcd"), (True, ""), (False, "a"), (False, "ab"), (False, "bcd")],
)
def test_only_some_heads_are_trained_and_the_body_or_not(replicas, tasks, trains_body):
    """Among them heads that are served together, of which some are trained and some are not."""
    start, only = network(replicas), [*(BODY if trains_body else ()), *head_of(*tasks)]
    assert folded_learner(start, Descent(0.1, only=only)).parameters().keys() == set(only)
    end = assert_same_steps(start, Descent(0.1, 0.01, only=only), [replay(replicas, seed) for seed in range(3)])
    assert moved(start, end) == set(only)


@replicas
@pytest.mark.parametrize("made", [some, bytes_like])
def test_a_head_on_features_that_are_given(replicas, made):
    start = Network(PrecomputedFeatures(replicas, 6), network(replicas).heads, Pixels())
    x, codes = made(replicas, 5, 6), some(replicas, 3, 6, seed=2)
    mixed = Mixed(x, codes, classes_of(x, 3), some(replicas, 5, seed=1).abs() % 1)
    losses = [
        lambda net: cross_entropy(h := net.logits(("a", x))[0], classes_of(h)),
        lambda net: sum(h.square().mean() for h in net.logits(("a", x), ("b", mixed))),
    ]
    end = assert_same_steps(start, Descent(0.1, 0.01, only=head_of("a", "b")), losses)
    assert moved(start, end) == set(head_of("a", "b"))


# What a loss may do


def terms(outputs):
    return mean(cross_entropy(h, classes_of(h)) for h in outputs)


@replicas
def test_several_calls_in_one_step(replicas):
    x, other = some(replicas, 6, *SHAPE), some(replicas, 4, *SHAPE, seed=1)
    losses = [
        lambda net: terms([*net.logits(("a", x)), *net.logits(("a", other))]),
        lambda net: terms([*net.logits(("a", x), ("b", other)), *net.logits(("a", other), ("b", x))]),
        lambda net: terms([*net.logits(("a", x), ("b", x)), *net.logits(("a", other), ("b", other))]),
        lambda net: terms(net.logits((("a", "b"), x)) + net.logits(("d", x)) + net.logits((("a", "b"), other))),
        lambda net: terms([net.logits(("a", x))[0], net.logits(("b", x))[0].detach()]),
        lambda net: terms(net.logits(("a", x))),
    ]
    assert_same_steps(network(replicas), Descent(0.1, 0.01), losses)


@replicas
def test_a_loss_that_uses_parameters(replicas):
    start, x = network(replicas), some(replicas, 6, *SHAPE)

    def squares(net, *names):
        return sum(0.3 * p.square().mean() for n, p in net.parameters().items() if not names or n in names)

    losses = [
        lambda net: terms(net.logits(("a", x))) + squares(net),
        lambda net: Loss.of(squares(net)),
        lambda net: terms(net.logits((("a", "b"), x))) + squares(net, "head a.weight", "0.weight"),
        lambda net: terms(net.logits((("a", "b"), x), ("d", x))),
        lambda net: squares(net, "head c.weight") + terms(net.logits(("d", x))),  # and not the bias of c
        lambda net: (net.logits(("a", x))[0].mean() * net.parameters()["1.bias"].mean()).square(),
    ]
    assert_same_steps(start, Descent(0.1, 0.2), losses)
    assert_same_steps(start, Descent(0.1, 0.2, penalty=penalty(start, start.parameters())), losses)
    assert_same_steps(start, Descent(0.1, 0.2, only=[*BODY, *head_of("a")]), losses[:3])


@replicas
@pytest.mark.parametrize("groups_first", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_task_alone_and_in_a_group(replicas, groups_first, calls):
    x, other = some(replicas, 6, *SHAPE), some(replicas, 4, *SHAPE, seed=1)
    parts = [("a", x), (("a", "b"), other)]
    parts = parts[::-1] if groups_first else parts

    def both(net):
        outputs = net.logits(*parts) if calls == 1 else [net.logits(part)[0] for part in parts]
        return terms(outputs)

    alternating = [lambda net: terms(net.logits(parts[0])), lambda net: terms(net.logits(parts[1]))]
    assert_same_steps(network(replicas), Descent(0.1, 0.01), [both, *alternating, both])
    assert_same_steps(network(replicas), Descent(0.1, 0.01), [*alternating, both, *alternating])


@replicas
def test_groups_that_overlap(replicas):
    x, other = some(replicas, 6, *SHAPE), some(replicas, 6, *SHAPE, seed=1)
    losses = [
        lambda net: terms(net.logits((("a", "b"), x), (("b", "c"), other))),
        lambda net: terms(net.logits((("b", "a"), x))),
        lambda net: terms(net.logits((("b", "c"), x))),
        lambda net: terms(net.logits((("a", "b"), x))),
        lambda net: terms(net.logits((("a", "b", "c"), x), (Each(("a", "b")), other), ("c", x))),
        lambda net: terms(net.logits((Each(("c", "b")), x), (("c", "b"), other))),
    ]
    assert_same_steps(network(replicas), Descent(0.1, 0.01), losses)
    assert_same_steps(network(replicas), Descent(0.1, 0.01), losses[::-1])


@replicas
@pytest.mark.parametrize("tasks", [("a", "a"), Each(("a", "a")), ("a", "b", "a")])
def test_a_task_twice_in_a_group(replicas, tasks):
    x = some(replicas, 6, *SHAPE)
    losses = [lambda net: terms(net.logits((tasks, x))), lambda net: terms(net.logits(("a", x)))]
    assert_same_steps(network(replicas), Descent(0.1, 0.01), losses * 2)


@replicas
@pytest.mark.parametrize("pixels", PIXELS.values(), ids=PIXELS)
def test_bytes_and_floats_in_one_call(replicas, pixels):
    x, images = some(replicas, 6, *SHAPE), bytes_like(replicas, 4, *SHAPE)
    losses = [
        lambda net: terms(net.logits(("a", x), ("b", images))),
        lambda net: terms(net.logits(("a", images), (("a", "b"), x), ("d", images))),
        lambda net: terms(net.logits(("a", images))),
    ]
    assert_same_steps(network(replicas, pixels), Descent(0.1, 0.01), losses)


def test_outputs_without_gradients_are_those_of_the_moment_and_change_nothing():
    start, x = network(), some(2, 6, *SHAPE)

    def loss(net):
        (h,) = net.logits(("a", x))
        with torch.no_grad():
            (target,) = net.logits((Each(("a", "b")), x))
        return squared_error(h, target[:, 6:])

    assert_same_steps(start, Descent(0.1, 0.01), [loss] * 3)


# Any of that in any order


def pool(seed):
    """Inputs of a step, for two replicas: floats, bytes, and mixtures of both with codes."""
    x, other, images = *(some(2, 6, *SHAPE, seed=s) for s in (seed, seed + 50)), bytes_like(2, 6, *SHAPE, seed=seed)
    codes, y, share = some(2, 3, *SHAPE, seed=9), classes_of(x, 3), some(2, 6, seed=seed).abs() % 1
    return [x, images, other, Mixed(x, codes, y, share), Mixed(images, codes, y, 1 - share)]


POOLS = [pool(1), pool(2)]
TERMS = {
    "cross-entropy": lambda h: cross_entropy(h, classes_of(h)),
    "squared error": lambda h: squared_error(h, some(*h.shape)),
    "uniform": lambda h: 0.5 * towards_uniform(h),
    "some classes": lambda h: cross_entropy(h[..., :2], classes_of(h, 2)),
    "some rows": lambda h: h[:, :2].square().mean(),
    "nothing": lambda h: Loss(),
}

group = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
tasks = st.one_of(st.sampled_from("abcd"), group.map(tuple), group.map(Each))
part = st.tuples(tasks, st.integers(0, 4), st.sampled_from(sorted(TERMS)))
call = st.lists(part, min_size=1, max_size=3)
decayed = st.sampled_from([(), ("0.weight",), ("1.bias", "head a.weight"), tuple(head_of("b"))])
steps = st.lists(st.tuples(st.lists(call, min_size=1, max_size=2), decayed, st.booleans()), min_size=1, max_size=4)
trained = st.none() | st.builds(
    lambda body, heads: [*(BODY if body else ()), *head_of(*sorted(heads))],
    st.booleans(),
    st.sets(st.sampled_from("abcd"), min_size=1),
)


def as_loss(calls, names, other_inputs):
    def loss(net):
        total = Loss()
        for parts in calls:
            outputs = net.logits(*((tasks, POOLS[other_inputs][x]) for tasks, x, _ in parts))
            total = total + sum(TERMS[term](h) for h, (_, _, term) in zip(outputs, parts))
        if names:
            total = total + sum(p.square().mean() for n, p in net.parameters().items() if n in names)
        return total

    return loss


@given(steps, trained, st.sampled_from([(), BODY, ("0.bias", *head_of("a", "c"))]), st.sampled_from(sorted(PIXELS)))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_any_steps_are_those_of_the_ordinary_learner(steps, only, penalised, pixels):
    start = network(2, PIXELS[pixels])
    descent = Descent(0.05, 0.02, penalty=penalty(start, penalised) if penalised else None, only=only)
    try:
        assert_same_steps(start, descent, [as_loss(*step) for step in steps])
    except AssertionError as error:
        if "take another seed" in str(error):
            reject()
        raise


# What it does not take


@pytest.mark.parametrize(
    "descent",
    [
        Descent(0.1, optimizer="adam"),
        Descent(0.1, optimizer="momentum"),
        Descent(0.1, edit=lambda net, gradients: gradients),
        Descent(0.1, only=["0.weight"]),
        Descent(0.1, only=["0.weight", *head_of("a")]),
        Descent(0.1, only=["head a.weight"]),
        Descent(0.1, only=["head a.bias"]),
        Descent(0.1, only=[*BODY, *head_of("a"), "head b.bias"]),
    ],
)
def test_what_the_fast_path_cannot_do_is_left_to_the_ordinary_one(descent):
    assert folded_learner(network(), descent) is None


def test_users_modules_are_left_to_the_ordinary_path():
    blueprint = Blueprint(nn.Linear(8, 6), {}, torch.device("cpu"))
    assert folded_learner(blueprint.network(Inputs((8,)), [0]), Descent(0.1)) is None
