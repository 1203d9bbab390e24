"""Blueprints: build networks of the kind that an agent was asked for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from clpu.bases import loading as bases
from clpu.errors import BadData, BadNetwork, BadSetting, BadState
from clpu.learning.randomness import generators
from clpu.networks.body import Body, PrecomputedFeatures
from clpu.networks.linear import Linear
from clpu.networks.mlp import MLP
from clpu.networks.module_body import ModuleBody, Skeleton, base_of, check_features, own_tensors, seeded
from clpu.networks.network import Network
from clpu.networks.parts import Pixels
from clpu.networks.precision import bfloat16_is_fast
from clpu.networks.resnet import ResNet18
from clpu.settings import make, setting
from clpu.state import Leaf
from clpu.state.leaf import DTYPES
from clpu.workers import ONE, Workers

CODES = {getattr(torch, name): code for code, name in DTYPES.items()}


@dataclass(frozen=True)
class InputSettings:
    scaling: str = setting(
        "auto",
        "numbers are scaled by constants of each task, by a fixed transform, or not at all (docs/your-data.md)",
        choices=("auto", "task", "fixed", "none"),
    )
    mean: tuple[float, ...] = setting((), "mean of each channel, for images of bytes scaled to 0 … 1")
    std: tuple[float, ...] = setting((), "standard deviation of each channel")


@dataclass(frozen=True)
class MLPSettings(InputSettings):
    hidden: tuple[int, ...] = setting((100, 100), "units of the hidden layers")


@dataclass(frozen=True)
class ResNetSettings(InputSettings):
    width: int = setting(64, "filters of the first stage", at_least=1)
    mixed_precision: bool = setting(
        False, "convolutions in bfloat16, the rest in float32; auto: if the device multiplies in it", auto=True
    )


@dataclass(frozen=True)
class Inputs:
    """The shape and kind of one input. Integers (tokens) reach a user's module unchanged."""

    shape: tuple[int, ...]
    integer: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "integer": self.integer}

    @classmethod
    def from_json(cls, value: Any) -> Inputs:
        """Read what `to_json` made; `BadState` for anything else."""
        try:
            shape, integer = value["shape"], value["integer"]
            if type(integer) is not bool or not all(type(n) is int and 0 < n < 2**31 for n in shape):
                raise ValueError(f"not the shape of an input: {shape!r:.80}")
        except (KeyError, TypeError, ValueError) as error:
            raise BadState(f"a task does not describe its inputs: {error!s:.200}") from None
        return cls(tuple(shape), integer)


#: The networks by name, with the class of their settings.
NETWORKS: dict[str, type] = {"mlp": MLPSettings, "resnet18": ResNetSettings, **bases.SETTINGS}
#: Factories of users' modules by name.
FACTORIES: dict[str, Callable[[], nn.Module]] = {}


def register_network(name: str) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Make a factory of a `torch.nn.Module` known as a network (a decorator).

    The factory runs with torch's generator seeded by the agent, so that every process gets the same start.
    """

    def decorate(factory: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        before = FACTORIES.get(name)
        same = before is not None and (before.__module__, before.__qualname__) == (
            factory.__module__,
            factory.__qualname__,
        )
        if not isinstance(name, str) or not name or name == "module" or (name in NETWORKS and not same):
            raise BadSetting(f"the name {name!r:.80} is taken or not allowed; give your network a different one")
        NETWORKS[name], FACTORIES[name] = InputSettings, factory
        return factory

    return decorate


class Blueprint:
    """Builds fresh bodies and heads; the same (seed, task) always gives the same numbers."""

    def __init__(self, network: str | nn.Module, options: Mapping[str, Any], device: torch.device) -> None:
        # Decided once: a saved agent computes in the same way wherever it is opened.
        auto = {"mixed_precision": lambda: bfloat16_is_fast(device)}
        self.settings: Any = make(self.settings_class(network), options, auto)
        self.name = network if isinstance(network, str) else "module"
        #: A frozen network that makes features of the inputs, which are then what methods see as inputs.
        self.base = bases.load(self.name, self.settings) if self.name.startswith("base:") else None
        self.pixels = Pixels() if self.base else Pixels(self.settings.mean, self.settings.std)
        if len(self.pixels.mean) != len(self.pixels.std) or any(s <= 0 for s in self.pixels.std):
            raise BadSetting(f"mean and std must have one number per channel, std above 0, got {self.pixels}")
        self.device = device
        self._given = None if isinstance(network, str) else _own_copy(network)
        self._made: dict[tuple[int, ...], list[nn.Module]] = {}
        self._skeletons: dict[tuple[Inputs, tuple[int, ...]], Skeleton] = {}
        self._features: dict[Inputs, int] = {}

    @staticmethod
    def settings_class(network: object) -> type:
        """The settings that a network has."""
        if isinstance(network, nn.Module):
            return InputSettings
        if isinstance(network, str) and network in NETWORKS:
            return NETWORKS[network]
        raise BadNetwork(
            f"network must be one of {', '.join(NETWORKS)} or a torch.nn.Module that maps inputs to features, "
            f"got {network!r:.80}"
        )

    @property
    def users(self) -> bool:
        """Whether the network is a user's module."""
        return self._given is not None or self.name in FACTORIES

    def features_of(self, x: Tensor, workers: Workers = ONE) -> Tensor:
        """Return inputs (n, *input) as methods see them: a base's features of them, or the inputs themselves."""
        if self.base is None:
            return x
        with torch.no_grad():
            features = bases.features_by(workers, self.base, self.name, self.settings, x.cpu())
        if not bool(features.isfinite().all()):
            raise BadData(f"{self.name} gives NaN or infinity for some of these inputs")
        return features.to(self.device)

    def modules(self, seeds: Sequence[int]) -> list[nn.Module]:
        """A user's module for each replica: the one that was handed in, or one made for each seed."""
        if self._given is not None:
            return [self._given] * len(seeds)
        key = tuple(seeds)
        if key not in self._made:
            self._made[key] = _with_one_base([_made(FACTORIES[self.name], seed) for seed in seeds])
        return self._made[key]

    def body(self, inputs: Inputs, seeds: Sequence[int], task: str | None = None) -> Body:
        """A fresh body: the main one, or the one of a task. A user's module starts as the user made it."""
        features = self.features(inputs, seeds)
        if self.base:
            return PrecomputedFeatures(len(seeds), features)
        if self.users:
            return ModuleBody.of(self._skeleton_for(inputs, seeds), self.modules(seeds), features, self.device)
        draws = generators(seeds, task, "body")
        if self.name == "mlp":
            return MLP.fresh(inputs.shape, self.settings.hidden, draws, self.device)
        return ModuleBody.fresh(self._skeleton_for(inputs, seeds), features, draws, self.device)

    def body_of(self, tensors: dict[str, Tensor], inputs: Inputs, seeds: Sequence[int]) -> Body:
        """A body that has these tensors."""
        if self.base:
            return PrecomputedFeatures(len(seeds), self.features(inputs, seeds))
        if self.name == "mlp":
            return MLP({name: tensors[name] for name in self.shapes(inputs, seeds)})
        skeleton = self._skeleton_for(inputs, seeds)
        learned = {name: tensors[name] for name in (*skeleton.parameters, *skeleton.statistics)}
        return ModuleBody(skeleton, learned, self.features(inputs, seeds), len(seeds))

    def _skeleton_for(self, inputs: Inputs, seeds: Sequence[int]) -> Skeleton:
        key = (inputs, tuple(seeds))
        if key not in self._skeletons:
            made = copy.deepcopy(self.modules(seeds)[0]).to(self.device) if self.users else self._meta(inputs)
            self._skeletons[key] = Skeleton(made, self.users)
        return self._skeletons[key]

    def start(self, seeds: Sequence[int]) -> str:
        """SHA-256 of a base's weights, or of those from which networks of a user's module start; none for our own."""
        if not self.users:
            return self.base.sha256 if self.base else ""
        named = {f"{k}/{n}": t for k, module in enumerate(self.modules(seeds)) for n, t in own_tensors(module).items()}
        return Leaf(named).sha256

    def probe(self, inputs: Inputs, seeds: Sequence[int]) -> list[float]:
        """A few numbers that a user's module gives at its start, by which a changed architecture is noticed."""
        if not self.users:
            return []
        source = torch.Generator().manual_seed(0)
        shape = (2, *inputs.shape)
        x = torch.zeros(shape, dtype=torch.int64) if inputs.integer else torch.rand(shape, generator=source)
        features = Network(self.body(inputs, seeds), {}, Pixels()).features(x.to(self.device))
        return [float(f"{value:.6g}") for value in features[:, :, :2].flatten()[:8].tolist()]

    def shapes(
        self, inputs: Inputs, seeds: Sequence[int], trained: bool = False
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The type and shape of every tensor of a body, or of those that are trained, without the replica axis."""
        if self.base:
            return {}
        if self.name == "mlp":
            sizes = [math.prod(inputs.shape), *self.settings.hidden]
            shapes: dict[str, tuple[int, ...]] = {}
            for i, (before, after) in enumerate(pairwise(sizes)):
                shapes |= {f"{i}.weight": (before, after), f"{i}.bias": (1, after)}
            return {name: ("F32", shape) for name, shape in shapes.items()}
        skeleton = self._skeleton_for(inputs, seeds)
        named = own_tensors(skeleton.module)
        names = skeleton.parameters if trained else (*skeleton.parameters, *skeleton.statistics)
        return {n: (CODES[named[n].dtype], tuple(named[n].shape)) for n in names}

    def _meta(self, inputs: Inputs) -> nn.Module:
        with torch.device("meta"):  # draws nothing, holds nothing
            return ResNet18(
                inputs.shape[0] if len(inputs.shape) == 3 else 1, self.settings.width, self.settings.mixed_precision
            )

    def head(self, features: int, classes: int, seeds: Sequence[int], task: str) -> Linear:
        """A fresh head for a task."""
        return Linear.fresh(features, classes, generators(seeds, task, "head"), self.device)

    def network(self, inputs: Inputs, seeds: Sequence[int], task: str | None = None) -> Network:
        """A fresh network without heads."""
        return Network(self.body(inputs, seeds, task), {}, self.pixels)

    def features(self, inputs: Inputs, seeds: Sequence[int]) -> int:
        """Return the number of features that a body gives for such inputs; `BadNetwork` if it cannot take them."""
        if self.base:  # they are the inputs
            return inputs.shape[0]
        if self.pixels.mean and (len(inputs.shape) != 3 or inputs.shape[0] != len(self.pixels.mean)):
            raise BadNetwork(
                f"mean and std are for images of {len(self.pixels.mean)} channels, got inputs of shape {inputs.shape}"
            )
        if self.users:
            if inputs not in self._features:
                dtype = torch.int64 if inputs.integer else torch.float32
                zeros = torch.zeros((2, *inputs.shape), dtype=dtype, device="cpu")
                self._features[inputs] = count_features(self.modules(seeds)[0], zeros)
            return self._features[inputs]
        if self.name == "mlp":
            return int(self.settings.hidden[-1])
        if len(inputs.shape) not in (2, 3):
            raise BadNetwork(
                "resnet18 takes images (channels, height, width) or (height, width), "
                f"got inputs of shape {inputs.shape}"
            )
        return int(8 * self.settings.width)


def count_features(module: nn.Module, x: Tensor) -> int:
    """The number of features that a module gives for inputs like these; `BadNetwork` if it gives anything else."""
    module = copy.deepcopy(module).cpu().eval()
    try:
        with torch.no_grad(), seeded(0, torch.device("cpu")):
            out = module(x)
    except Exception as error:
        raise BadNetwork(f"the module failed on inputs of shape {tuple(x.shape)}: {error}") from error
    return check_features(out, x)


def _made(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call a factory with torch seeded for a replica."""
    number = int(torch.randint(2**62, (), generator=generators([seed], None, "factory")[0], device="cpu"))
    try:
        with seeded(number, torch.device("cpu")):
            module = factory()
    except Exception as error:
        raise BadNetwork(f"the network's factory failed: {error}") from error
    if not isinstance(module, nn.Module):
        raise BadNetwork(f"a network's factory must return a torch.nn.Module, got {type(module).__name__}")
    return _own_copy(module)


def _with_one_base(modules: list[nn.Module]) -> list[nn.Module]:
    """Modules of several replicas, with one copy of what is frozen in them."""
    bases = [base_of(module) for module in modules]
    for base in bases[1:]:
        if base.keys() != bases[0].keys() or not all(torch.equal(t, bases[0][n]) for n, t in base.items()):
            raise BadNetwork(
                "the frozen parameters and buffers of a network must be the same for all replicas; "
                "load them, or draw them with a seed that the factory sets"
            )
        for name, tensor in base.items():
            tensor.data = bases[0][name].data
    return modules


def _own_copy(module: nn.Module) -> nn.Module:
    """The user's module as it is now; what the user does with it afterwards is the user's affair."""
    if any(is_lazy(p) for p in [*module.parameters(), *module.buffers()]):
        raise BadNetwork("the module has lazy layers; run it once on an example before handing it in")
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise BadNetwork(f"the module cannot be copied, which agents need: {error}") from error
