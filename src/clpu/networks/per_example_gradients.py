"""Σ of squared per-example gradients for networks of convolutions, batch normalisation and linear layers.

One pass forward and one back for a batch; the gradient of each example with respect to a layer's weights then follows
from the layer's inputs and the gradient with respect to its outputs. Several times as fast as one by one. In
evaluation mode only: there examples do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call


def squared_gradients(
    module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, value: Callable[[Tensor], Tensor], names: list[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Σ_i w_i · (∂ v_i / ∂θ)² for each parameter of these names, w_i = exp(v_i), and the v_i = value(features)_i.

    All parameters must belong to convolutions without groups, `BatchNorm2d` or linear layers.
    """
    gradients: dict[str, Tensor] = {}
    hooks = []
    for prefix, layer in module.named_modules():
        if any(f"{prefix}.{name}" in names for name, _ in layer.named_parameters(recurse=False)):
            hooks.append(layer.register_forward_hook(_watch(f"{prefix}.", gradients)))
    try:
        with torch.enable_grad():
            features = functional_call(
                module, {n: t.detach() for n, t in tensors.items()}, (x.detach().requires_grad_(),)
            )
            values = value(features)
            values.sum().backward()
    finally:
        for hook in hooks:
            hook.remove()
    weights = values.detach().exp()
    return {n: torch.tensordot(weights, gradients[n].square(), dims=1) for n in names}, weights


def _watch(prefix: str, gradients: dict[str, Tensor]) -> Callable[..., None]:
    """A hook that notes the gradient of each example by the layer's parameters, once it is known."""

    def add(name: str, gradient: Tensor) -> None:
        key = prefix + name
        gradients[key] = gradients[key] + gradient if key in gradients else gradient

    def forward(layer: Any, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        x = inputs[0].detach().float()
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            scale = torch.rsqrt(layer.running_var + layer.eps)
            x = (x - layer.running_mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1)

        def backward(grad: Tensor) -> None:
            grad = grad.float()  # with mixed precision it has the type of the layer's output
            if isinstance(layer, nn.Conv2d):
                shape: Any = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
                columns = F.unfold(x, *shape)
                add("weight", torch.bmm(grad.flatten(2), columns.mT).view(len(x), *layer.weight.shape))
            elif isinstance(layer, nn.BatchNorm2d):
                add("weight", (grad * x).sum((2, 3)))
            elif isinstance(layer, nn.Linear):
                add("weight", grad.unsqueeze(2) * x.unsqueeze(1))
            else:
                raise TypeError(f"no gradient of single examples for a {type(layer).__name__}")
            if layer.bias is not None:
                add("bias", grad.sum((2, 3)) if grad.dim() == 4 else grad)

        # Registered now, so that it sees the gradient of this output even if a ReLU overwrites it in place.
        out.register_hook(backward)

    return forward
