"""The slow, obvious way, in float64: one model, plain PyTorch modules and optimisers, one step at a time.

A long run in float32 ends differently on every CPU, because rounding errors grow from step to step. So no two ends of
runs are compared: `recorded` notes the state before and after every step of ours, and `assert_steps` takes each of these
steps again from the same state. What may differ is the rounding of one step, which is a hundred times smaller and more than
the effect of a wrong learning rate, weight decay or loss.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clpu.networks.network import Network

EPS = torch.finfo(torch.float32).eps


class Bend(nn.ReLU):
    """A ReLU that knows how close to its bend it was used: nearer than float32 can tell, its gradient is a toss-up."""

    margin = float("inf")

    def forward(self, x):
        self.margin = min(self.margin, float(x.detach().abs().min()))
        return super().forward(x)


class Plain(nn.Module):
    """One replica of one of our networks as ordinary modules in float64."""

    def __init__(self, network, k=0):
        super().__init__()
        layers = []
        for layer in getattr(network.body, "layers", ()):  # there are none where features are handed in
            layers += [linear(layer, k), Bend()]
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.heads = nn.ModuleDict({task: linear(head, k) for task, head in network.heads.items()})

    def forward(self, task, x):
        return self.heads[task](self.body(x.double()))


def linear(layer, k):
    module = nn.Linear(layer.weight.shape[1], layer.weight.shape[2], dtype=torch.float64)
    module.weight.data = layer.weight[k].detach().T.to(torch.float64, copy=True)
    module.bias.data = layer.bias[k, 0].detach().to(torch.float64, copy=True)
    return module


@dataclass
class Run:
    """The steps of one training: the models of all replicas before and after each."""

    learner: Network
    before: list[list[Plain]] = field(default_factory=list)
    after: list[list[Plain]] = field(default_factory=list)


@contextmanager
def recorded() -> Iterator[list[Run]]:
    """A list that has a `Run` for every training that happened while this lasted."""
    runs: list[Run] = []
    descend = Network.descend

    def models(network):
        return [Plain(network, k) for k in range(network.body.replicas)]

    def noting(network, loss):
        if not runs or runs[-1].learner is not network:
            runs.append(Run(network))
        runs[-1].before.append(models(network))
        descend(network, loss)
        runs[-1].after.append(models(network))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "descend", noting)
        yield runs


def assert_steps(run: Run, start, losses: Sequence, lr, weight_decay, end, k=0, head_only=None):
    """From `start` to `end`, replica k took one step of torch.optim.SGD on each of these functions of a model.

    `head_only` names the task whose head alone was trained.
    """
    assert len(run.before) == len(losses)

    def whole(model):
        if head_only is None:
            return model
        around = Plain(start, k)
        around.heads[head_only] = model.heads[head_only]
        return around

    ours = [Plain(start, k), *(whole(models[k]) for models in run.after)]
    for earlier, later in zip(ours, [*(whole(models[k]) for models in run.before), Plain(end, k)]):
        assert_equal(earlier, later)  # nothing happens to the weights between steps
    for number, (before, after, loss) in enumerate(zip(ours, ours[1:], losses)):
        expected = step(before, loss, lr, weight_decay, head_only)
        for (name, a), b, old in zip(expected.named_parameters(), after.parameters(), before.parameters()):
            tolerance = rounding(old, a - old)
            assert ((a - b).abs() <= tolerance).all(), f"step {number}, {name}: {(a - b).abs().max():.1e}"


def step(model, loss, lr, weight_decay, head_only=None):
    """The model after one step of torch.optim.SGD."""
    model = copy.deepcopy(model)
    trained = model if head_only is None else model.heads[head_only]
    optimiser = torch.optim.SGD(trained.parameters(), lr=lr, weight_decay=weight_decay)
    loss(model).backward()
    margin = min(m.margin for m in model.modules() if isinstance(m, Bend))
    assert margin > 32 * EPS, f"a unit is within {margin:.1e} of its bend, where float32 may err: take another seed"
    optimiser.step()
    return model


def rounding(value, change):
    """How far off float32 may be after `value + change`: some units in the last place of the largest numbers."""
    return EPS * (32 * value.abs().max() + 64 * change.abs().max())


def assert_equal(one, two):
    """Two models have the same parameters, bit by bit."""
    assert [n for n, _ in one.named_parameters()] == [n for n, _ in two.named_parameters()]
    for (name, a), b in zip(one.named_parameters(), two.parameters()):
        assert torch.equal(a, b), name


def fisher(model, task, x, y):
    """One example at a time: the mean of p(y|x)·(∂ log p(y|x))² over the body's parameters."""
    total = [torch.zeros_like(p) for p in model.body.parameters()]
    for one_x, one_y in zip(x, y):
        model.zero_grad()
        log_p = F.log_softmax(model(task, one_x.unsqueeze(0)), -1)[0, one_y]
        log_p.backward()
        for sum_, p in zip(total, model.body.parameters()):
            sum_ += log_p.exp().detach() * p.grad**2
    return [t / len(x) for t in total]
