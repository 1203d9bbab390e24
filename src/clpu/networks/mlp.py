"""The paper's network for MNIST: fully connected layers with ReLU, all replicas in one batched GEMM."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clpu.networks.body import Body, Tensors
from clpu.networks.linear import Linear


class MLP(Body):
    """Stacked fully connected layers; any input is flattened."""

    separate = True

    def __init__(self, tensors: Tensors) -> None:
        self.tensors, self.parameters = dict(tensors), tuple(tensors)
        self.depth = len(tensors) // 2
        last = tensors[f"{self.depth - 1}.weight"]
        self.replicas, self.features = last.shape[0], last.shape[2]

    @classmethod
    def fresh(
        cls,
        inputs: Sequence[int],
        hidden: Sequence[int],
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> MLP:
        """Weights and biases from U(±1/√fan-in)."""
        tensors: Tensors = {}
        for i, (before, after) in enumerate(pairwise([math.prod(inputs), *hidden])):
            layer = Linear.fresh(before, after, generators, device)
            tensors |= {f"{i}.weight": layer.weight, f"{i}.bias": layer.bias}
        return cls(tensors)

    def layers(self, tensors: Tensors | None = None) -> Iterator[Linear]:
        """The layers from the input on."""
        given = self.tensors if tensors is None else tensors
        for i in range(self.depth):
            yield Linear(given[f"{i}.weight"], given[f"{i}.bias"])

    def forward(self, x: Tensor, tensors: Tensors | None = None, *_: Any, **__: Any) -> Tensor:
        x = x.flatten(2)
        for layer in self.layers(tensors):
            x = layer(x).relu()
        return x

    def module(self, replica: int = 0) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for layer in self.layers():
            layers += [layer.module(replica), nn.ReLU()]
        return nn.Sequential(*layers)

    def with_tensors(self, tensors: Tensors) -> MLP:
        return MLP({name: tensors[name] for name in self.tensors})

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> Tensors:
        """The gradient of one example is an outer product x gᵀ, so Σ w·(x gᵀ)² = (x²)ᵀ(w·g²): one GEMM per layer."""
        inputs = [x.flatten(1).expand(self.replicas, -1, -1)]
        layers = list(self.layers())
        for layer in layers:
            inputs.append(layer(inputs[-1]).relu())
        log_p = F.log_softmax(head(inputs[-1]), -1)
        chosen = y.expand(self.replicas, -1).unsqueeze(-1)
        weight = log_p.gather(-1, chosen).exp()
        grad = -log_p.exp()
        grad.scatter_add_(-1, chosen, torch.ones_like(weight))
        grad = torch.bmm(grad, head.weight.transpose(1, 2))
        sums: Tensors = {}
        for i in reversed(range(self.depth)):
            grad = grad * (inputs[i + 1] > 0)
            weighted = weight * grad.square()
            sums[f"{i}.weight"] = torch.bmm(inputs[i].square().transpose(1, 2), weighted)
            sums[f"{i}.bias"] = weighted.sum(1, keepdim=True)
            grad = torch.bmm(grad, layers[i].weight.transpose(1, 2))
        return sums
