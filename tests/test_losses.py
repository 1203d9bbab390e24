"""Each loss term against an independent, obvious computation, and losses made of several."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clpu.learning.losses import cross_entropy, distillation, softened, squared_error, towards_uniform, weighted
from clpu.learning.randomness import generators
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.learner import Descent
from clpu.testing import run_stream
from formulakit import (
    SETTINGS,
    drawn,
    each_learner,
    known_to,
    some,
)


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
