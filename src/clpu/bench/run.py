"""A benchmark from end to end: recipe, pieces, results, and going on where an earlier run stopped."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

import clpu
from clpu.agent import Agent
from clpu.bench import engine
from clpu.bench.pieces import Measured, Piece, TaskData, load
from clpu.bench.profiles import Profile
from clpu.data import load as load_data
from clpu.data import tasks as stream_tasks
from clpu.errors import BadData, BadRun, BadSetting
from clpu.metrics import jsd_matrix
from clpu.requests import Stream
from clpu.results import (
    DataUsed,
    Forget,
    Recipe,
    Result,
    alive_after,
    read_recipe,
    result_path,
    write_recipe,
    write_result,
)

#: Seeds of counterfactual runs begin here, so that the two groups are independent.
COUNTERFACTUAL_SEEDS = 1000


@dataclass(frozen=True)
class Plan:
    """What a benchmark will do: its recipe, its data, and the pieces of each method."""

    recipe: Recipe
    data: list[TaskData]
    pieces: dict[str, list[Piece]]


def plan(
    stream: str,
    profile: Profile,
    methods: Sequence[str],
    requests: str = "clpu-2022",
    seeds: int = 5,
    device: str = "cpu",
    command: str = "",
) -> Plan:
    """Check everything that can be checked before the first step, and say what there is to do."""
    if seeds < 1:
        raise BadSetting(f"seeds must be at least 1, got {seeds}")
    asked = Stream(requests)
    data, used = _read_data(stream, profile)
    unknown = [task for task in asked.tasks if task not in {d.name for d in data}]
    if unknown:
        names = ", ".join(d.name for d in data)
        raise BadSetting(f"the stream {stream} has tasks {names}; the requests name {', '.join(unknown)} too")
    actual, never = tuple(range(seeds)), tuple(range(COUNTERFACTUAL_SEEDS, COUNTERFACTUAL_SEEDS + seeds))
    settings, network = {}, {}
    for method in methods:
        options = profile.for_method(method, list(known_settings(method, profile.network)))
        if data[0].train_x.dim() == 4 and stream.endswith(("cifar10", "cifar100")):
            whole = load_data(stream.partition("-")[2])
            options = {"mean": whole.mean, "std": whole.std, **options}
        agent = Agent(method, profile.network, seeds=actual, device=device, **options)
        settings[method] = agent.settings
        network = {"name": profile.network}
    pieces = {
        method: list(_pieces(method, asked, actual, never, profile.network, settings[method], device))
        for method in methods
    }
    recipe = Recipe(
        stream=stream,
        requests=str(asked),
        profile=profile.name,
        methods=tuple(methods),
        seeds=actual,
        counterfactual_seeds=never,
        settings=settings,
        network=network,
        data=used,
        command=command,
        versions={
            "clpu": clpu.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        machine={"cpu": _cpu(), "cores": cores(), "os": platform.platform(terse=True), "device": device},
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    return Plan(recipe, data, pieces)


def known_settings(method: str, network: str) -> dict[str, Any]:
    """All settings that a method with a network has, with their defaults."""
    return Agent(method, network).settings


def _pieces(
    method: str, stream: Stream, actual: Sequence[int], never: Sequence[int], network: str, settings: Any, device: str
) -> Iterator[Piece]:
    # The MLP's replicas are stacked in one process; those of other networks are spread over processes.
    size = len(actual) if network == "mlp" else 1
    groups = [("actual", str(stream), actual, tuple(stream.forgets))]
    for text, last in _counterfactuals(stream).items():
        groups.append((f"never-{last}", text, never, (len(Stream(text)),)))
    for group, text, seeds, outputs in groups:
        for first in range(0, len(seeds), size):
            yield Piece(method, group, text, tuple(seeds[first : first + size]), network, settings, outputs, device)


def _counterfactuals(stream: Stream) -> dict[str, int]:
    """Each distinct counterfactual, and the last request that it belongs to."""
    return {str(stream.counterfactual(n)): n for n in stream.forgets}


def run(
    plan: Plan,
    folder: Path,
    workers: int = 1,
    listener: engine.Listener = lambda event: None,
    performer: Callable[..., dict[str, str]] = engine.run_pieces,
) -> dict[str, str]:
    """Do what is left of a plan; returns the reasons of the pieces that failed, by piece."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _run(plan, folder, workers, listener, performer)
    except Timeout:
        raise BadRun(f"another process is working in {folder}; wait for it or choose another --out") from None


def _run(
    plan: Plan, folder: Path, workers: int, listener: engine.Listener, performer: Callable[..., dict[str, str]]
) -> dict[str, str]:
    recipe = continued(plan.recipe, folder)
    write_recipe(folder, recipe)
    scratch = folder / "results" / "pieces"
    start, before = time.perf_counter(), recipe.seconds or 0.0
    left = [piece for method in plan.pieces for piece in unfinished(plan, folder, method)]
    state = {m: {p.name for p in unfinished(plan, folder, m)} for m in plan.pieces if not _has_result(folder, m)}

    def watch(event: engine.Event) -> None:
        listener(event)
        if event.kind == "done":
            method = event.piece.partition("--")[0]
            state[method].discard(event.piece)
            if not state[method]:
                _finish(plan, folder, method)
                write_recipe(folder, replace(recipe, seconds=before + time.perf_counter() - start))

    for method, names in state.items():
        if not names:  # all pieces were there, but not yet put together
            _finish(plan, folder, method)
    failures = performer(_in_order(left), plan.data, scratch, workers, watch) if left else {}
    if left:
        write_recipe(folder, replace(recipe, seconds=before + time.perf_counter() - start))
    tidy(scratch)
    return failures


def tidy(scratch: Path) -> None:
    """Remove the folder of pieces once none is left in it."""
    if scratch.is_dir() and {path.name for path in scratch.iterdir()} <= {engine.SHARED}:
        shutil.rmtree(scratch)


def _has_result(folder: Path, method: str) -> bool:
    return result_path(folder, method).is_file()


def unfinished(plan: Plan, folder: Path, method: str) -> list[Piece]:
    """The pieces of a method that are still to be done."""
    if _has_result(folder, method):
        return []
    scratch = folder / "results" / "pieces"
    return [piece for piece in plan.pieces[method] if not engine.file_of(scratch, piece).is_file()]


#: Rough cost of a request with each method, for the order of work and the time left: learn, keep, forget.
COSTS = {
    "ind": (1, 0, 0),
    "seq": (1, 0, 0),
    "ewc": (1.3, 0, 0),
    "er": (1.8, 0, 1),
    "lwf": (2.4, 0, 0),
    "lsf": (4.2, 0, 1),
    "der++": (1.8, 0, 1),
    "clpu-der++": (1.2, 2, 0),
    "clpu-der++-scratch": (1.2, 2, 0),
}


def request_costs(piece: Piece) -> list[float]:
    """The rough cost of each request of a piece; never nothing, so that every request moves the bar."""
    learn, keep, forget = COSTS.get(piece.method, (1.5, 1.5, 1))
    known: set[str] = set()
    costs = []
    for request in Stream(piece.requests):
        if request.instruction.value == "F":
            costs.append(forget + 0.02)
            known.discard(request.task)
        else:
            costs.append((keep if request.task in known else learn) + 0.02)
            known.add(request.task)
    return [cost * len(piece.seeds) for cost in costs]


def _in_order(pieces: list[Piece]) -> list[Piece]:
    """Method by method, so that a run that is stopped has whole results; the costliest first, so that none is last."""
    whole: dict[str, float] = {}
    for piece in pieces:
        whole[piece.method] = whole.get(piece.method, 0.0) + sum(request_costs(piece))
    return sorted(pieces, key=lambda piece: (-whole[piece.method], piece.method, -sum(request_costs(piece))))


def continued(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of the folder if this one goes on with it; `BadRun` with the differences if it does not."""
    if not (folder / "run.json").is_file():
        return recipe
    return joined(read_recipe(folder), recipe, folder)


def joined(before: Recipe, recipe: Recipe, folder: Path) -> Recipe:
    """An earlier recipe with the methods of a later one; `BadRun` with the differences if they do not agree."""
    differences = []
    for name in ("stream", "requests", "profile", "seeds", "counterfactual_seeds", "network", "data"):
        if getattr(before, name) != getattr(recipe, name):
            differences.append(f"{name}: {getattr(before, name)} there, {getattr(recipe, name)} now")
    for method in recipe.methods:
        then, now = before.settings.get(method, recipe.settings[method]), recipe.settings[method]
        for key in sorted({*then, *now}):
            if _plain(then.get(key)) != _plain(now.get(key)):
                differences.append(f"{method}.{key}: {then.get(key)} there, {now.get(key)} now")
    for name in ("clpu", "torch"):
        if before.versions.get(name) != recipe.versions.get(name):
            differences.append(f"version of {name}: {before.versions.get(name)} there, {recipe.versions.get(name)} now")
    if differences:
        listed = "\n  ".join(differences)
        raise BadRun(f"{folder} holds a run with other settings:\n  {listed}\nChoose another --out, or remove it.")
    methods = tuple(dict.fromkeys([*before.methods, *recipe.methods]))
    return replace(before, methods=methods, settings={**before.settings, **recipe.settings})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _finish(plan: Plan, folder: Path, method: str) -> None:
    """Put the pieces of a method together, write its results, and drop the outputs that they were made from."""
    scratch = folder / "results" / "pieces"
    measured = {piece.name: load(engine.file_of(scratch, piece), piece) for piece in plan.pieces[method]}
    write_result(folder, assemble(plan, method, measured))
    for piece in plan.pieces[method]:
        engine.file_of(scratch, piece).unlink()


def assemble(plan: Plan, method: str, measured: dict[str, Measured]) -> Result:
    """One method's results from the measurements of its pieces."""
    stream = Stream(plan.recipe.requests)
    groups: dict[str, list[Measured]] = {}
    streams: dict[str, str] = {}
    for piece in plan.pieces[method]:
        groups.setdefault(piece.group, []).append(measured[piece.name])
        streams[piece.requests] = piece.group
    actual = groups["actual"]
    forgets = []
    for number in stream.forgets:
        text = str(stream.counterfactual(number))
        never = groups[streams[text]]
        last = len(Stream(text))
        in_group, across = {}, {}
        for task in plan.data:
            runs = np.concatenate([m.outputs[number, task.name] for m in actual])
            others = np.concatenate([m.outputs[last, task.name] for m in never])
            in_group[task.name], across[task.name] = jsd_matrix(others), jsd_matrix(runs, others)
        forgets.append(
            Forget(
                request=number,
                task=stream[number - 1].task,
                counterfactual=text,
                counterfactual_accuracy=np.concatenate([m.accuracy[-1] for m in never], axis=-1),
                in_group=in_group,
                across=across,
            )
        )
    return Result(
        method=method,
        tasks=tuple(task.name for task in plan.data),
        requests=tuple(str(request) for request in stream),
        accuracy=np.concatenate([m.accuracy for m in actual], axis=-1),
        alive=tuple(tuple(names) for names in alive_after(stream)),
        bytes=tuple(actual[0].bytes),
        seconds=tuple(float(s) for s in np.sum([m.seconds for m in actual], axis=0)),
        forgets=tuple(forgets),
    )


def _read_data(stream: str, profile: Profile) -> tuple[list[TaskData], DataUsed]:
    """The tasks as tensors, thinned out evenly if the profile asks for fewer images."""
    made = []
    for task in stream_tasks(stream, tasks=profile.tasks):
        train = _some(len(task.train), profile.train)
        test = _some(len(task.test), profile.test)
        present = set(np.unique(task.train.y[train]).tolist())
        if present != set(task.classes):
            raise BadData(f"train={profile.train} is too few: task {task.name} has {len(task.classes)} classes")
        arrays = (task.train.x[train], task.train.y[train], task.test.x[test], task.test.y[test])
        x, y, test_x, test_y = (torch.from_numpy(np.array(a)) for a in arrays)
        made.append(TaskData(task.name, x, y, test_x, test_y, task.classes))
    name = stream.partition("-")[2]
    used = DataUsed(
        name=name,
        sha256=load_data(name).sha256,
        tasks=len(made),
        train=len(made[0].train_y),
        test=len(made[0].test_y),
        classes=tuple(len(task.classes) for task in made),
        seed=0,
    )
    return made, used


def _some(count: int, wanted: int | None) -> Any:
    if wanted is None or wanted >= count:
        return slice(None)
    return np.linspace(0, count - 1, wanted).round().astype(np.int64)


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command as a person would type it."""
    return shlex.join(["clpu", *(sys.argv[1:] if arguments is None else arguments)])


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def check_methods(methods: Sequence[str]) -> list[str]:
    """Names of methods, or `all`, checked and without repetition."""
    from clpu.methods import METHODS

    chosen: list[str] = []
    for name in methods:
        if name != "all" and name not in METHODS:
            raise BadSetting(f"there is no method {name!r}; known: {', '.join(METHODS)}, or all")
        chosen += list(METHODS) if name == "all" else [name]
    return list(dict.fromkeys(chosen))
