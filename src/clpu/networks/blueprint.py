"""How to build a network of the kind that an agent was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clpu.errors import BadNetwork, BadSetting
from clpu.networks.body import Body
from clpu.networks.descent import Linear
from clpu.networks.looped import Looped
from clpu.networks.mlp import MLP, fresh_linear
from clpu.networks.network import Network, Pixels
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


@dataclass(frozen=True)
class Inputs:
    """What one input looks like. Whole numbers (tokens) reach a user's module as they are."""

    shape: tuple[int, ...]
    integer: bool = False


NETWORKS: dict[str, type] = {"mlp": MLPSettings, "resnet18": ResNetSettings}


class Blueprint:
    """Builds fresh bodies and heads; the same (seed, task) always gives the same numbers."""

    def __init__(self, network: str | nn.Module, options: Mapping[str, Any], device: torch.device) -> None:
        if isinstance(network, nn.Module):
            self.name = "module"
            self.module: nn.Module | None = network
            self.settings: Any = make(PixelSettings, options)
        elif isinstance(network, str) and network in NETWORKS:
            self.name, self.module = network, None
            self.settings = make(NETWORKS[network], options)
        else:
            raise BadNetwork(
                f"network must be one of {', '.join(NETWORKS)} or a torch.nn.Module that maps inputs to features, "
                f"got {network!r:.80}"
            )
        self.pixels = Pixels(self.settings.mean, self.settings.std)
        if len(self.pixels.mean) != len(self.pixels.std) or any(s <= 0 for s in self.pixels.std):
            raise BadSetting(f"mean and std must have one number a channel, std above 0, got {self.pixels}")
        self.device = device
        self._probed: dict[Inputs, int] = {}

    @staticmethod
    def settings_class(network: object) -> type:
        """The settings that a network has; none for a user's own module."""
        return NETWORKS.get(network, PixelSettings) if isinstance(network, str) else PixelSettings

    def body(self, inputs: Inputs, seeds: Sequence[int], task: str | None = None) -> Body:
        """A fresh body a replica: the main one, or the one of a task. A user's module starts as the user made it."""
        features = self.features(inputs)
        if self.module is not None:
            return Looped.of(self.module, len(seeds), features, self.device)
        sources = generators(seeds, task, "body")
        if self.name == "mlp":
            return MLP.fresh(inputs.shape, self.settings.hidden, sources, self.device)
        with torch.device("meta"):  # a skeleton: draws nothing, holds nothing
            skeleton = ResNet18(inputs.shape[0] if len(inputs.shape) == 3 else 1, self.settings.width)
        return Looped.fresh(skeleton, features, sources, self.device)

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
                self._probed[inputs] = probe(self.module, torch.zeros((2, *inputs.shape), dtype=dtype))
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
    was_training = module.training
    try:
        module.eval()
        with torch.no_grad():
            out = module(x)
    except Exception as error:
        raise BadNetwork(f"the module failed on inputs of shape {tuple(x.shape)}: {error}") from error
    finally:
        module.train(was_training)
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.dim() != 2 or out.shape[0] != len(x):
        got = f"shape {tuple(out.shape)}, {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise BadNetwork(
            f"the module must return one row of features an input, a float tensor of shape ({len(x)}, features), "
            f"got {got} for inputs of shape {tuple(x.shape)}"
        )
    return int(out.shape[1])
