"""Any `nn.Module` as the body of a population: one set of tensors a replica, served in a loop."""

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
from clpu.networks.body import Body
from clpu.networks.descent import Descent, Linear
from clpu.networks.squares import squared_gradients
from clpu.randomness import rand

#: How many numbers the per-example gradients of one batch of the Fisher may take.
FISHER_NUMBERS = 50_000_000
#: And of how many examples at most.
FISHER_ROWS = 128

Tensors = dict[str, Tensor]


class Looped(Body):
    """The module's code with K sets of parameters and buffers.

    The module is only a skeleton without tensors of its own. A network that is to be trained gets its own copy
    of it, so that whatever else a module may hold (a counter, say) is not shared between networks either.
    """

    def __init__(self, skeleton: nn.Module, replica_tensors: Sequence[Tensors], features: int, users: bool) -> None:
        self.skeleton, self.features, self.users = skeleton, features, users
        self.replica_tensors = list(replica_tensors)
        if getattr(skeleton, "channels_last", False):
            self.replica_tensors = [_channels_last(tensors) for tensors in replica_tensors]
        self.replicas = len(self.replica_tensors)
        # What the user froze stays frozen: parameters, and modules in another mode than the whole (BatchNorm).
        self._parameter_names = [name for name, p in skeleton.named_parameters() if p.requires_grad]
        self._stubborn = [(m, m.training) for m in skeleton.modules() if m.training != skeleton.training]
        self._outputs: list[Tensor] = []
        self._lock = threading.Lock()  # functional_call puts tensors into the skeleton for as long as it runs

    @classmethod
    def fresh(
        cls, skeleton: nn.Module, features: int, sources: Sequence[torch.Generator], device: torch.device
    ) -> Looped:
        """Weights from U(±1/√fan-in), normalisation layers at their usual start; for our own architectures."""
        norms = [name for name, m in skeleton.named_modules() if isinstance(m, nn.BatchNorm2d)]
        replicas = []
        for source in sources:
            tensors: Tensors = {}
            for name, like in skeleton.named_parameters():
                if name.rpartition(".")[0] in norms:
                    start = torch.ones if name.endswith("weight") else torch.zeros
                    tensors[name] = start(like.shape, dtype=torch.float32, device="cpu")
                else:
                    bound = 1 / math.sqrt(math.prod(like.shape[1:]))
                    tensors[name] = rand(*like.shape, source=source).mul_(2 * bound).sub_(bound)
            for name, buffer in skeleton.named_buffers():
                start = torch.ones if name.endswith("running_var") else torch.zeros
                tensors[name] = start(buffer.shape, dtype=buffer.dtype, device="cpu")
            replicas.append({n: t.to(device) for n, t in tensors.items()})
        return cls(skeleton, replicas, features, users=False)

    @classmethod
    def of(cls, module: nn.Module, replicas: int, features: int, device: torch.device) -> Looped:
        """Every replica starts from the weights that the user's module has."""
        tensors = own_tensors(module)
        skeleton = copy.deepcopy(module).to(device)
        for tensor in own_tensors(skeleton).values():  # views of one number: shapes without memory
            tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)
        copies = [{n: t.detach().to(device, copy=True) for n, t in tensors.items()} for _ in range(replicas)]
        return cls(skeleton, copies, features, users=True)

    def forward(
        self, x: Tensor, descent: Descent | None = None, scale: float = 1.0, blend: Tensor | None = None
    ) -> Tensor:
        if blend is not None:
            x = torch.bmm(blend, x.flatten(2)).unflatten(2, x.shape[2:])
        if scale != 1:
            x = x * scale
        elif self.users and blend is None:
            x = x.clone()  # a module may change its input
        record = descent is not None and not descent.head_only
        with self._lock:
            self._set_mode(descent is not None)
            outputs = []
            for k, tensors in enumerate(self.replica_tensors):
                with self._lent_draws(k, descent, x.device), torch.set_grad_enabled(record):
                    outputs.append(self._call(tensors, x[k], descent is not None))
        if record:
            self._outputs = outputs
        return torch.stack([out.detach() for out in outputs])

    def _set_mode(self, training: bool) -> None:
        self.skeleton.train(training)
        for module, mode in self._stubborn:
            module.training = training and mode

    def _call(self, tensors: Tensors, x: Tensor, training: bool) -> Tensor:
        handed = dict(tensors)
        try:
            out = functional_call(self.skeleton, handed, (x,))
        except Exception as error:
            if not self.users or isinstance(error, Error):
                raise
            raise BadNetwork(f"the module failed on inputs of shape {tuple(x.shape)}: {error}") from error
        if self.users:
            check_features(out, x, self.features)
        if training:  # buffers that the module put anew instead of changing them
            for name, value in handed.items():
                if value is not tensors[name]:
                    tensors[name] = value.detach()
        return out

    @contextmanager
    def _lent_draws(self, replica: int, descent: Descent | None, device: torch.device) -> Iterator[None]:
        """Dropout and its like can only read torch's global generator: lend it to them, and put it back.

        In training its numbers are those of (seed, task, purpose); otherwise they are always the same.
        """
        if not self.users:
            yield
            return
        number = 0
        if descent is not None and descent.sources:
            number = int(torch.randint(2**62, (), generator=descent.sources[replica], device="cpu"))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(number)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(number)
            yield

    @torch.no_grad()
    def descend(self, grad: Tensor, descent: Descent) -> None:
        recorded = [(out, g) for out, g in zip(self._outputs, grad) if out.requires_grad]
        if recorded:
            torch.autograd.backward([out for out, _ in recorded], [g for _, g in recorded])
        self._outputs = []
        for k, tensors in enumerate(self.replica_tensors):
            live = [n for n in self._parameter_names if tensors[n].grad is not None]
            if not live:
                continue
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
        with self._lock:
            skeleton = copy.deepcopy(self.skeleton)
        return self._like(replicas, skeleton)

    def settled(self) -> Looped:
        replicas = [{n: t.detach() for n, t in tensors.items()} for tensors in self.replica_tensors]
        return self._like(replicas, self.skeleton)

    def _like(self, replicas: list[Tensors], skeleton: nn.Module) -> Looped:
        other = Looped(skeleton, replicas, self.features, self.users)
        # Modes are the user's, however the skeleton was used last.
        stubborn = {id(m): mode for m, mode in self._stubborn}
        pairs = zip(self.skeleton.modules(), skeleton.modules())
        other._stubborn = [(theirs, stubborn[id(mine)]) for mine, theirs in pairs if id(mine) in stubborn]
        return other

    def tensors(self) -> Tensors:
        return {n: torch.stack([t[n].detach() for t in self.replica_tensors]) for n in self.replica_tensors[0]}

    def with_tensors(self, tensors: Tensors) -> Looped:
        replicas = [{n: t[k].clone() for n, t in tensors.items()} for k in range(self.replicas)]
        return self._like(replicas, self.skeleton)

    def parameters(self) -> Tensors:
        return {n: torch.stack([t[n].detach() for t in self.replica_tensors]) for n in self._parameter_names}

    def fisher(self, x: Tensor, y: Tensor, head: Linear) -> Tensors:
        """In evaluation mode: our own architectures layer by layer, users' modules by `vmap`.

        A module that refuses it is differentiated one example at a time.
        """
        size = sum(self.replica_tensors[0][n].numel() for n in self._parameter_names)
        rows = min(FISHER_ROWS, max(1, FISHER_NUMBERS // max(1, size)))
        sums = []
        with self._lock:
            self._set_mode(False)
            for k, tensors in enumerate(self.replica_tensors):
                total = {n: torch.zeros_like(tensors[n]) for n in self._parameter_names}
                with self._lent_draws(k, None, x.device):
                    for some_x, some_y in zip(x.split(rows), y.split(rows)):
                        self._add_fisher(total, tensors, some_x, some_y, head.weight[k], head.bias[k])
                sums.append(total)
        return {n: torch.stack([s[n] for s in sums]) for n in self._parameter_names}

    def _add_fisher(self, total: Tensors, tensors: Tensors, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> None:
        fixed = {n: t for n, t in tensors.items() if n not in self._parameter_names}
        theta = {n: tensors[n].detach() for n in self._parameter_names}

        def log_p(theta: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features = functional_call(self.skeleton, {**theta, **fixed}, (x.unsqueeze(0),))
            chosen = F.log_softmax(features @ weight + bias, -1)[0].gather(0, y.reshape(1))[0]
            return chosen, chosen

        if not self.users:
            found, _ = squared_gradients(self.skeleton, tensors, x, chosen_of(y, weight, bias), self._parameter_names)
            for name, value in found.items():
                total[name] += value
            return
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


def chosen_of(y: Tensor, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    """From features to log p(y|x) of each example, by a head."""
    return lambda features: F.log_softmax(features @ weight + bias, -1).gather(1, y.unsqueeze(1)).squeeze(1)


def own_tensors(module: nn.Module) -> Tensors:
    """A module's parameters and buffers by name."""
    return dict([*module.named_parameters(), *module.named_buffers()])


def check_features(out: object, x: Tensor, features: int | None = None) -> int:
    """How many features a module gave for inputs x; `BadNetwork` if what it gave is anything else."""
    good = isinstance(out, Tensor) and out.dtype == torch.float32 and out.dim() == 2 and out.shape[0] == len(x)
    if not good or out.shape[1] < 1 or features not in (None, out.shape[1]):  # type: ignore[attr-defined]
        got = f"shape {tuple(out.shape)}, {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise BadNetwork(
            "the module must return one row of features an input, a float32 tensor of shape "
            f"({len(x)}, {features or 'features'}), got {got} for inputs of shape {tuple(x.shape)}"
        )
    return int(out.shape[1])  # type: ignore[attr-defined]


def _channels_last(tensors: Tensors) -> Tensors:
    """Filters laid out as convolutions on CPUs and GPUs like them best; the numbers are the same."""
    return {n: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for n, t in tensors.items()}
