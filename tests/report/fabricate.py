"""Run folders that look like those of a benchmark, made quickly from random outputs of known structure.

Each method has a character: how well it learns, how fast it loses a task, how much replicas differ, what is left of a
forgotten task.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from clpu import jsonfile, metrics
from clpu.methods import METHODS, label_of
from clpu.requests import Stream
from clpu.results import ForgetResult, Result, alive_after, result_path
from clpu.runs.recipe import DataUsed, MethodAbout, Recipe


@dataclass(frozen=True)
class Character:
    learns: float
    loses: float
    spread: float
    leak: float
    kilobytes: tuple[float, float]  # always, and for every active task


CHARACTERS = {
    "ind": Character(0.956, 0.0, 0.35, 0.0, (0, 390)),
    "seq": Character(0.955, 0.10, 1.6, 3.5, (390, 4)),
    "ewc": Character(0.94, 0.003, 0.7, 2.6, (390, 780)),
    "er": Character(0.955, 0.02, 1.2, 2.9, (390, 160)),
    "lwf": Character(0.955, 0.08, 1.0, 3.2, (780, 4)),
    "lsf": Character(0.915, 0.003, 0.9, 2.1, (780, 810)),
    "der++": Character(0.957, 0.01, 0.95, 2.6, (390, 168)),
    "clpu-der++-scratch": Character(0.954, 0.013, 1.15, 0.0, (390, 250)),
    "clpu-der++": Character(0.955, 0.012, 1.15, 0.0, (390, 252)),
}


def about(method):
    cls = METHODS[method]
    return MethodAbout(label_of(method), cls.forgets, cls.upper_bound, list(METHODS).index(method))


def recipe(benchmark="perm-mnist", requests="1R 2T 3T 4R 2R 3F 5T 5F", methods=tuple(CHARACTERS), seeds=5, **changes):
    tasks = max(5, len(Stream(requests).tasks))
    classes = {"split-cifar10": 2, "split-cifar100": 20}.get(benchmark, 10)
    values = Recipe(
        benchmark=benchmark,
        requests=requests,
        profile="paper",
        methods=tuple(methods),
        seeds=tuple(range(seeds)),
        counterfactual_seeds=tuple(range(1000, 1000 + seeds)),
        settings={m: {"epochs": 10, "batch_size": 32, "lr": 0.01, "weight_decay": 0.0005} for m in methods},
        network={"name": "mlp", "widths": [784, 100, 100]},
        data=DataUsed(benchmark.split("-")[-1], "ab" * 32, tasks, 60000, 10000, (classes,) * tasks, 0),
        command=f"clpu bench {benchmark} --profile paper --seeds {seeds}",
        versions={"clpu": "0.1.0", "numpy": "2.0.0", "python": "3.11.7", "torch": "2.13.0"},
        machine={"cpu": "a CPU", "cores": 2, "os": "Linux"},
        started="2026-11-16T04:00:00+00:00",
        seconds=1234.5,
        methods_about={m: about(m) for m in methods if m in METHODS},
    )
    return replace(values, **changes)


def result(run: Recipe, method: str, images: int = 40) -> Result:
    character = CHARACTERS.get(method, CHARACTERS["er"])
    rng = np.random.default_rng(zlib.crc32(f"{run.benchmark} {method} {run.settings[method]}".encode()))
    stream = Stream(run.requests)
    names = [str(n) for n in range(1, run.data.tasks + 1)]
    if not set(stream.tasks) <= set(names):
        names = (stream.tasks + names)[: run.data.tasks]
    alive = alive_after(stream)
    return Result(
        method=method,
        tasks=tuple(names),
        requests=tuple(str(request) for request in stream),
        accuracy=_accuracies(run, character, stream, names, alive, rng),
        alive=tuple(map(tuple, alive)),
        bytes=tuple(int(1024 * (character.kilobytes[0] + character.kilobytes[1] * len(now))) for now in alive),
        seconds=tuple(float(s) for s in rng.uniform(5, 20, len(stream)).round(3)),
        forgets=tuple(_forget(run, character, stream, names, number, images, rng) for number in stream.forgets),
        class_incremental=tuple((character.learns - 0.2 - 0.01 * np.arange(len(run.seeds)) % 0.1).tolist())
        if run.benchmark.startswith("split-")
        else (),
    )


def _accuracies(run, character, stream, names, alive, rng):
    seeds = len(run.seeds)
    chance = 1 / np.array(run.data.classes)
    accuracy = np.empty((len(stream), len(names), seeds))
    level = np.tile(chance[:, None], (1, seeds)) + rng.normal(0, 0.01, (len(names), seeds))
    for number, now in enumerate(alive):
        before = alive[number - 1] if number else []
        for index, name in enumerate(names):
            if name in now and name not in before:
                level[index] = character.learns + rng.normal(0, 0.002, seeds)
            elif name in now:
                level[index] -= character.loses * rng.uniform(0.5, 1.5, seeds)
            elif name in before:
                remains = 0.6 if character.leak else 0
                level[index] = chance[index] + remains * (level[index] - chance[index]) + rng.normal(0, 0.02, seeds)
        accuracy[number] = level.clip(0, 1)
    return accuracy


def _forget(run, character, stream, names, number, images, rng):
    seeds, never = len(run.seeds), len(run.counterfactual_seeds)
    counterfactual = stream.counterfactual(number)
    in_group, across = {}, {}
    for index, name in enumerate(names):
        classes = run.data.classes[index]
        base = rng.normal(0, 1.0, (images, classes))
        noise = rng.normal(0, character.spread, (seeds + never, images, classes))
        noise *= rng.uniform(0.8, 1.2, (seeds + never, 1, 1))
        trace = np.zeros((images, classes))
        if name == stream[number - 1].task:
            trace[np.arange(images), rng.integers(0, classes, images)] = 3 * character.leak
        in_group[name] = metrics.jsd_matrix(base + noise[seeds:])
        across[name] = metrics.jsd_matrix(base + trace + noise[:seeds], base + noise[seeds:])
    known = np.array([name in counterfactual.tasks for name in names])
    chance = 1 / np.array(run.data.classes)
    accuracy = np.where(known, character.learns, chance)[:, None] + rng.normal(0, 0.01, (len(names), never))
    task = stream[number - 1].task
    return ForgetResult(number, task, str(counterfactual), accuracy.clip(0, 1), in_group, across)


def run_folder(folder: Path, without=(), **changes) -> Path:
    """Write a run folder; `without` names methods whose results are left out, as in a run that was killed."""
    made = recipe(**changes)
    jsonfile.write(folder / "run.json", made)
    for method in made.methods:
        if method not in without:
            jsonfile.write(result_path(folder, method), result(made, method))
    return folder
