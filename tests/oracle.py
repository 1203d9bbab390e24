"""The slow, obvious way, in float64: one model, plain PyTorch modules and optimisers, one step at a time.

A long run in float32 ends differently on every CPU, because rounding errors grow from step to step. So the ends of two
runs are not compared: `recorded` notes the state before and after every step of ours, and `assert_steps` takes each of
these steps again from the same state. What may differ is the rounding of one step, at least a hundred times smaller
than the effect of a wrong learning rate, weight decay or loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from clpu.networks.learner import Learner
from clpu.networks.mlp import MLP

#: Both ways to train an MLP by plain SGD: a function of a network and a `Descent`. The fast one may be absent.
LEARNERS: dict[str, Callable[..., Any]] = {"ordinary": Learner}
#: And their classes.
CLASSES: list[type] = [Learner]
try:
    from clpu.networks.fast.learner import FoldedLearner, folded_learner
except ImportError:
    pass
else:
    LEARNERS["fast"] = folded_learner
    CLASSES.append(FoldedLearner)

EPS = torch.finfo(torch.float32).eps


class ClearOfBends(TorchDispatchMode):
    """Refuses a ReLU of a number so near zero that float32 may get its sign wrong, and with it the gradient."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.relu, torch.ops.aten.relu_):
            margin = float(args[0].abs().min())
            assert margin > 32 * EPS, f"a unit is within {margin:.1e} of zero: take another seed"
        return func(*args, **(kwargs or {}))


class Plain(nn.Module):
    """One replica of one of our networks as ordinary modules in float64."""

    def __init__(self, network, k=0):
        super().__init__()
        layers = []
        for layer in network.body.layers() if isinstance(network.body, MLP) else ():  # none where features are given
            layers += [linear(layer, k), nn.ReLU()]
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.heads = nn.ModuleDict({task: linear(head, k) for task, head in sorted(network.heads.items())})

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

    learner: Any
    before: list[list[Plain]] = field(default_factory=list)
    after: list[list[Plain]] = field(default_factory=list)


@contextmanager
def recorded() -> Iterator[list[Run]]:
    """A list that has a `Run` for every training that happened while this lasted."""
    runs: list[Run] = []

    def models(learner):
        network = learner.network()
        return [Plain(network, k) for k in range(network.body.replicas)]

    def noting(step):
        def noted(learner, loss):
            if not runs or runs[-1].learner is not learner:
                runs.append(Run(learner))
            runs[-1].before.append(models(learner))
            step(learner, loss)
            runs[-1].after.append(models(learner))

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for cls in CLASSES:
            patch.setattr(cls, "step", noting(cls.step))
        yield runs


def assert_steps(run: Run, start, losses: Sequence, lr, weight_decay, end, k=0, only=None):
    """From `start` to `end`, replica k took one step of torch.optim.SGD on each of these functions of a model.

    `only` names the task whose head alone was trained.
    """
    assert len(run.before) == len(losses)

    def whole(model):
        if only is None:
            return model
        around = Plain(start, k)
        around.heads[only] = model.heads[only]
        return around

    ours = [Plain(start, k), *(whole(models[k]) for models in run.after)]
    for earlier, later in zip(ours, [*(whole(models[k]) for models in run.before), Plain(end, k)]):
        assert_equal(earlier, later)  # nothing happens to the weights between steps
    for number, (before, after, loss) in enumerate(zip(ours, ours[1:], losses)):
        expected = step(before, loss, lr, weight_decay, only)
        for (name, a), b, old in zip(expected.named_parameters(), after.parameters(), before.parameters()):
            assert_rounded(b, a, old, f"step {number}, {name}")


def step(model, loss, lr, weight_decay, only=None):
    """The model after one step of torch.optim.SGD."""
    model = copy.deepcopy(model)
    trained = model if only is None else model.heads[only]
    optimiser = torch.optim.SGD(trained.parameters(), lr=lr, weight_decay=weight_decay)
    with ClearOfBends():
        loss(model).backward()
    optimiser.step()
    return model


def assert_rounded(got, expected, start, name, units=64):
    """What float32 made of `start` is what was expected in float64.

    It may be off by some units in the last place of the largest value, and of the largest change: more of them for
    the gradients of a deep network.
    """
    tolerance = EPS * (32 * start.abs().max() + units * (expected - start).abs().max())
    wrong = (got - expected).abs().max()
    assert wrong <= tolerance, f"{name}: off by {wrong:.1e}, where rounding explains {tolerance:.1e}"


def assert_equal(one, two):
    """Two models have the same parameters, bit for bit."""
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
