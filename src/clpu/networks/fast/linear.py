"""A linear layer that descends by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clpu.networks.learner import Descent
from clpu.networks.linear import Linear


class Update:
    """θ ← θ − lr·(∇loss + weight_decay·θ + ∇penalty), as layers apply it."""

    def __init__(self, descent: Descent) -> None:
        self.lr, penalty = descent.lr, descent.penalty
        self.keep = 1 - descent.lr * descent.weight_decay
        self._ones: dict[tuple[int, ...], Tensor] = {}
        # With a penalty, θ − lr·(weight_decay·θ + ∇penalty) = scale·θ + shift.
        self._pulls: dict[str, tuple[Tensor, Tensor]] = {}
        if penalty is not None:
            self._pulls = {
                n: (self.keep - self.lr * p, self.lr * penalty.target[n]) for n, p in penalty.precision.items()
            }

    def shrink(self, name: str, tensor: Tensor) -> float:
        """Prepare a tensor, in place, for `tensor ← factor·tensor − lr·gradient`; returns the factor."""
        if name not in self._pulls:
            return self.keep
        scale, shift = self._pulls[name]
        if (scale.stride(-1) == 1) != (tensor.stride(-1) == 1):  # as the tensor is in memory, or it would crawl
            scale, shift = self._pulls[name] = transposed(scale), transposed(shift)
        torch.addcmul(shift, tensor, scale, out=tensor)
        return 1.0

    def shrink_all(self, part: str, layers: Sequence[FoldedLinear]) -> float:
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


class FoldedLinear:
    """A linear layer for each replica, with optional ReLU, being trained.

    Where inputs are sums of others, a matrix B (`blend`, replicas × rows out × rows in) says of which: the layer is
    linear, so (B·x)·W is computed as B·(x·W), and B·x, which may have many more numbers, never.

    `transpose` swaps the last two axes of weights and outputs in memory, not in shape: that makes the GEMMs of a layer
    with a wide input a fifth faster, and those of a layer with few outputs three times.
    """

    def __init__(self, weight: Tensor, bias: Tensor, name: str, relu: bool = False, transpose: bool = False) -> None:
        self.weight, self.bias, self.name, self.relu, self._transposed = weight, bias, name, relu, transpose
        self._weight_t, self._bias_t = weight.mT, bias.mT
        #: The layers that a stack is made of, as views of it.
        self.parts: list[FoldedLinear] = []
        #: Whether a stack is only a copy of its parts.
        self.is_copy = False
        #: Whether gradients are of any use.
        self.trained = True
        #: Where gradients are summed up instead of descending at once.
        self.sums: dict[str, Tensor] = {}

    @classmethod
    def of(cls, layer: Linear, name: str, relu: bool = False, transpose: bool = False) -> FoldedLinear:
        """A copy to be trained."""
        weight = transposed(layer.weight) if transpose else layer.weight.clone()
        return cls(weight, layer.bias.clone(), name, relu, transpose)

    def layer(self) -> Linear:
        """The layer as it is now."""
        return Linear(self.weight.detach().contiguous(), self.bias.detach().contiguous())

    def __call__(self, x: Tensor, scale: float = 1.0, blend: Tensor | None = None) -> Tensor:
        """The layer's output for scale·x, or for scale·blend·x."""
        if self._transposed:
            left, right = self._weight_t, x.mT
            if blend is not None:
                left, right = torch.bmm(left, right), blend.mT
            out = torch.baddbmm(self._bias_t, left, right, alpha=scale).mT
        else:
            left, right = (x, self.weight) if blend is None else (blend, torch.bmm(x, self.weight))
            out = torch.baddbmm(self.bias, left, right, alpha=scale)
        return out.relu_() if self.relu else out

    def descend(
        self,
        x: Tensor,
        out: Tensor,
        grad: Tensor,
        update: Update | None,
        inner: bool = True,
        scale: float = 1.0,
        blend: Tensor | None = None,
    ) -> Tensor | None:
        """One step, given the gradient with respect to this layer's output; returns that of its input, if `inner`.

        Without an update, gradients are added to `sums`. The gradient with respect to the input of a layer
        that blends is never needed.
        """
        if self.relu:
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
        grad_x = None
        if inner:  # With the weights as they were; in memory as the input, which the layer before made.
            grad_x = torch.bmm(self.weight, grad.mT).mT if x.stride(1) == 1 else torch.bmm(grad, self._weight_t)
        if update is None:
            blended = grad if blend is None else torch.bmm(grad.mT, blend).mT
            self.add(scale * torch.bmm(x.mT, blended), grad.sum(1, keepdim=True))
            return grad_x
        layers = self.parts or [self]
        factor = update.shrink_all("bias", layers)
        self.bias.baddbmm_(update.ones(grad), grad, beta=factor, alpha=-update.lr)
        if blend is not None:
            grad = torch.bmm(grad.mT, blend).mT
        factor = update.shrink_all("weight", layers)
        if self._transposed:
            self._weight_t.baddbmm_(grad.mT, x, beta=factor, alpha=-update.lr * scale)
        else:
            self.weight.baddbmm_(x.mT, grad, beta=factor, alpha=-update.lr * scale)
        return grad_x

    def add(self, weight: Tensor | None, bias: Tensor | None) -> None:
        """Add to the gradients that are summed up."""
        for name, gradient in (("weight", weight), ("bias", bias)):
            if gradient is None:
                continue
            for i, part in enumerate(self.parts or [self]):
                if part.trained:  # a stack's is (replicas · parts, …), the parts of a replica together
                    mine = gradient[i :: len(self.parts)] if self.parts else gradient
                    part.sums[name] = part.sums[name] + mine if name in part.sums else mine

    def apply_sums(self, update: Update) -> None:
        """One step with the gradients that were summed up."""
        for part, grad in self.sums.items():
            factor = update.shrink_all(part, [self])
            tensor: Tensor = getattr(self, part)
            tensor.mul_(factor).add_(grad, alpha=-update.lr)
        self.sums = {}

    @staticmethod
    def stacked(layers: Sequence[FoldedLinear], share: bool) -> FoldedLinear:
        """Layers alike as one of (replicas × layers) matrices, with which they `share` their memory from now on."""
        weight = torch.stack([layer.weight.mT for layer in layers], 1)
        bias = torch.stack([layer.bias for layer in layers], 1)
        stack = FoldedLinear(weight.flatten(0, 1).mT, bias.flatten(0, 1), "", transpose=True)
        stack.parts, stack.is_copy = list(layers), not share
        for i, layer in enumerate(layers if share else ()):
            layer.weight, layer.bias = weight[:, i].mT, bias[:, i]
            layer._weight_t, layer._bias_t = layer.weight.mT, layer.bias.mT
        return stack


def transposed(tensor: Tensor) -> Tensor:
    """A copy with the last two axes swapped in memory."""
    return tensor.mT.clone(memory_format=torch.contiguous_format).mT
