"""The results of a benchmark: `results/METHOD.json`, and a run folder as it is read.

Recipe and results are all that metrics, tables and pages are made from. They are checked when read: they may come from
a different machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from clpu import jsonfile
from clpu.errors import BadRun, Error
from clpu.jsonfile import Seconds
from clpu.requests import Stream
from clpu.runs.recipe import Recipe, check_method, read_recipe, result_file

#: The folder of the results inside that of a run.
RESULTS = "results"
# JSD of float32 outputs may exceed its bounds by a rounding error.
_SLACK = 1e-6


@dataclass(frozen=True, eq=False)
class ForgetResult:
    """One forget request: the answers of both groups for every task right after it.

    `request` counts from 1; `counterfactual_accuracy[task, seed]`; `in_group[task]` is the `jsd_matrix` of the
    counterfactual replicas, `across[task]` that of actual replicas (rows) with counterfactual ones (columns).
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


@dataclass(frozen=True, eq=False)
class Result:
    """The results of one method in a run: `results/METHOD.json`.

    `accuracy[request, task, seed]` for every task after every request, also unknown ones; `alive[request]` the names
    of the tasks active after it; `bytes[request]` the size of one replica; `seconds[request]` for all replicas.
    """

    format: ClassVar[str] = "clpu-result"

    method: str
    tasks: tuple[str, ...]
    requests: tuple[str, ...]
    accuracy: NDArray[np.float64]
    alive: tuple[tuple[str, ...], ...]
    bytes: tuple[Annotated[int, Meta(ge=0)], ...]
    seconds: tuple[Seconds, ...]
    forgets: tuple[ForgetResult, ...]
    #: Per seed, the accuracy on all active tasks together at the end, when nobody names the task.
    class_incremental: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = ()

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
            raise BadRun(f"{where}: the active tasks do not follow from the requests {stream}")
        if not len(self.bytes) == len(self.seconds) == len(stream):
            raise BadRun(f"{where}: expected bytes and seconds for each of {len(stream)} requests")
        expected = [(n, stream[n - 1].task, str(stream.counterfactual(n))) for n in stream.forgets]
        if [(f.request, f.task, f.counterfactual) for f in self.forgets] != expected:
            raise BadRun(f"{where}: the forget requests do not follow from the requests {stream}; expected {expected}")
        for forget in self.forgets:
            shape = (accuracy.shape[2], forget.counterfactual_accuracy.shape[1])
            for matrices in (forget.in_group, forget.across):
                if set(matrices) != set(self.tasks) or len(forget.counterfactual_accuracy) != len(self.tasks):
                    raise BadRun(f"{where}: a forget request has {sorted(matrices)} instead of {list(self.tasks)}")
            if any(matrix.shape != shape for matrix in forget.across.values()):
                raise BadRun(f"{where}: across-group matrices should have shape {shape}")
        if len(self.class_incremental) not in (0, accuracy.shape[2]):
            raise BadRun(f"{where}: class_incremental has {len(self.class_incremental)} of {accuracy.shape[2]} seeds")
        object.__setattr__(self, "accuracy", accuracy)


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as read: its name, its recipe, and the existing results, in the recipe's order."""

    name: str
    recipe: Recipe
    results: Mapping[str, Result]

    @property
    def missing(self) -> list[str]:
        """Methods of the recipe that have no results yet."""
        return [method for method in self.recipe.methods if method not in self.results]


def alive_after(stream: Stream) -> list[list[str]]:
    """The tasks active after each request, in the order in which they were learned.

    >>> alive_after(Stream("1R 2T 2F"))
    [['1'], ['1', '2'], ['1']]
    """
    return [list(active) for _, _, active in stream.walk()]


def result_path(folder: Path | str, method: str) -> Path:
    """The file with a method's results in a run folder."""
    return result_file(folder, RESULTS, method)


def read_run(folder: Path | str) -> Run:
    """Read a run folder, finished or not; `BadRun` if a file is damaged, foreign or does not fit the recipe."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise BadRun(
            f"{str(folder)!r} is not a run folder: it has no run.json; `clpu bench --out {folder}` creates one"
        )
    recipe = read_recipe(folder)
    results: dict[str, Result] = {}
    for method in recipe.methods:
        path = result_path(folder, method)
        if path.is_file():
            try:
                content = jsonfile.content_of(path)
            except OSError as error:
                raise BadRun(f"cannot read {path}: {error.strerror}") from None
            results[method] = decode_result(content, recipe, method, str(path))
    return Run(folder.resolve().name, recipe, results)


def decode_result(content: bytes, recipe: Recipe, method: str, where: str) -> Result:
    """A method's results from the content of a file; `BadRun` if they are damaged or do not fit the recipe."""
    try:
        result = jsonfile.decode(content, Result, where)
        _check_fits(recipe, result, method, where)
    except BadRun as error:
        raise BadRun(f"{error}; `clpu bench --methods {method}` with the run's settings recomputes it") from None
    return result


def _check_fits(recipe: Recipe, result: Result, method: str, where: str) -> None:
    if result.method != method:
        raise BadRun(f"{where} contains the results of {result.method!r}")
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
            raise BadRun(f"{where}: a forget request has a different number of counterfactual seeds than the recipe")


def _array(values: ArrayLike, dimensions: int, where: str, *, high: float) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise BadRun(f"{where} is not an array of numbers") from None
    if array.ndim != dimensions:
        raise BadRun(f"{where} must have {dimensions} dimensions, and has {array.ndim}")
    if not np.isfinite(array).all() or (array < 0).any() or (array > high + _SLACK).any():
        raise BadRun(f"{where} must be between 0 and {high:.3g}, and contains {array.min():.3g} … {array.max():.3g}")
    array.setflags(write=False)
    return array
