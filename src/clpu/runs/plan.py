"""The recipe and the data of a run, all checked before the first step."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import clpu
from clpu import auto, machine
from clpu.agent import Agent
from clpu.bases.base import OneAtATime
from clpu.data import load as load_data
from clpu.data import tasks as benchmark_tasks
from clpu.errors import BadData, BadSetting
from clpu.methods import METHODS, label_of
from clpu.methods.plugins import CHECKSUMS
from clpu.networks.blueprint import Blueprint
from clpu.requests import Stream
from clpu.runs.jobs import TaskData
from clpu.runs.profiles import Profile, with_overrides
from clpu.runs.recipe import DataUsed, MethodAbout, Recipe
from clpu.settings import setting_fields

#: Seeds of the counterfactual group begin here, so that the two groups are independent.
COUNTERFACTUAL_SEEDS = 1000


def prepare(
    benchmark: str,
    profile: Profile,
    methods: Sequence[str],
    requests: str = "clpu-2022",
    seeds: int = 5,
    device: str = "cpu",
    command: str = "",
    also: Sequence[str] = (),
    threads: int = 1,
    features: Callable[[int, int], None] | None = None,
) -> tuple[Recipe, list[TaskData]]:
    """The recipe and the data of a run; everything that can be checked before the first step is checked.

    `also` are methods of the same run that are not asked for now; the recipe gets their settings too. `features` is
    told how many of a base's features are computed, if they are not cached yet: that takes minutes.
    """
    if not 1 <= seeds <= COUNTERFACTUAL_SEEDS:
        raise BadSetting(f"seeds must be 1 to {COUNTERFACTUAL_SEEDS}, got {seeds}")
    asked = Stream(requests)
    if not len(asked):
        raise BadSetting("there are no requests; expected something like '1R 2T 2F'")
    data, used = _read_data(benchmark, profile)
    keep_features(profile.network, used.name, profile.settings, features)
    unknown = [task for task in asked.tasks if task not in {d.name for d in data}]
    if unknown:
        names = ", ".join(d.name for d in data)
        hint = "" if "," not in requests else " (requests are separated by spaces)"
        raise BadSetting(
            f"the benchmark {benchmark} has tasks {names}; the requests also name {', '.join(unknown)}{hint}"
        )
    actual, never = tuple(range(seeds)), tuple(range(COUNTERFACTUAL_SEEDS, COUNTERFACTUAL_SEEDS + seeds))
    everyone = list(dict.fromkeys([*methods, *also]))
    if len({method.lower() for method in everyone}) < len(everyone):  # some disks take er.json and ER.json for one
        raise BadSetting(f"names of methods must differ in more than upper and lower case: {', '.join(everyone)}")
    settings = {}
    for method in everyone:
        asked.check(METHODS[method].forgets)
        options = profile.for_method(method, known_settings(method, profile.network))
        if profile.network.startswith("base:"):
            options = {**options, "augment": "none"} if "augment" in options else options
        elif data[0].train_x.dim() == 4 and benchmark.endswith(("cifar10", "cifar100")):
            whole = load_data(benchmark.partition("-")[2])
            options = {"mean": whole.mean, "std": whole.std, **options}
        agent = Agent(method, profile.network, seeds=actual, device=device, threads=threads, **options)
        found = auto.resolved(agent.settings, len(data[0].train_y), data[0].train_x[0].numel(), profile.network)
        settings[method] = {**agent.settings, **found}
    recipe = Recipe(
        benchmark=benchmark,
        requests=str(asked),
        profile=profile.name,
        methods=tuple(methods),
        seeds=actual,
        counterfactual_seeds=never,
        settings=settings,
        network={"name": profile.network},
        data=used,
        command=command,
        versions={
            "clpu": clpu.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            # What rotates images.
            **({"pillow": machine.installed("pillow")} if benchmark.startswith("rot-") else {}),
            # Methods and the network, where they come from a user's file: the file's checksum.
            **{
                f"{name} (SHA-256)": CHECKSUMS[name]
                for name in [*settings, f"network {profile.network}"]
                if name in CHECKSUMS
            },
        },
        machine={
            "cpu": machine.cpu(),
            "cores": cores(),
            "os": platform.platform(terse=True),
            "device": device,
            "threads": threads,
        },
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        overrides=profile.overrides,
        methods_about={method: _about(method) for method in everyone},
    )
    return recipe, data


def keep_features(
    network: str,
    dataset: str,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Compute a base's features of public images once, for all jobs, with those of these settings that it has."""
    if network.startswith("base:"):
        known = setting_fields(Blueprint.settings_class(network))
        given = {name: value for name, value in (settings or {}).items() if name in known}
        base = Blueprint(network, given, torch.device("cpu")).base
        if isinstance(base, OneAtATime) and base.key:
            base.keep_public(dataset, progress)


def _about(method: str) -> MethodAbout:
    """Describe a method for tables, so that a report does not need its class."""
    cls = METHODS[method]
    return MethodAbout(label_of(method), cls.forgets, cls.upper_bound, list(METHODS).index(method))


def with_settings(base: Profile, overrides: Sequence[str], methods: Sequence[str]) -> Profile:
    """A profile with the assignments of `--set`, all checked, for a run of these methods."""
    networks = [text.partition("=")[2] for text in overrides if text.startswith("network=")]
    network = networks[-1] if networks else base.network
    defaults = {method: known_settings(method, network) for method in methods}
    known = {method: list(settings) for method, settings in defaults.items()}

    def effect(texts: Sequence[str]) -> tuple[Any, ...]:
        made = with_overrides(base, texts, known)
        settings = {m: {**defaults[m], **made.for_method(m, defaults[m])} for m in methods}
        return made.network, made.train, made.test, made.tasks, settings

    changes = list(overrides)
    for text in overrides:  # what changes nothing is not recorded as a change
        rest = [other for other in changes if other != text]
        changes = rest if effect(rest) == effect(changes) else changes
    return replace(with_overrides(base, overrides, known), overrides=tuple(changes))


def known_settings(method: str, network: str) -> dict[str, Any]:
    """All settings that a method with a network has, with their defaults."""
    return Agent(method, network).settings


def counterfactuals(stream: Stream, after: Sequence[int] | None = None) -> dict[str, list[int]]:
    """Each distinct counterfactual, and the requests that it belongs to; by default those that forget.

    >>> counterfactuals(Stream("1R 2T 3T 4R 2R 3F 5T 5F"))
    {'1R 2T 4R 2R': [6, 8]}
    """
    made: dict[str, list[int]] = {}
    for number in stream.forgets if after is None else after:
        made.setdefault(str(stream.counterfactual(number)), []).append(number)
    return made


def _read_data(benchmark: str, profile: Profile) -> tuple[list[TaskData], DataUsed]:
    """The tasks as tensors, thinned out evenly if the profile asks for fewer images."""
    made = []
    for task in benchmark_tasks(benchmark, tasks=profile.tasks):
        train = _some(len(task.train), profile.train)
        test = _some(len(task.test), profile.test)
        present = set(np.unique(task.train.y[train]).tolist())
        if present != set(task.classes):
            raise BadData(f"train={profile.train} is too few: task {task.name} has {len(task.classes)} classes")
        arrays = (task.train.x[train], task.train.y[train], task.test.x[test], task.test.y[test])
        x, y, test_x, test_y = (torch.from_numpy(np.array(a)) for a in arrays)
        made.append(TaskData(task.name, x, y, test_x, test_y, task.classes))
    name = benchmark.partition("-")[2]
    used = DataUsed(
        name=name,
        sha256=load_data(name).sha256,
        tasks=len(made),
        train=len(made[0].train_y),
        test=len(made[0].test_y),
        classes=tuple(len(task.classes) for task in made),
        seed=0,
        tasks_sha256=checksum(made),
    )
    return made, used


def checksum(data: Sequence[TaskData]) -> str:
    """SHA-256 of tasks as they are used: names, types, shapes and numbers."""
    total = hashlib.sha256()
    for task in data:
        for array in (task.train_x, task.train_y, task.test_x, task.test_y):
            total.update(f"{task.name} {array.dtype} {tuple(array.shape)}".encode())
            total.update(array.contiguous().numpy().data)
    return total.hexdigest()


def _some(count: int, wanted: int | None) -> Any:
    if wanted is None or wanted >= count:
        return slice(None)
    return np.linspace(0, count - 1, wanted).round().astype(np.int64)


def check_methods(methods: Sequence[str]) -> list[str]:
    """Names of methods, or `all` for those that train networks, checked and without repetition."""
    chosen: list[str] = []
    for name in methods:
        if name != "all" and name not in METHODS:
            raise BadSetting(f"there is no method {name!r}; known: {', '.join(METHODS)}, or all")
        chosen += [m for m, cls in METHODS.items() if cls.takes("mlp")] if name == "all" else [name]
    if not chosen:
        raise BadSetting(f"--methods names no method; known: {', '.join(METHODS)}, or all")
    return list(dict.fromkeys(chosen))


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command as a person would type it, in characters that can be printed."""
    words = shlex.join(["clpu", *(sys.argv[1:] if arguments is None else arguments)])
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
