"""Stochastic gradient descent that happens inside the backward pass.

For small networks an optimiser's separate pass over the weights costs as much as the arithmetic, so a
linear layer updates itself as soon as its gradient is known: one GEMM computes W ← (1 − lr·wd)·W − lr·xᵀg.
The price is a rule: in one step, all inputs go through the network in one call (`Network.logits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        # Makes autograd record a layer whose input needs no gradient.
        self.anchor = torch.zeros((), requires_grad=True, dtype=torch.float32, device="cpu")
        # With a pull, θ − lr·(weight_decay·θ + ∇pull) = scale·θ + shift.
        self._pulls: dict[str, tuple[Tensor, Tensor]] = {}
        if pull is not None:
            self._pulls = {n: (self.keep - lr * p, lr * pull.target[n]) for n, p in pull.precision.items()}

    def shrink(self, name: str, tensor: Tensor) -> float:
        """Prepare a tensor, in place, for `tensor ← factor·tensor − lr·gradient`; returns the factor."""
        if name not in self._pulls:
            return self.keep
        scale, shift = self._pulls[name]
        torch.addcmul(shift, tensor, scale, out=tensor)
        return 1.0


class Linear:
    """A linear layer for each replica, with optional ReLU, that descends as its gradient arrives.

    Weights have shape (replicas, in, out), biases (replicas, 1, out).
    """

    def __init__(self, weight: Tensor, bias: Tensor, relu: bool = False, name: str = "") -> None:
        self.weight, self.bias, self.relu, self.name = weight, bias, relu, name

    def __call__(self, x: Tensor, descent: Descent | None = None) -> Tensor:
        if descent is None:
            out = torch.baddbmm(self.bias, x, self.weight)
            return out.relu_() if self.relu else out
        recorded: Tensor = _DescendingLinear.apply(x, descent.anchor, self, descent)
        return recorded

    def clone(self) -> Linear:
        return Linear(self.weight.clone(), self.bias.clone(), self.relu, self.name)


class _DescendingLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: Linear, descent: Descent) -> Tensor:
        out = torch.baddbmm(layer.bias, x, layer.weight)
        if layer.relu:
            out.relu_()
        ctx.save_for_backward(x, out if layer.relu else None)
        ctx.layer, ctx.descent = layer, descent
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, out = ctx.saved_tensors
        layer, descent = ctx.layer, ctx.descent
        if layer.relu:
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
        # The gradient with respect to the input needs the weights as they were: it comes first.
        grad_x = torch.bmm(grad, layer.weight.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        factor = descent.shrink(f"{layer.name}.weight", layer.weight)
        layer.weight.baddbmm_(x.transpose(1, 2), grad, beta=factor, alpha=-descent.lr)
        factor = descent.shrink(f"{layer.name}.bias", layer.bias)
        layer.bias.mul_(factor).sub_(grad.sum(1, keepdim=True), alpha=descent.lr)
        return grad_x, None, None, None
