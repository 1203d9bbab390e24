"""What a benchmark leaves behind: `run.json`, the recipe, and `results/<method>.json`, what each method did.

The two files are all that metrics, tables and pages are made from. Both are JSON of one canonical form, written
whole or not at all, and checked when read: they may come from another machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu import jsonfile
from clpu.errors import BadRun, Error
from clpu.jsonfile import Fields
from clpu.recipe import DataUsed, Recipe, check_method
from clpu.requests import Instruction, Stream

__all__ = [
    "DataUsed",
    "Forget",
    "Recipe",
    "Result",
    "Run",
    "alive_after",
    "read_method",
    "read_recipe",
    "read_result",
    "read_run",
    "result_path",
    "write_recipe",
    "write_result",
]

# JSD of float32 outputs may exceed its bounds by a rounding error.
_SLACK = 1e-6


@dataclass(frozen=True, eq=False)
class Forget:
    """One forget: what the actual runs say of every task right after it, beside runs of the counterfactual.

    `request` counts from 1; `counterfactual_accuracy[task, seed]`; `in_group[task]` is the `jsd_matrix` of the
    counterfactual runs, `across[task]` that of actual runs (rows) with counterfactual ones (columns).
    """

    request: int
    task: str
    counterfactual: str
    counterfactual_accuracy: NDArray[np.float64]
    in_group: Mapping[str, NDArray[np.float64]]
    across: Mapping[str, NDArray[np.float64]]

    def __post_init__(self) -> None:
        where = f"forget at request {self.request}"
        accuracy = _array(self.counterfactual_accuracy, 2, f"{where}: counterfactual_accuracy", high=1)
        seeds = accuracy.shape[1]
        groups = {}
        for name, side in (("in_group", self.in_group), ("across", self.across)):
            groups[name] = {
                t: _array(m, 2, f"{where}: {name} of task {t!r}", high=math.log(2)) for t, m in side.items()
            }
            for task, matrix in groups[name].items():
                if matrix.shape[1] != seeds or (name == "in_group" and matrix.shape[0] != seeds):
                    raise BadRun(f"{where}: {name} of task {task!r} has shape {matrix.shape} for {seeds} seeds")
        for task, matrix in groups["in_group"].items():
            if not np.array_equal(matrix, matrix.T) or np.diag(matrix).any():
                raise BadRun(f"{where}: in_group of task {task!r} is not symmetric with a diagonal of zeros")
        object.__setattr__(self, "counterfactual_accuracy", accuracy)
        object.__setattr__(self, "in_group", groups["in_group"])
        object.__setattr__(self, "across", groups["across"])

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "in_group": {"tasks": dict(self.in_group)}, "across": {"tasks": dict(self.across)}}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Forget:
        top = Fields(value, where)
        return cls(
            request=top.integer("request"),
            task=top.text("task"),
            counterfactual=top.text("counterfactual"),
            counterfactual_accuracy=top.array("counterfactual_accuracy"),
            in_group={t: top.fields("in_group").fields("tasks").array(t) for t in _tasks(top, "in_group")},
            across={t: top.fields("across").fields("tasks").array(t) for t in _tasks(top, "across")},
        )


@dataclass(frozen=True, eq=False)
class Result:
    """What one method did in a run: `results/<method>.json`.

    `accuracy[request, task, seed]` for every task after every request, also unknown ones; `alive[request]` the names
    of the tasks alive after it; `bytes[request]` what one replica keeps; `seconds[request]` for all replicas.
    """

    method: str
    tasks: tuple[str, ...]
    requests: tuple[str, ...]
    accuracy: NDArray[np.float64]
    alive: tuple[tuple[str, ...], ...]
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    forgets: tuple[Forget, ...]

    def __post_init__(self) -> None:
        check_method(self.method)
        where = f"results of {self.method}"
        try:
            stream = Stream(" ".join(self.requests))
        except Error as error:
            raise BadRun(f"{where}: the requests cannot be read: {error}") from None
        accuracy = _array(self.accuracy, 3, f"{where}: accuracy", high=1)
        if accuracy.shape[:2] != (len(stream), len(self.tasks)):
            raise BadRun(
                f"{where}: accuracy has shape {accuracy.shape} for {len(stream)} requests and {len(self.tasks)} tasks"
            )
        if len(set(self.tasks)) != len(self.tasks) or not set(stream.tasks) <= set(self.tasks):
            raise BadRun(f"{where}: the requests name tasks {stream.tasks}, the results have {list(self.tasks)}")
        if [sorted(names) for names in self.alive] != [sorted(names) for names in alive_after(stream)]:
            raise BadRun(f"{where}: the tasks alive after each request do not follow from the requests {stream}")
        for name in ("bytes", "seconds"):
            if len(getattr(self, name)) != len(stream) or min(getattr(self, name), default=0) < 0:
                raise BadRun(f"{where}: expected {name} for each of {len(stream)} requests, none negative")
        expected = [(n, stream[n - 1].task, str(stream.counterfactual(n))) for n in stream.forgets]
        if [(f.request, f.task, f.counterfactual) for f in self.forgets] != expected:
            raise BadRun(f"{where}: the forgets do not follow from the requests {stream}; expected {expected}")
        for forget in self.forgets:
            shape = (accuracy.shape[2], forget.counterfactual_accuracy.shape[1])
            for matrices in (forget.in_group, forget.across):
                if set(matrices) != set(self.tasks) or len(forget.counterfactual_accuracy) != len(self.tasks):
                    raise BadRun(f"{where}: a forget has figures for {sorted(matrices)} instead of {list(self.tasks)}")
            if any(matrix.shape != shape for matrix in forget.across.values()):
                raise BadRun(f"{where}: across-group matrices should have shape {shape}")
        object.__setattr__(self, "accuracy", accuracy)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "forgets": [forget.to_json() for forget in self.forgets]}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Result:
        top = Fields(value, where)
        return cls(
            method=top.text("method"),
            tasks=tuple(top.texts("tasks")),
            requests=tuple(top.texts("requests")),
            accuracy=top.array("accuracy"),
            alive=tuple(tuple(Fields({"alive": names}, where).texts("alive")) for names in top.items("alive")),
            bytes=tuple(top.integers("bytes")),
            seconds=tuple(top.numbers("seconds")),
            forgets=tuple(Forget.from_json(v, f"{where}: forget {i}") for i, v in enumerate(top.items("forgets"), 1)),
        )


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as read: its name, its recipe, and the results that are there, in the recipe's order."""

    name: str
    recipe: Recipe
    results: Mapping[str, Result]

    @property
    def missing(self) -> list[str]:
        """Methods of the recipe that have no results yet."""
        return [method for method in self.recipe.methods if method not in self.results]


def alive_after(stream: Stream) -> list[list[str]]:
    """The tasks alive after each request, in the order in which they were learned.

    >>> alive_after(Stream("1R 2T 2F"))
    [['1'], ['1', '2'], ['1']]
    """
    alive: list[list[str]] = []
    for request in stream:
        now = list(alive[-1]) if alive else []
        if request.instruction is Instruction.FORGET:
            now.remove(request.task)
        elif request.task not in now:
            now.append(request.task)
        alive.append(now)
    return alive


def write_recipe(folder: Path | str, recipe: Recipe) -> Path:
    """Write `run.json`, whole or not at all."""
    return jsonfile.write(Path(folder) / "run.json", recipe.to_json())


def write_result(folder: Path | str, result: Result) -> Path:
    """Write `results/<method>.json`, whole or not at all."""
    return jsonfile.write(result_path(folder, result.method), result.to_json())


def result_path(folder: Path | str, method: str) -> Path:
    """Where a method's results lie in a run folder."""
    return Path(folder) / "results" / f"{check_method(method)}.json"


def read_recipe(folder: Path | str) -> Recipe:
    """Read `run.json`, or raise `BadRun`."""
    path = Path(folder) / "run.json"
    return Recipe.from_json(jsonfile.read(path), str(path))


def read_result(path: Path | str) -> Result:
    """Read one method's results, or raise `BadRun`."""
    return Result.from_json(jsonfile.read(path), str(path))


def read_run(folder: Path | str, damaged: dict[str, str] | None = None) -> Run:
    """Read a run folder, finished or not; `BadRun` if a file is damaged, foreign or does not fit the recipe.

    With `damaged`, results that cannot be used count as missing, and the reasons are put there.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise BadRun(f"{str(folder)!r} is no run folder: it has no run.json; `clpu bench --out {folder}` makes one")
    recipe = read_recipe(folder)
    results: dict[str, Result] = {}
    for method in recipe.methods:
        try:
            result = read_method(folder, recipe, method)
        except BadRun as error:
            if damaged is None:
                raise
            damaged[method] = str(error)
            continue
        if result is not None:
            results[method] = result
    return Run(folder.resolve().name, recipe, results)


def read_method(folder: Path | str, recipe: Recipe, method: str) -> Result | None:
    """One method's results in a run folder, or None if it has none yet; `BadRun` if they do not fit the recipe."""
    path = result_path(folder, method)
    if not path.is_file():
        return None
    try:
        result = read_result(path)
        _check_fits(recipe, result, method, str(path))
    except BadRun as error:
        raise BadRun(f"{error}; `clpu bench --methods {method}` with the run's settings makes it again") from None
    return result


def _check_fits(recipe: Recipe, result: Result, method: str, where: str) -> None:
    if result.method != method:
        raise BadRun(f"{where} holds the results of {result.method!r}")
    if Stream(" ".join(result.requests)) != Stream(recipe.requests):
        raise BadRun(
            f"{where} is about the requests {' '.join(result.requests)!r}, the recipe about {recipe.requests!r}"
        )
    if len(result.tasks) != recipe.data.tasks:
        raise BadRun(f"{where} has {len(result.tasks)} tasks, the recipe {recipe.data.tasks}")
    if result.accuracy.shape[2] != len(recipe.seeds):
        raise BadRun(f"{where} has {result.accuracy.shape[2]} seeds, the recipe {len(recipe.seeds)}")
    for forget in result.forgets:
        if forget.counterfactual_accuracy.shape[1] != len(recipe.counterfactual_seeds):
            raise BadRun(f"{where}: a forget has another number of counterfactual seeds than the recipe")


def _array(values: ArrayLike, dimensions: int, where: str, *, high: float) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise BadRun(f"{where} is not an array of numbers") from None
    if array.ndim != dimensions:
        raise BadRun(f"{where} should have {dimensions} dimensions, and has {array.ndim}")
    if not np.isfinite(array).all() or (array < 0).any() or (array > high + _SLACK).any():
        raise BadRun(f"{where} should lie between 0 and {high:.3g}, and holds {array.min():.3g} … {array.max():.3g}")
    array.setflags(write=False)
    return array


def _tasks(top: Fields, group: str) -> Sequence[str]:
    return list(top.fields(group).fields("tasks").value)
