"""The paper's network for MNIST: fully connected layers with ReLU, all replicas in one batched GEMM."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clpu.networks.body import Body
from clpu.networks.descent import Descent, Linear
from clpu.randomness import uniform


class MLP(Body):
    """Stacked fully connected layers; any input is flattened."""

    separate = True

    def __init__(self, layers: Sequence[Linear]) -> None:
        self.layers = list(layers)
        self.replicas = self.layers[0].weight.shape[0]
        self.features = self.layers[-1].weight.shape[2]
        self._activations: list[Tensor] = []
        self._scale = 1.0
        self._blend: Tensor | None = None

    @classmethod
    def fresh(
        cls,
        inputs: Sequence[int],
        hidden: Sequence[int],
        sources: Sequence[torch.Generator],
        device: torch.device,
    ) -> MLP:
        """Weights and biases from U(±1/√fan-in), as `torch.nn.Linear` draws them."""
        sizes = [math.prod(inputs), *hidden]
        return cls([fresh_linear(a, b, sources, device, True, str(i)) for i, (a, b) in enumerate(zip(sizes, hidden))])

    def forward(
        self, x: Tensor, descent: Descent | None = None, scale: float = 1.0, blend: Tensor | None = None
    ) -> Tensor:
        first = x.flatten(2)
        activations = [first, self.layers[0](first, scale, blend)]
        for layer in self.layers[1:]:
            activations.append(layer(activations[-1]))
        if descent is not None and not descent.head_only:
            self._activations, self._scale, self._blend = activations, scale, blend
        return activations[-1]

    def descend(self, grad: Tensor, descent: Descent) -> None:
        inner: Tensor | None = grad
        for i in reversed(range(1, len(self.layers))):
            assert inner is not None
            x, out = self._activations[i : i + 2]
            inner = self.layers[i].descend(x, out, inner, descent)
        assert inner is not None
        x, out = self._activations[:2]
        self.layers[0].descend(x, out, inner, descent, False, self._scale, self._blend)
        self._activations, self._blend = [], None

    def trainable(self) -> MLP:
        return MLP([layer.trainable(turned=i == 0) for i, layer in enumerate(self.layers)])

    def settled(self) -> MLP:
        return MLP([layer.settled() for layer in self.layers])

    def tensors(self) -> dict[str, Tensor]:
        return {f"{layer.name}.{part}": getattr(layer, part) for layer in self.layers for part in ("weight", "bias")}

    parameters = tensors

    def with_tensors(self, tensors: dict[str, Tensor]) -> MLP:
        return MLP(
            [
                Linear(tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"], True, layer.name)
                for layer in self.layers
            ]
        )

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> dict[str, Tensor]:
        """The gradient of one example is an outer product x gᵀ, so Σ w·(x gᵀ)² = (x²)ᵀ(w·g²): one GEMM a layer."""
        inputs = [x.flatten(1).expand(self.replicas, -1, -1)]
        for layer in self.layers:
            inputs.append(layer(inputs[-1]))
        log_p = F.log_softmax(head(inputs[-1]), -1)
        chosen = y.expand(self.replicas, -1).unsqueeze(-1)
        weight = log_p.gather(-1, chosen).exp()
        grad = -log_p.exp()
        grad.scatter_add_(-1, chosen, torch.ones_like(weight))
        grad = torch.bmm(grad, head.weight.transpose(1, 2))
        sums: dict[str, Tensor] = {}
        for layer, before, after in zip(self.layers[::-1], inputs[-2::-1], inputs[:0:-1]):
            grad = grad * (after > 0)
            weighted = weight * grad.square()
            sums[f"{layer.name}.weight"] = torch.bmm(before.square().transpose(1, 2), weighted)
            sums[f"{layer.name}.bias"] = weighted.sum(1, keepdim=True)
            grad = torch.bmm(grad, layer.weight.transpose(1, 2))
        return sums


def fresh_linear(
    inputs: int,
    outputs: int,
    sources: Sequence[torch.Generator],
    device: torch.device,
    relu: bool = False,
    name: str = "",
) -> Linear:
    """A layer drawn from U(±1/√inputs) for each replica."""
    bound = 1 / math.sqrt(inputs)
    weight = uniform((inputs, outputs), bound, sources)
    bias = uniform((1, outputs), bound, sources)
    return Linear(weight.to(device), bias.to(device), relu, name)
