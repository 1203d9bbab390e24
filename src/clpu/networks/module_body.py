"""Any `nn.Module` as the body of a population: one set of tensors per replica, served in a loop."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clpu.errors import BadNetwork, Error
from clpu.learning.randomness import rand
from clpu.networks.body import Body, Tensors
from clpu.networks.linear import Linear
from clpu.networks.per_example_gradients import squared_gradients

#: How many numbers the per-example gradients of one batch of the Fisher may take.
FISHER_NUMBERS = 50_000_000
#: And of how many examples at most.
FISHER_ROWS = 128


class Skeleton:
    """A module's code without the tensors that are learned, and its frozen part: the base.

    Parameters that the user froze belong to the base, and so do the statistics of layers that are frozen; all networks
    of all tasks and replicas share one copy of it, which is never trained. A call of a user's module works on a copy
    of the code, and so does a training, so whatever else it may hold (a counter, say) is not shared.
    """

    def __init__(self, module: nn.Module, users: bool) -> None:
        self.users = users
        frozen = frozen_modules(module)
        self.base = {n: t.detach().clone() for n, t in base_of(module).items()}
        self.parameters = tuple(n for n, _ in module.named_parameters() if n not in self.base)
        self.statistics = tuple(n for n, _ in module.named_buffers() if n not in self.base)
        self._buffers = {n for n, _ in module.named_buffers()}
        # Modules whose mode is their own stay in it: those that are frozen, and those that the user set differently.
        self._fixed = {n for n, m in module.named_modules() if n in frozen or m.training != module.training}
        self._kept = {n for n in self._fixed if n not in frozen and module.get_submodule(n).training}
        self.module = copy.deepcopy(module)
        for tensor in own_tensors(self.module).values():  # views of one number: shapes without memory
            tensor.requires_grad_(False)
            tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)
        self.channels_last = getattr(module, "channels_last", False)
        self._copies = threading.local()

    def for_a_call(self, learned: Tensors) -> Tensors:
        """All tensors of the module. Buffers are copies: a call may change them in place."""
        return {n: t.clone() if n in self._buffers else t for n, t in {**self.base, **learned}.items()}

    def private(self) -> Skeleton:
        """The same for one training: calls share a copy of the code, which nobody else uses."""
        other = copy.copy(self)
        other._copies = threading.local()
        other._copies.module = copy.deepcopy(self.module)
        return other

    def lent(self, training: bool) -> nn.Module:
        """The module in one mode, for the calling thread alone."""
        module = getattr(self._copies, "module", None)
        if module is None:
            module = copy.deepcopy(self.module)
            if not self.users:  # our own modules hold nothing but tensors
                self._copies.module = module
        module.train(training)
        for name in self._fixed:
            module.get_submodule(name).training = training and name in self._kept
        return module


def base_of(module: nn.Module) -> Tensors:
    """The tensors that belong to the base: frozen parameters, and the buffers of frozen modules."""
    frozen = frozen_modules(module)
    parameters = {n: p for n, p in module.named_parameters() if not p.requires_grad}
    return parameters | {n: b for n, b in module.named_buffers() if n.rpartition(".")[0] in frozen}


def frozen_modules(module: nn.Module) -> set[str]:
    """The modules whose statistics belong to the base.

    These have parameters, all of them frozen; or none, inside one whose parameters are all frozen.
    """
    frozen = set()
    for name, part in module.named_modules():
        inside = part
        while not (parameters := list(inside.parameters())) and name:
            name = name.rpartition(".")[0]
            inside = module.get_submodule(name)
        if parameters and not any(p.requires_grad for p in parameters):
            frozen.add(next(n for n, m in module.named_modules() if m is part))
    return frozen


class ModuleBody(Body):
    """A skeleton with one set of tensors per replica."""

    def __init__(self, skeleton: Skeleton, tensors: Tensors, features: int, replicas: int) -> None:
        self.skeleton, self.features, self.replicas = skeleton, features, replicas
        self.tensors, self.parameters = dict(tensors), skeleton.parameters

    @classmethod
    def fresh(
        cls, skeleton: Skeleton, features: int, generators: Sequence[torch.Generator], device: torch.device
    ) -> ModuleBody:
        """Weights from U(±1/√fan-in), normalisation layers at their usual start; for our own architectures."""
        module = skeleton.module
        norms = [name for name, m in module.named_modules() if isinstance(m, nn.BatchNorm2d)]
        replicas = []
        for generator in generators:
            tensors: Tensors = {}
            for name, like in module.named_parameters():
                if name.rpartition(".")[0] in norms:
                    start = torch.ones if name.endswith("weight") else torch.zeros
                    tensors[name] = start(like.shape, dtype=torch.float32, device="cpu")
                else:
                    bound = 1 / math.sqrt(math.prod(like.shape[1:]))
                    tensors[name] = rand(*like.shape, source=generator).mul_(2 * bound).sub_(bound)
            for name, buffer in module.named_buffers():
                start = torch.ones if name.endswith("running_var") else torch.zeros
                tensors[name] = start(buffer.shape, dtype=buffer.dtype, device="cpu")
            replicas.append(tensors)
        stacked = {n: torch.stack([t[n] for t in replicas]).to(device) for n in replicas[0]}
        return cls(skeleton, stacked, features, len(replicas))

    @classmethod
    def of(cls, skeleton: Skeleton, modules: Sequence[nn.Module], features: int, device: torch.device) -> ModuleBody:
        """Every replica starts from the weights that its module has."""
        named = [own_tensors(module) for module in modules]
        learned = (*skeleton.parameters, *skeleton.statistics)
        stacked = {n: torch.stack([t[n].detach() for t in named]).to(device) for n in learned}
        return cls(skeleton, stacked, features, len(modules))

    def copied(self) -> Tensors:
        if not self.skeleton.channels_last:
            return super().copied()
        return {n: _channels_last(t) if t.dim() == 5 else t.clone() for n, t in self.tensors.items()}

    def forward(
        self,
        x: Tensor,
        tensors: Tensors | None = None,
        training: bool = False,
        generators: Sequence[torch.Generator] = (),
    ) -> Tensor:
        given = self.tensors if tensors is None else tensors
        if self.skeleton.users:
            x = x.clone()  # a module may change its input
        parameters = {n: given[n].unbind() for n in self.parameters}
        outputs = []
        module = self.skeleton.lent(training)
        for k in range(self.replicas):
            handed = {n: replicas[k] for n, replicas in parameters.items()}
            handed |= {n: given[n][k] for n in self.skeleton.statistics}
            with self._lent_draws(k, generators if training else (), x.device):
                outputs.append(self._call(module, handed, x[k]))
            if training:
                with torch.no_grad():
                    for name in self.skeleton.statistics:
                        given[name][k].copy_(handed[name])
        return torch.stack(outputs)

    def module(self, replica: int = 0) -> nn.Module:
        full = self.skeleton.for_a_call({name: tensor[replica] for name, tensor in self.tensors.items()})
        made = copy.deepcopy(self.skeleton.lent(training=False))
        made.load_state_dict({name: t.detach().clone() for name, t in full.items()}, strict=False, assign=True)
        return made.requires_grad_(False)

    def private(self) -> ModuleBody:
        return ModuleBody(self.skeleton.private(), self.tensors, self.features, self.replicas)

    def _call(self, module: nn.Module, handed: Tensors, x: Tensor) -> Tensor:
        full = self.skeleton.for_a_call(handed)
        try:
            out = functional_call(module, full, (x,))
        except Exception as error:
            if not self.skeleton.users or isinstance(error, Error):
                raise
            raise BadNetwork(f"the module failed on inputs of shape {tuple(x.shape)}: {error}") from error
        handed |= {n: full[n].detach() for n in self.skeleton.statistics}
        if self.skeleton.users:
            check_features(out, x, self.features)
        return out

    @contextmanager
    def _lent_draws(self, replica: int, generators: Sequence[torch.Generator], device: torch.device) -> Iterator[None]:
        """Dropout and its like can only read torch's global generator: lend it to them, and put it back.

        In training its numbers are those of (seed, task, purpose); otherwise they are always the same.
        """
        if not self.skeleton.users:
            yield
            return
        number = 0
        if generators:
            number = int(torch.randint(2**62, (), generator=generators[replica], device="cpu"))
        with seeded(number, device):
            yield

    def with_tensors(self, tensors: Tensors) -> ModuleBody:
        return ModuleBody(self.skeleton, {n: tensors[n] for n in self.tensors}, self.features, self.replicas)

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> Tensors:
        """In evaluation mode: our own architectures layer by layer, users' modules by `vmap`.

        A module that refuses it is differentiated one example at a time.
        """
        size = sum(self.tensors[n][0].numel() for n in self.parameters)
        rows = min(FISHER_ROWS, max(1, FISHER_NUMBERS // max(1, size)))
        sums = []
        module = self.skeleton.lent(False)
        for k in range(self.replicas):
            mine = {n: t[k] for n, t in self.tensors.items()}
            total = {n: torch.zeros_like(mine[n]) for n in self.parameters}
            with self._lent_draws(k, (), x.device):
                for some_x, some_y in zip(x.split(rows), y.split(rows)):
                    self._add_fisher(total, module, mine, some_x, some_y, head.weight[k], head.bias[k])
            sums.append(total)
        return {n: torch.stack([s[n] for s in sums]) for n in self.parameters}

    def _add_fisher(
        self, total: Tensors, module: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor
    ) -> None:
        if not self.skeleton.users:
            names = list(self.parameters)
            found, _ = squared_gradients(module, tensors, x, chosen_of(y, weight, bias), names)
            for name, value in found.items():
                total[name] += value
            return
        statistics = {n: tensors[n] for n in self.skeleton.statistics}
        theta = {n: tensors[n].detach() for n in self.parameters}

        def log_p(theta: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features = functional_call(module, self.skeleton.for_a_call(theta | statistics), (x.unsqueeze(0),))
            chosen = F.log_softmax(features @ weight + bias, -1)[0].gather(0, y.reshape(1))[0]
            return chosen, chosen

        one = grad(log_p, has_aux=True)
        try:
            gradients, chosen = vmap(one, in_dims=(None, 0, 0))(theta, x, y)
        except RuntimeError:
            for some_x, some_y in zip(x, y):
                gradients, chosen = one(theta, some_x, some_y)
                for name, g in gradients.items():
                    total[name] += chosen.exp() * g.square()
            return
        for name, g in gradients.items():
            total[name] += torch.tensordot(chosen.exp(), g.square(), dims=1)


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """Torch's global generator with a seed, put back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(number)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number)
        yield


def chosen_of(y: Tensor, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    """From features to log p(y|x) of each example, by a head."""
    return lambda features: F.log_softmax(features @ weight + bias, -1).gather(1, y.unsqueeze(1)).squeeze(1)


def own_tensors(module: nn.Module) -> Tensors:
    """A module's parameters and buffers by name."""
    return dict([*module.named_parameters(), *module.named_buffers()])


def check_features(out: object, x: Tensor, features: int | None = None) -> int:
    """Return the number of features that a module gave for inputs x; `BadNetwork` if it gave anything else."""
    good = isinstance(out, Tensor) and out.dtype == torch.float32 and out.dim() == 2 and out.shape[0] == len(x)
    if not good or out.shape[1] < 1 or features not in (None, out.shape[1]):  # type: ignore[attr-defined]
        got = f"shape {tuple(out.shape)}, {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise BadNetwork(
            "the module must return one row of features per input, a float32 tensor of shape "
            f"({len(x)}, {features or 'features'}), got {got} for inputs of shape {tuple(x.shape)}"
        )
    return int(out.shape[1])  # type: ignore[attr-defined]


def _channels_last(stacked: Tensor) -> Tensor:
    """A copy of filters (K, out, in, h, w), each replica's laid out as convolutions like best; the same numbers."""
    return stacked.permute(0, 1, 3, 4, 2).clone(memory_format=torch.contiguous_format).permute(0, 1, 4, 2, 3)
