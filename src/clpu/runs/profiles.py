"""Profiles, the size of a benchmark: the paper's settings, a size for two CPU cores, a size for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clpu.errors import BadSetting
from clpu.methods import METHODS
from clpu.settings import parse_value, refuse_unknown

PROFILES = ("paper", "medium", "small", "smoke")
#: The values of "auto" in benchmarks, unless a profile has its own: the paper's values for MNIST.
PAPER: Mapping[str, Any] = {
    "epochs": 10,
    "batch_size": 32,
    "lr": 0.01,
    "weight_decay": 0.0005,
    "scaling": "none",
}


@dataclass(frozen=True)
class Profile:
    """Settings for all methods, for single methods, of the network, how much of the data is used, and how many seeds.

    `overrides` are the assignments that changed it.
    """

    name: str
    network: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    of_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    train: int | None = None
    test: int | None = None
    tasks: int = 5
    seeds: int = 5
    overrides: tuple[str, ...] = ()

    def for_method(self, method: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of one method, of those that it and the network know, where they have these defaults."""
        paper = {k: v for k, v in PAPER.items() if defaults.get(k) == "auto"}
        return {k: v for k, v in {**paper, **self.settings, **self.of_method.get(method, {})}.items() if k in defaults}


def _presets(data: str, profile: str) -> dict[str, dict[str, Any]]:
    """Return the settings that methods declare for some data and a profile."""
    return {
        name: {**method.presets.get(data, {}), **method.presets.get(f"{data} {profile}", {})}
        for name, method in METHODS.items()
    }


def profile(stream: str, name: str) -> Profile:
    """The profile of that name for a stream of tasks.

    >>> profile("perm-mnist", "paper").settings["epochs"]
    10
    """
    if name not in PROFILES:
        raise BadSetting(f"profile must be one of {', '.join(PROFILES)}, got {name!r:.40}")
    data = stream.partition("-")[2]
    # A short run needs what a small one does: with the paper's strengths, EWC and LSF diverge.
    of_method = _presets(data, "small" if name == "smoke" else name)
    if data in ("cifar10", "cifar100"):
        images = {"augment": "crop-flip"}
        if name == "paper":
            return Profile(name, "resnet18", {"epochs": 10, "width": 64, **images}, of_method)
        if name == "medium":
            # The paper's settings with a narrower network, which on a CPU takes a sixth of the time.
            medium = {"epochs": 10, "width": 20, "mixed_precision": "auto", **images}
            return Profile(name, "resnet18", medium, of_method, seeds=3)
        if name == "small":
            # One pass over a task; with a third of it LwF and LSF are not above Seq yet.
            return Profile(name, "resnet18", {"epochs": 1, "width": 8, "lr": 0.05, **images}, of_method, test=400)
        settings = {"epochs": 1, "width": 1, **images}
        if data == "cifar100":  # a task has twenty classes, and needs images of each
            return Profile(name, "resnet18", settings, of_method, train=160, test=100, seeds=2)
        return Profile(name, "resnet18", settings, of_method, train=64, test=40)
    if name == "medium":
        raise BadSetting(f"the profile medium exists for cifar10 and cifar100; {data} has paper, small and smoke")
    if data == "digits":
        # 1,442 images: the paper's ten passes at its learning rate would be 460 timid steps.
        settings = {"epochs": 10, "lr": 0.1}
        if name == "smoke":
            return Profile(name, "mlp", {**settings, "epochs": 1, "hidden": (16,)}, of_method, train=200, test=100)
        return Profile(name, "mlp", settings, of_method)
    if name == "paper":
        return Profile(name, "mlp", {"epochs": 10}, of_method)
    if name == "small":
        # A tenth of the paper's steps; at five times its rate they come far enough for its order of methods.
        return Profile(name, "mlp", {"epochs": 10, "lr": 0.05}, of_method, train=6_000, test=1_000)
    return Profile(name, "mlp", {"epochs": 1, "hidden": (16,)}, of_method, train=320, test=100)


def with_overrides(base: Profile, assignments: Sequence[str], known: Mapping[str, Sequence[str]]) -> Profile:
    """A profile changed by `key=value` or `method.key=value`; `known` are the settings that each method has.

    >>> with_overrides(profile("rot-digits", "small"), ["lr=0.2"], {"er": ["lr", "memory"]}).settings["lr"]
    0.2
    """
    everything = {key for keys in known.values() for key in keys}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key or not text or not assignment.isprintable():
            raise BadSetting(f"--set takes key=value or method.key=value, got {assignment!r:.80}")
        value = parse_value(text)
        base = replace(base, overrides=(*base.overrides, assignment))
        if key == "network":
            base = replace(base, network=text)
            continue
        if key in ("train", "test", "tasks"):
            if type(value) is not int or value < 1:
                raise BadSetting(f"{key} must be a positive integer, got {text!r:.40}")
            changed: dict[str, Any] = {key: value}
            base = replace(base, **changed)
            continue
        method, dot, inner = key.rpartition(".")
        if dot:
            if method not in known:
                raise BadSetting(f"there is no method {method!r:.40} in this run; its methods: {', '.join(known)}")
            refuse_unknown({inner: 0}, dict.fromkeys(known[method]))
            base = replace(base, of_method={**base.of_method, method: {**base.of_method.get(method, {}), inner: value}})
        else:
            refuse_unknown({key: 0}, dict.fromkeys([*everything, "network", "train", "test", "tasks"]))
            of_method = {m: {k: v for k, v in s.items() if k != key} for m, s in base.of_method.items()}
            base = replace(base, settings={**base.settings, key: value}, of_method=of_method)
    return base
