"""A linear layer for each replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clpu.learning.randomness import uniform


@dataclass(frozen=True, eq=False)
class Linear:
    """y = xW + b for each replica: weight (replicas, in, out), bias (replicas, 1, out), x (replicas, n, in)."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def fresh(cls, inputs: int, outputs: int, generators: Sequence[torch.Generator], device: torch.device) -> Linear:
        """Weights and biases from U(±1/√inputs), as `torch.nn.Linear` draws them; one generator per replica."""
        bound = 1 / math.sqrt(inputs)
        weight, bias = uniform((inputs, outputs), bound, generators), uniform((1, outputs), bound, generators)
        return cls(weight.to(device), bias.to(device))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)

    def module(self, replica: int = 0) -> nn.Linear:
        """One replica as an ordinary layer."""
        inputs, outputs = self.weight.shape[1:]
        made = nn.Linear(inputs, outputs, device="meta")
        weight, bias = self.weight[replica].T.contiguous(), self.bias[replica, 0].clone()
        made.load_state_dict({"weight": weight.detach(), "bias": bias.detach()}, assign=True)
        return made.requires_grad_(False)

    @property
    def outputs(self) -> int:
        return self.weight.shape[-1]
