"""Stochastic gradient descent that happens on the way back through the layers.

For small networks an optimiser's separate pass over the weights costs as much as the arithmetic, so a
linear layer updates itself as soon as its gradient is known: one GEMM computes W ← (1 − lr·wd)·W − lr·xᵀg.
The loss is differentiated down to the network's outputs; from there on the layers do it themselves.
The price is a rule: in one step, all inputs go through the network in one call (`Network.logits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pull:
    """A quadratic penalty on parameters, by name: Σ_τ strength · Σ F_τ (θ − θ*_τ)².

    Its gradient, 2·strength·(Σ F_τ θ − Σ F_τ θ*_τ), needs two tensors a parameter however many tasks
    there are: `precision` and `target`.
    """

    precision: dict[str, Tensor]
    target: dict[str, Tensor]

    @classmethod
    def towards(
        cls, strength: float, terms: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]
    ) -> Pull | None:
        """The sum of one term (F, θ*) a past task; `None` if there is none."""
        if not terms:
            return None
        names = {n for fisher, _ in terms for n in fisher}
        precision = {n: torch.stack([f[n] for f, _ in terms if n in f]).sum(0) for n in names}
        target = {n: torch.stack([f[n] * a[n] for f, a in terms if n in f]).sum(0) for n in names}
        return cls(
            {n: 2 * strength * t for n, t in precision.items()},
            {n: 2 * strength * t for n, t in target.items()},
        )


class Descent:
    """θ ← θ − lr·(∇loss + weight_decay·θ + ∇pull)."""

    def __init__(
        self,
        lr: float,
        weight_decay: float = 0.0,
        pull: Pull | None = None,
        head_only: bool = False,
        sources: Sequence[torch.Generator] = (),
    ) -> None:
        self.lr, self.pull, self.head_only = lr, pull, head_only
        self.keep = 1 - lr * weight_decay
        # Draws for whatever a user's module draws itself (dropout); one a replica.
        self.sources = sources
        self._ones: dict[tuple[int, ...], Tensor] = {}
        # With a pull, θ − lr·(weight_decay·θ + ∇pull) = scale·θ + shift.
        self._pulls: dict[str, tuple[Tensor, Tensor]] = {}
        if pull is not None:
            self._pulls = {n: (self.keep - lr * p, lr * pull.target[n]) for n, p in pull.precision.items()}

    def shrink(self, name: str, tensor: Tensor) -> float:
        """Prepare a tensor, in place, for `tensor ← factor·tensor − lr·gradient`; returns the factor."""
        if name not in self._pulls:
            return self.keep
        scale, shift = self._pulls[name]
        if (scale.stride(-1) == 1) != (tensor.stride(-1) == 1):  # as the tensor lies in memory, or it would crawl
            scale, shift = self._pulls[name] = _turned(scale), _turned(shift)
        torch.addcmul(shift, tensor, scale, out=tensor)
        return 1.0

    def shrink_all(self, part: str, layers: Sequence[Linear]) -> float:
        """The same for the weights or the biases of layers that descend together."""
        if not self._pulls or not any(f"{layer.name}.{part}" in self._pulls for layer in layers):
            return self.keep
        for layer in layers:
            tensor: Tensor = getattr(layer, part)
            factor = self.shrink(f"{layer.name}.{part}", tensor)
            if factor != 1:
                tensor.mul_(factor)
        return 1.0

    def ones(self, grad: Tensor) -> Tensor:
        """The row of ones that sums a gradient over its batch: Σ_b g[b] = 1ᵀg, so a bias descends by one GEMM too."""
        shape = grad.shape[:2]
        if shape not in self._ones:
            self._ones[shape] = grad.new_ones(shape[0], 1, shape[1])
        return self._ones[shape]


class Linear:
    """A linear layer for each replica, with optional ReLU: weights (replicas, in, out), biases (replicas, 1, out).

    Where inputs are sums of others, a matrix B (`blend`, replicas × rows out × rows in) says of which: the layer is
    linear, so (B·x)·W is computed as B·(x·W), and B·x, which may have many more numbers, never.
    """

    def __init__(self, weight: Tensor, bias: Tensor, relu: bool = False, name: str = "", turned: bool = False) -> None:
        self.weight, self.bias, self.relu, self.name, self._turned = weight, bias, relu, name, turned
        self._weight_turned, self._bias_turned = weight.mT, bias.mT
        #: The layers that a stack is made of, as views of it.
        self.parts: list[Linear] = []

    def __call__(self, x: Tensor, scale: float = 1.0, blend: Tensor | None = None) -> Tensor:
        """The layer's output for scale·x, or for scale·blend·x."""
        if self._turned:
            left, right = self._weight_turned, x.mT
            if blend is not None:
                left, right = torch.bmm(left, right), blend.mT
            out = torch.baddbmm(self._bias_turned, left, right, alpha=scale).mT
        else:
            left, right = (x, self.weight) if blend is None else (blend, torch.bmm(x, self.weight))
            out = torch.baddbmm(self.bias, left, right, alpha=scale)
        return out.relu_() if self.relu else out

    def descend(
        self,
        x: Tensor,
        out: Tensor,
        grad: Tensor,
        descent: Descent,
        inner: bool = True,
        scale: float = 1.0,
        blend: Tensor | None = None,
    ) -> Tensor | None:
        """One step, given the gradient of the loss by this layer's output; returns that by its input, if `inner`.

        The input of a layer that blends is never asked for.
        """
        if self.relu:
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
        grad_x = None
        if inner:  # With the weights as they were; in memory as the input lies, which the layer before made.
            grad_x = torch.bmm(self.weight, grad.mT).mT if x.stride(1) == 1 else torch.bmm(grad, self._weight_turned)
        layers = self.parts or [self]
        factor = descent.shrink_all("bias", layers)
        self.bias.baddbmm_(descent.ones(grad), grad, beta=factor, alpha=-descent.lr)
        if blend is not None:
            grad = torch.bmm(grad.mT, blend).mT
        factor = descent.shrink_all("weight", layers)
        if self._turned:
            self._weight_turned.baddbmm_(grad.mT, x, beta=factor, alpha=-descent.lr * scale)
        else:
            self.weight.baddbmm_(x.mT, grad, beta=factor, alpha=-descent.lr * scale)
        return grad_x

    def trainable(self, turned: bool = False) -> Linear:
        """A copy that `descend` changes.

        `turned` swaps the last two axes of its weights and outputs in memory, not in shape: that makes the GEMMs of
        a layer with a wide input a fifth faster, and those of a layer with few outputs three times.
        """
        weight = _turned(self.weight) if turned else self.weight.clone()
        return Linear(weight, self.bias.clone(), self.relu, self.name, turned)

    def settled(self) -> Linear:
        """The layer, no longer to be trained."""
        return Linear(self.weight.contiguous(), self.bias.contiguous(), self.relu, self.name)

    @staticmethod
    def stacked(layers: Sequence[Linear]) -> Linear:
        """Layers alike as one of (replicas × layers) matrices; its `parts` are the layers again, as views of it."""
        weight = torch.stack([layer.weight.mT for layer in layers], 1)
        bias = torch.stack([layer.bias for layer in layers], 1)
        stack = Linear(weight.flatten(0, 1).mT, bias.flatten(0, 1), turned=True)
        stack.parts = [
            Linear(weight[:, i].mT, bias[:, i], name=layer.name, turned=True) for i, layer in enumerate(layers)
        ]
        return stack


def _turned(tensor: Tensor) -> Tensor:
    """A copy with the last two axes swapped in memory."""
    return tensor.mT.clone(memory_format=torch.contiguous_format).mT
