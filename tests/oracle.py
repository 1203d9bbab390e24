"""The slow, obvious way: one model, one example loop, plain PyTorch modules and optimisers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Plain(nn.Module):
    """One replica of one of our networks as ordinary modules."""

    def __init__(self, network, k=0):
        super().__init__()
        layers = []
        for layer in network.body.layers:
            layers += [linear(layer, k), nn.ReLU()]
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.heads = nn.ModuleDict({task: linear(head, k) for task, head in network.heads.items()})

    def forward(self, task, x):
        return self.heads[task](self.body(x))


def linear(layer, k):
    module = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
    module.weight.data = layer.weight[k].T.clone()
    module.bias.data = layer.bias[k, 0].clone()
    return module


def descend(model, losses, lr, weight_decay):
    """torch.optim.SGD on a list of functions that give each step's loss."""
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    for loss in losses:
        optimiser.zero_grad()
        loss(model).backward()
        optimiser.step()
    return model


def assert_same(model, network, k=0, tolerance=2e-5):
    """The plain model's parameters are those of replica k."""
    mine = Plain(network, k)
    for (name, a), (_, b) in zip(model.named_parameters(), mine.named_parameters()):
        assert a.shape == b.shape, name
        assert torch.allclose(a, b, rtol=1e-3, atol=tolerance), f"{name}: {(a - b).abs().max():.2e}"


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
