"""How to build a network of the kind that an agent was asked for."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from clpu.errors import BadNetwork, BadSetting
from clpu.networks.body import Body
from clpu.networks.descent import Linear
from clpu.networks.looped import Looped, check_features, own_tensors
from clpu.networks.mlp import MLP, fresh_linear
from clpu.networks.network import Network, Pixels
from clpu.networks.precision import bfloat16_is_fast
from clpu.networks.resnet import ResNet18
from clpu.randomness import generators
from clpu.settings import make, setting


@dataclass(frozen=True)
class PixelSettings:
    mean: tuple[float, ...] = setting((), "mean of each channel, for images of bytes scaled to 0 … 1")
    std: tuple[float, ...] = setting((), "standard deviation of each channel")


@dataclass(frozen=True)
class MLPSettings(PixelSettings):
    hidden: tuple[int, ...] = setting((100, 100), "units of the hidden layers")


@dataclass(frozen=True)
class ResNetSettings(PixelSettings):
    width: int = setting(64, "filters of the first stage", at_least=1)
    mixed: bool = setting(
        False, "convolutions in bfloat16, the rest in float32; auto: if the device multiplies in it", auto=True
    )


@dataclass(frozen=True)
class Inputs:
    """What one input looks like. Whole numbers (tokens) reach a user's module as they are."""

    shape: tuple[int, ...]
    integer: bool = False


NETWORKS: dict[str, type] = {"mlp": MLPSettings, "resnet18": ResNetSettings}


class Blueprint:
    """Builds fresh bodies and heads; the same (seed, task) always gives the same numbers."""

    def __init__(self, network: str | nn.Module, options: Mapping[str, Any], device: torch.device) -> None:
        # Decided once: a saved agent computes in the same way wherever it is opened.
        self.settings: Any = make(
            self.settings_class(network), options, auto={"mixed": lambda: bfloat16_is_fast(device)}
        )
        self.name = network if isinstance(network, str) else "module"
        self.module = None if isinstance(network, str) else _own_copy(network)
        self.pixels = Pixels(self.settings.mean, self.settings.std)
        if len(self.pixels.mean) != len(self.pixels.std) or any(s <= 0 for s in self.pixels.std):
            raise BadSetting(f"mean and std must have one number a channel, std above 0, got {self.pixels}")
        self.device = device
        self._probed: dict[Inputs, int] = {}

    @staticmethod
    def settings_class(network: object) -> type:
        """The settings that a network has."""
        if isinstance(network, nn.Module):
            return PixelSettings
        if isinstance(network, str) and network in NETWORKS:
            return NETWORKS[network]
        raise BadNetwork(
            f"network must be one of {', '.join(NETWORKS)} or a torch.nn.Module that maps inputs to features, "
            f"got {network!r:.80}"
        )

    def body(self, inputs: Inputs, seeds: Sequence[int], task: str | None = None) -> Body:
        """A fresh body a replica: the main one, or the one of a task. A user's module starts as the user made it."""
        features = self.features(inputs)
        if self.module is not None:
            return Looped.of(self.module, len(seeds), features, self.device)
        sources = generators(seeds, task, "body")
        if self.name == "mlp":
            return MLP.fresh(inputs.shape, self.settings.hidden, sources, self.device)
        return Looped.fresh(self._skeleton(inputs), features, sources, self.device)

    def start(self) -> str:
        """A checksum of the weights from which networks of a user's module start; nothing for our own."""
        if self.module is None:
            return ""
        sha = hashlib.sha256()
        for name, tensor in sorted(own_tensors(self.module).items()):
            sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()

    def shapes(self, inputs: Inputs, trained: bool = False) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The type and shape of every tensor of a body, or of those that are trained, without making any.

        The replica axis is left out.
        """
        if self.name == "mlp":
            sizes = [math.prod(inputs.shape), *self.settings.hidden]
            shapes: dict[str, tuple[int, ...]] = {}
            for i, (before, after) in enumerate(pairwise(sizes)):
                shapes |= {f"{i}.weight": (before, after), f"{i}.bias": (1, after)}
            return {name: (torch.float32, shape) for name, shape in shapes.items()}
        module = self.module if self.module is not None else self._skeleton(inputs)
        named = {n: p for n, p in module.named_parameters() if p.requires_grad} if trained else own_tensors(module)
        return {name: (t.dtype, tuple(t.shape)) for name, t in named.items()}

    def _skeleton(self, inputs: Inputs) -> nn.Module:
        with torch.device("meta"):  # draws nothing, holds nothing
            return ResNet18(inputs.shape[0] if len(inputs.shape) == 3 else 1, self.settings.width, self.settings.mixed)

    def head(self, features: int, classes: int, seeds: Sequence[int], task: str) -> Linear:
        """A fresh head a replica for a task."""
        return fresh_linear(features, classes, generators(seeds, task, "head"), self.device)

    def network(self, inputs: Inputs, seeds: Sequence[int], task: str | None = None) -> Network:
        """A fresh network without heads."""
        return Network(self.body(inputs, seeds, task), {}, self.pixels)

    def features(self, inputs: Inputs) -> int:
        """How many features a body gives for such inputs; `BadNetwork` if it cannot take them."""
        if self.pixels.mean and (len(inputs.shape) != 3 or inputs.shape[0] != len(self.pixels.mean)):
            raise BadNetwork(
                f"mean and std are for images of {len(self.pixels.mean)} channels, got inputs of shape {inputs.shape}"
            )
        if self.module is not None:
            if inputs not in self._probed:
                dtype = torch.int64 if inputs.integer else torch.float32
                self._probed[inputs] = probe(self.module, torch.zeros((2, *inputs.shape), dtype=dtype, device="cpu"))
            return self._probed[inputs]
        if self.name == "mlp":
            return int(self.settings.hidden[-1])
        if len(inputs.shape) not in (2, 3):
            raise BadNetwork(
                "resnet18 takes images (channels, height, width) or (height, width), "
                f"got inputs of shape {inputs.shape}"
            )
        return int(8 * self.settings.width)


def probe(module: nn.Module, x: Tensor) -> int:
    """The number of features that a module gives for inputs like these; `BadNetwork` if it gives anything else."""
    module = copy.deepcopy(module).cpu().eval()
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            out = module(x)
    except Exception as error:
        raise BadNetwork(f"the module failed on inputs of shape {tuple(x.shape)}: {error}") from error
    finally:
        torch.set_rng_state(state)
    return check_features(out, x)


def _own_copy(module: nn.Module) -> nn.Module:
    """The user's module as it is now; what the user does with it afterwards is the user's affair."""
    if any(is_lazy(p) for p in [*module.parameters(), *module.buffers()]):
        raise BadNetwork("the module has lazy layers; run it once on an example before handing it in")
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise BadNetwork(f"the module cannot be copied, which agents need: {error}") from error
