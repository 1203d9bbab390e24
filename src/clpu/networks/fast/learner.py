"""The learner whose layers descend on the way back; it does what `clpu.networks.learner.Learner` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.learning.losses import Loss
from clpu.networks.body import PrecomputedFeatures, Tensors
from clpu.networks.fast.calls import CallPlan, Used, key_of
from clpu.networks.fast.linear import FoldedLinear, Update
from clpu.networks.learner import Descent
from clpu.networks.linear import Linear
from clpu.networks.mlp import MLP
from clpu.networks.network import Network
from clpu.networks.parts import Part, answer


def folded_learner(network: Network, descent: Descent) -> FoldedLearner | None:
    """The fast learner, if it can train this network in this way."""
    fits = isinstance(network.body, (MLP, PrecomputedFeatures))
    plain = descent.optimizer == "sgd" and descent.edit is None
    trained = [n for n in network.parameters() if descent.only is None or n in descent.only]
    in_body = [n for n in network.body.parameters if n in trained]
    whole = len(in_body) in (0, len(network.body.parameters))
    heads = [t for t in network.heads if f"head {t}.weight" in trained]
    in_pairs = heads == [t for t in network.heads if f"head {t}.bias" in trained]
    return FoldedLearner(network, descent, bool(in_body), heads) if fits and plain and whole and in_pairs else None


@dataclass(eq=False)
class _Call:
    """One call of `logits` in a step."""

    plan: CallPlan
    used: list[Used]
    activations: list[Tensor]
    scale: float
    blend: Tensor | None

    @property
    def folds(self) -> bool:
        """Whether each layer is used once, so that it may descend as soon as its gradient is known."""
        return not self.plan.repeats_a_task and not any(used.head.is_copy for used in self.used)


class FoldedLearner:
    """A copy of a network whose layers descend by themselves.

    In a step with one call of `logits`, layers descend on the way back through them. In any other step, gradients are
    summed up first.
    """

    def __init__(self, network: Network, descent: Descent, trains_body: bool, heads: Iterable[str]) -> None:
        self.start, self.update, self.trains_body = network, Update(descent), trains_body
        self.trained = set(heads)
        layers = list(network.body.layers()) if isinstance(network.body, MLP) else []
        self.layers = [FoldedLinear.of(layer, str(i), True, i == 0) for i, layer in enumerate(layers)]
        self.heads = {t: FoldedLinear.of(h, f"head {t}", transpose=True) for t, h in network.heads.items()}
        for task, head in self.heads.items():
            head.trained = task in self.trained
        self._plans: dict[object, CallPlan] = {}
        self._stacks: dict[tuple[str, ...], FoldedLinear] = {}
        self._calls: list[_Call] = []
        self._parameters: Tensors = {}

    def parameters(self) -> Tensors:
        """The parameters that are trained, by name; a loss may use them."""
        if not self._parameters:
            layers = [*(self.layers if self.trains_body else []), *(self.heads[t] for t in sorted(self.trained))]
            self._parameters = {
                f"{layer.name}.{part}": getattr(layer, part).requires_grad_()
                for layer in layers
                for part in ("weight", "bias")
            }
        return dict(self._parameters)

    def logits(self, *parts: Part) -> list[Tensor]:
        """Outputs for parts, as `Network.logits` gives them."""
        if not torch.is_grad_enabled():
            return answer(parts, self._forward, {t: h.layer() for t, h in self.heads.items()}, self.start.pixels)
        inputs = list({id(x): x for _, x in parts}.values())
        key = key_of(parts, inputs)
        if key not in self._plans:
            self._plans[key] = CallPlan(parts, inputs)
        plan = self._plans[key]
        with torch.no_grad():
            number = sum(call.plan is plan for call in self._calls)
            x, scale, blend = plan.joined(inputs, self.start.pixels, number)
            activations = self._activations(x, scale, blend)
            features = activations[-1]
            pieces = [features] if len(inputs) == 1 else features.split(plan.sizes, dim=1)
            heads = [self._head(use.tasks) for use in plan.uses]
        used = [use.outputs(head, pieces) for use, head in zip(plan.uses, heads)]
        self._calls.append(_Call(plan, used, activations, scale, blend))
        return [used[use].parts[i] for use, i in plan.places]

    def _forward(self, x: Tensor) -> Tensor:
        return self._activations(x)[-1]

    def _activations(self, x: Tensor, scale: float = 1.0, blend: Tensor | None = None) -> list[Tensor]:
        if not self.layers:
            x = x if blend is None else torch.bmm(blend, x)
            return [x if scale == 1 else x * scale]
        first = x.flatten(2)
        activations = [first, self.layers[0](first, scale, blend)]
        for layer in self.layers[1:]:
            activations.append(layer(activations[-1]))
        return activations

    def _head(self, tasks: tuple[str, ...]) -> FoldedLinear:
        """The head of a task, or those of several as one layer of (replicas × tasks) matrices.

        The heads of several tasks share their memory with that layer, unless they already share it with a different
        one, or cannot descend together.
        """
        if len(tasks) == 1:
            return self.heads[tasks[0]]
        if tasks in self._stacks:
            return self._stacks[tasks]
        heads, members = [self.heads[t] for t in tasks], set(tasks)
        alike = len(members) == len(tasks) and len({head.trained for head in heads}) == 1
        free = not self._parameters and all(members.isdisjoint(others) for others in self._stacks)
        stack = FoldedLinear.stacked(heads, share=alike and free)
        if not stack.is_copy:
            self._stacks[tasks] = stack
        return stack

    def step(self, loss: Loss | Tensor) -> None:
        """One step on a loss made from `logits` and `parameters`."""
        calls, self._calls = self._calls, []
        extra = self._differentiate(Loss.of(loss), calls)
        if not extra and not any(self._trains(used) for call in calls for used in call.used):
            raise RuntimeError("the loss does not depend on anything that is being trained")
        folded = len(calls) == 1 and not extra and calls[0].folds
        with torch.no_grad():
            for call in calls:
                self._back(call, self.update if folded else None)
            if not folded:
                for layer in (*self.layers, *self.heads.values()):
                    layer.add(extra.get(f"{layer.name}.weight"), extra.get(f"{layer.name}.bias"))
                    layer.apply_sums(self.update)

    def _trains(self, used: Used) -> bool:
        """Whether the loss depends on these outputs, and they on something that is being trained."""
        depends = any(gradient is not None for gradient in used.gradients)
        return depends and (self.trains_body or not self.trained.isdisjoint(used.use.tasks))

    def _differentiate(self, loss: Loss, calls: Sequence[_Call]) -> Tensors:
        """Put the gradients by the calls' outputs where `_back` finds them; returns those by the parameters.

        Terms of these very outputs bring their own; autograd does the rest.
        """
        parts = [(used, i, part) for call in calls for used in call.used for i, part in enumerate(used.parts)]
        places = {id(part): (used, i) for used, i, part in parts}
        others: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for term in loss.terms:
                gradient = term.gradient(term.outputs, term.weight * self.start.body.replicas)
                if id(term.outputs) in places:
                    used, i = places[id(term.outputs)]
                    used.add(i, gradient)
                elif term.outputs.requires_grad:
                    others.append((term.outputs, gradient))
        if not others:
            return {}
        wanted = [*(part for _, _, part in parts), *self._parameters.values()]
        found = torch.autograd.grad([o for o, _ in others], wanted, [g for _, g in others], allow_unused=True)
        for (used, i, _), part_gradient in zip(parts, found):
            if part_gradient is not None:
                used.add(i, part_gradient)
        return {name: g for name, g in zip(self._parameters, found[len(parts) :]) if g is not None}

    def _back(self, call: _Call, update: Update | None) -> None:
        by_input: list[Tensor | None] = [None] * len(call.plan.sizes)
        for used in call.used:
            gradient = used.gradient()
            if gradient is None:
                continue
            if self.trained.isdisjoint(used.use.tasks):
                inner = torch.bmm(gradient, used.head.weight.mT) if self.trains_body else None
            else:
                inner = used.head.descend(used.x, used.out, gradient, update, inner=self.trains_body)
            for i, g in used.by_input(inner) if inner is not None else ():
                before = by_input[i]
                by_input[i] = g if before is None else before + g
        if self.trains_body and any(g is not None for g in by_input):
            self._back_through_body(_whole(by_input, call.plan.sizes), call, update)

    def _back_through_body(self, grad: Tensor, call: _Call, update: Update | None) -> None:
        inner: Tensor | None = grad
        for i in reversed(range(1, len(self.layers))):
            assert inner is not None
            x, out = call.activations[i : i + 2]
            inner = self.layers[i].descend(x, out, inner, update)
        assert inner is not None
        x, out = call.activations[:2]
        self.layers[0].descend(x, out, inner, update, False, call.scale, call.blend)

    def network(self) -> Network:
        """The network as it is now."""
        tensors: Tensors = {}
        for layer in self.layers:
            made = layer.layer()
            tensors |= {f"{layer.name}.weight": made.weight, f"{layer.name}.bias": made.bias}
        body = self.start.body.with_tensors(tensors)
        heads: dict[str, Linear] = {t: head.layer() for t, head in self.heads.items()}
        return Network(body, heads, self.start.pixels)


def _whole(by_input: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """The gradient with respect to the features of all inputs."""
    known = next(g for g in by_input if g is not None)
    parts = [
        known.new_zeros(known.shape[0], size, known.shape[2]) if g is None else g for g, size in zip(by_input, sizes)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
