"""Any `nn.Module` as the body of a population: one set of tensors a replica, served in a loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clpu.networks.body import Body
from clpu.networks.descent import Descent, Linear
from clpu.randomness import rand


class Looped(Body):
    """The module's code with K sets of parameters and buffers.

    The module itself is only a skeleton: its own tensors are neither read nor written.
    """

    def __init__(
        self, skeleton: nn.Module, replica_tensors: Sequence[dict[str, Tensor]], features: int, draws: bool
    ) -> None:
        self.skeleton = skeleton
        self.replica_tensors = list(replica_tensors)
        if getattr(skeleton, "channels_last", False):
            self.replica_tensors = [_channels_last(tensors) for tensors in replica_tensors]
        self.replicas = len(self.replica_tensors)
        self.features = features
        self.draws = draws  # whether the module may draw random numbers itself
        self._parameter_names = [name for name, _ in skeleton.named_parameters()]

    @classmethod
    def fresh(
        cls, skeleton: nn.Module, features: int, sources: Sequence[torch.Generator], device: torch.device
    ) -> Looped:
        """Weights from U(±1/√fan-in), normalisation layers at their usual start; for our own architectures."""
        own = {
            f"{m}.{n}" if m else n: mod
            for m, mod in skeleton.named_modules()
            for n, _ in mod.named_parameters(recurse=False)
        }
        replicas = []
        for source in sources:
            tensors: dict[str, Tensor] = {}
            for name, like in skeleton.named_parameters():
                if isinstance(own[name], nn.BatchNorm2d):
                    tensors[name] = (
                        torch.ones(like.shape, dtype=torch.float32)
                        if name.endswith("weight")
                        else torch.zeros(like.shape, dtype=torch.float32)
                    )
                else:
                    bound = 1 / math.sqrt(math.prod(like.shape[1:]))
                    tensors[name] = rand(*like.shape, source=source).mul_(2 * bound).sub_(bound)
            for name, buffer in skeleton.named_buffers():
                start = torch.ones if name.endswith("running_var") else torch.zeros
                tensors[name] = start(buffer.shape, dtype=buffer.dtype)
            replicas.append({n: t.to(device) for n, t in tensors.items()})
        return cls(skeleton, replicas, features, draws=False)

    @classmethod
    def of(cls, module: nn.Module, replicas: int, features: int, device: torch.device) -> Looped:
        """Every replica starts from the weights that the user's module has."""
        skeleton = copy.deepcopy(module).to(device)
        tensors = {n: t.detach() for n, t in [*skeleton.named_parameters(), *skeleton.named_buffers()]}
        return cls(
            skeleton,
            [{n: t.clone() for n, t in tensors.items()} for _ in range(replicas)],
            features,
            draws=True,
        )

    def forward(self, x: Tensor, descent: Descent | None = None) -> Tensor:
        self.skeleton.train(descent is not None)
        outputs = []
        for k, tensors in enumerate(self.replica_tensors):
            with self._own_draws(k, descent, x.device):
                outputs.append(functional_call(self.skeleton, tensors, (x[k],)))
        return torch.stack(outputs)

    @contextmanager
    def _own_draws(self, replica: int, descent: Descent | None, device: torch.device) -> Iterator[None]:
        """Dropout and its like can only read torch's global generator: lend it to them, and put it back."""
        if descent is None or not descent.sources or not self.draws:
            yield
            return
        number = int(torch.randint(2**62, (), generator=descent.sources[replica]))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(number)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(number)
            yield

    @torch.no_grad()
    def descend(self, descent: Descent) -> None:
        for k, tensors in enumerate(self.replica_tensors):
            live = [n for n in self._parameter_names if tensors[n].grad is not None]
            parameters = [tensors[n] for n in live]
            gradients = [t.grad for t in parameters if t.grad is not None]
            if descent.pull is not None:
                for name, g, t in zip(live, gradients, parameters):
                    g.addcmul_(descent.pull.precision[name][k], t).sub_(descent.pull.target[name][k])
            torch._foreach_mul_(parameters, descent.keep)
            torch._foreach_add_(parameters, gradients, alpha=-descent.lr)
            for t in parameters:
                t.grad = None

    def trainable(self) -> Looped:
        replicas = [{n: t.detach().clone() for n, t in tensors.items()} for tensors in self.replica_tensors]
        for tensors in replicas:
            for name in self._parameter_names:
                tensors[name].requires_grad_(True)
        return Looped(self.skeleton, replicas, self.features, self.draws)

    def settled(self) -> Looped:
        replicas = [{n: t.detach() for n, t in tensors.items()} for tensors in self.replica_tensors]
        return Looped(self.skeleton, replicas, self.features, self.draws)

    def tensors(self) -> dict[str, Tensor]:
        return {n: torch.stack([t[n].detach() for t in self.replica_tensors]) for n in self.replica_tensors[0]}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Looped:
        replicas = [{n: t[k].clone() for n, t in tensors.items()} for k in range(self.replicas)]
        return Looped(self.skeleton, replicas, self.features, self.draws)

    def parameters(self) -> dict[str, Tensor]:
        return {n: torch.stack([t[n].detach() for t in self.replica_tensors]) for n in self._parameter_names}

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> dict[str, Tensor]:
        """Per-example gradients by `vmap`, in evaluation mode; one example at a time for a module that refuses it."""
        self.skeleton.eval()
        sums = []
        for k, tensors in enumerate(self.replica_tensors):
            fixed = {n: t for n, t in tensors.items() if n not in self._parameter_names}
            theta = {n: tensors[n].detach() for n in self._parameter_names}
            weight, bias = head.weight[k], head.bias[k]

            def log_p(theta: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                features = functional_call(self.skeleton, {**theta, **fixed}, (x.unsqueeze(0),))  # noqa: B023
                chosen = F.log_softmax(features @ weight + bias, -1)[0].gather(0, y.reshape(1))[0]  # noqa: B023
                return chosen, chosen

            one = grad(log_p, has_aux=True)
            try:
                gradients, chosen = vmap(one, in_dims=(None, 0, 0))(theta, x, y)
            except RuntimeError:
                each = [one(theta, a, b) for a, b in zip(x, y)]
                gradients = {n: torch.stack([g[n] for g, _ in each]) for n in theta}
                chosen = torch.stack([c for _, c in each])
            p = chosen.exp()
            sums.append({n: torch.tensordot(p, g.square(), dims=1) for n, g in gradients.items()})
        return {n: torch.stack([s[n] for s in sums]) for n in self._parameter_names}


def _channels_last(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Filters laid out as convolutions on CPUs and GPUs like them best; the numbers are the same."""
    return {n: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for n, t in tensors.items()}
