"""A network while it is being trained: parameters that autograd follows, and an optimiser that changes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from clpu.learning.losses import Loss
from clpu.networks.body import Tensors
from clpu.networks.linear import Linear
from clpu.networks.network import Network
from clpu.networks.parts import Part, answer

#: Optimisers by the name that the setting `optimizer` has.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, **options: torch.optim.SGD(parameters, momentum=0.9, **options),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

#: Sees the network and the gradients by name before each step, and returns the gradients to step with.
Edit = Callable[["Learner", Tensors], Tensors]


@dataclass(frozen=True)
class QuadraticPenalty:
    """A penalty on parameters, by name: Σ_τ strength · Σ F_τ (θ − θ*_τ)².

    Its gradient, 2·strength·(Σ F_τ θ − Σ F_τ θ*_τ), needs two tensors per parameter however many tasks there
    are: `precision` and `target`.
    """

    precision: Tensors
    target: Tensors

    @classmethod
    def towards(
        cls, strength: float, terms: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]
    ) -> QuadraticPenalty | None:
        """The sum of one term (F, θ*) per past task; `None` if there is none."""
        if not terms:
            return None
        names = {n for fisher, _ in terms for n in fisher}
        precision = {n: torch.stack([f[n] for f, _ in terms if n in f]).sum(0) for n in names}
        target = {n: torch.stack([f[n] * a[n] for f, a in terms if n in f]).sum(0) for n in names}
        return cls(
            {n: 2 * strength * t for n, t in precision.items()},
            {n: 2 * strength * t for n, t in target.items()},
        )


@dataclass(frozen=True)
class Descent:
    """Settings of training: the optimiser, additions to gradients, and the parameters to train.

    `only` names the parameters that are trained; all of them by default. `generators` feed whatever a user's module
    draws itself (dropout), one per replica.
    """

    lr: float
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    penalty: QuadraticPenalty | None = None
    edit: Edit | None = None
    only: Collection[str] | None = None
    generators: Sequence[torch.Generator] = ()


class Trainee(Protocol):
    """A network that is being trained, as a loss sees it."""

    def logits(self, *parts: Part) -> list[Tensor]: ...
    def parameters(self) -> Tensors: ...


class Learner:
    """A copy of a network that autograd and a torch optimiser train; for every network and every method.

    A step descends on as many times the loss as there are replicas, because losses are means over the replicas.
    """

    def __init__(self, network: Network, descent: Descent) -> None:
        self.start, self.descent, self._body = network, descent, network.body.private()
        self._tensors = network.body.copied()
        self._heads = {t: Linear(h.weight.clone(), h.bias.clone()) for t, h in network.heads.items()}
        everything = {name: self._tensors[name] for name in network.body.parameters}
        for task, head in self._heads.items():
            everything |= {f"head {task}.weight": head.weight, f"head {task}.bias": head.bias}
        only = descent.only
        self._parameters = {n: t.requires_grad_() for n, t in everything.items() if only is None or n in only}
        self._trains_body = any(name in self._parameters for name in network.body.parameters)
        options: dict[str, Any] = {"lr": descent.lr, "weight_decay": descent.weight_decay}
        self._optimizer = OPTIMIZERS[descent.optimizer](list(self._parameters.values()), **options)

    def parameters(self) -> Tensors:
        """The parameters that are trained, by name; a loss may use them."""
        return dict(self._parameters)

    def logits(self, *parts: Part) -> list[Tensor]:
        """Outputs for parts, as `Network.logits` gives them; in training mode unless gradients are switched off."""
        return answer(parts, self._forward, self._heads, self.start.pixels)

    def _forward(self, x: Tensor) -> Tensor:
        training = torch.is_grad_enabled()
        with torch.set_grad_enabled(training and self._trains_body):
            return self._body.forward(x, self._tensors, training, self.descent.generators)

    def gradients(self, loss: Loss | Tensor) -> Tensors:
        """The gradients of a loss with respect to the parameters, by name; without those that it does not depend on."""
        value = Loss.of(loss).value * self.start.body.replicas
        if not value.requires_grad:
            return {}
        found = torch.autograd.grad(value, list(self._parameters.values()), allow_unused=True)
        return {name: g for name, g in zip(self._parameters, found) if g is not None}

    def step(self, loss: Loss | Tensor) -> None:
        """One step of the optimiser on a loss made from `logits` and `parameters`."""
        gradients = self.gradients(loss)
        if not gradients:
            raise RuntimeError("the loss does not depend on anything that is being trained")
        if self.descent.penalty is not None:
            precision, target = self.descent.penalty.precision, self.descent.penalty.target
            for name in gradients.keys() & precision.keys():
                gradients[name] = gradients[name] + precision[name] * self._parameters[name].detach() - target[name]
        if self.descent.edit is not None:
            gradients = self.descent.edit(self, gradients)
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name].detach() if name in gradients else None
        self._optimizer.step()

    def network(self) -> Network:
        """The network as it is now."""
        # Laid out as saved tensors are, so that a loaded agent rounds as this one does.
        plain = torch.contiguous_format
        tensors = {name: tensor.detach().clone(memory_format=plain) for name, tensor in self._tensors.items()}
        heads = {t: Linear(h.weight.detach(), h.bias.detach()) for t, h in self._heads.items()}
        return Network(self.start.body.with_tensors(tensors), heads, self.start.pixels)
