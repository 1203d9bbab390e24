"""A run's folder: which jobs are done, which are left, and what became of them.

run.json             the recipe
results/METHOD.json  what came out for a method (an audit's folder has findings/)
jobs/                finished jobs of methods that are not finished
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock, Timeout

from clpu import jsonfile, machine
from clpu.errors import BadRun
from clpu.machine import Machine
from clpu.methods import METHODS
from clpu.runs import engine
from clpu.runs.jobs import Job, TaskData, checkpoint_of, computed_by, file_of, in_order, requests_done
from clpu.runs.origins import admitted, read_origins
from clpu.runs.recipe import Recipe, merge_recipes, method_of, read_recipe, result_file
from clpu.runs.shared_training import SHARED

R = TypeVar("R")

#: How often the time that a run took so far is written down, in case that it is killed.
SECONDS_BETWEEN_NOTES = 30.0


@dataclass(frozen=True)
class Plan:
    """The plan of a run: its recipe, its data, and the jobs of each method."""

    recipe: Recipe
    data: list[TaskData]
    jobs: Mapping[str, Sequence[Job]]


@dataclass(frozen=True)
class Kind(Generic[R]):
    """A kind of run: what its jobs do, and what is made of their results.

    `decode(content, recipe, method, where)` reads a method's file in the folder `results`, `load(path, job)` reads the
    result of a job, and `combine(plan, method, {job name: result})` makes the one from the others.
    """

    name: str
    results: str
    decode: Callable[[bytes, Recipe, str, str], R]
    work: engine.Work
    load: Callable[[Path, Any], Any]
    combine: Callable[[Plan, str, Mapping[str, Any]], R]


class RunFolder(Generic[R]):
    """The folder of a run, locked while it is used. Its recipe and each result are read once, and then kept here.

    After `resume`, `results` are those of finished methods, `damaged` the reasons why others cannot be used, `left` the
    jobs that are not done, and `begun` the number of requests that each of them has behind it.
    """

    plan: Plan
    recipe: Recipe

    def __init__(self, path: Path, kind: Kind[R]) -> None:
        self.path, self.kind = path, kind
        self.results: dict[str, R] = {}
        self.damaged: dict[str, str] = {}
        self.left: list[Job] = []
        self._lock = FileLock(path / ".lock", timeout=0)
        self._existing: Recipe | None = None
        if has_recipe(path):
            self._claim()
            try:
                self._existing = read_recipe(path, kind.name)
            except BaseException:
                self._lock.release()
                raise

    def __enter__(self) -> RunFolder[R]:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def methods(self) -> list[str]:
        """The methods of the recipe in the folder; `BadRun` if one is not registered."""
        methods = list(self._existing.methods) if self._existing else []
        for method in methods:
            if method not in METHODS:
                raise BadRun(
                    f"{self.path} contains results of the method {method!r}, which is not registered. "
                    "Load its file with --load FILE."
                )
        return methods

    def resume(self, plan: Plan, mix: bool = False, elsewhere: bool = False) -> None:
        """Find out what is left of a plan; `BadRun` if it does not belong here, or this machine must not add to it.

        With `mix`, machines that compute differently may work on one run. `elsewhere` says that jobs are not computed
        on this machine.
        """
        self.plan, existing = plan, self._existing
        self.recipe = merge_recipes(existing, plan.recipe, self.path) if existing else plan.recipe
        for method in self.recipe.methods:
            self._read(method)
        jobs = {m: list(jobs) for m, jobs in plan.jobs.items() if m not in self.results}
        done = self._done(jobs)
        self.left = [job for of_method in jobs.values() for job in of_method if job.name not in done]
        self.begun = {job.name: requests_done(file_of(self._jobs, job), job) for job in self.left}
        self._origins = read_origins(existing or plan.recipe, self.results, done, mix)
        if self.left and not elsewhere:
            self._origins.check(machine.here(self.left[0].device, self.left[0].threads), self.path)

    def execute(
        self,
        workers: int = 1,
        listener: engine.Listener = lambda event: None,
        performer: Callable[..., dict[str, str]] = engine.run_jobs,
        order: Sequence[str] = (),
    ) -> dict[str, str]:
        """Run the remaining jobs, starting with the methods in `order`. Returns {job or method name: error}."""
        if not self._lock.is_locked:
            self._claim()
            if has_recipe(self.path):
                raise BadRun(f"another process has begun a run in {self.path}; run the same command again")
        start, before, jobs = time.perf_counter(), self.recipe.seconds, self._jobs
        self._note(before)
        waiting = {m: {job.name for job in self.left if job.method == m} for m in self.plan.jobs}
        failures: dict[str, str] = {}
        noted = time.monotonic()

        def note() -> None:
            self._note((before or 0.0) + time.perf_counter() - start)

        def finish(method: str) -> None:
            try:
                note()  # before the files of the jobs, which say what computed them, are gone
                self._finish(method)
                note()
            except (BadRun, OSError) as error:  # a full disk, say; the other methods continue
                failures[method] = f"{type(error).__name__}: {error}"

        def watch(event: engine.Event) -> None:
            nonlocal noted
            event = admitted(self._origins, event, jobs, failures)
            listener(event)
            if time.monotonic() - noted > SECONDS_BETWEEN_NOTES:
                note()
                noted = time.monotonic()
            if event.kind == "done":
                method = method_of(event.job)
                waiting[method].discard(event.job)
                if not waiting[method]:
                    finish(method)

        for method in waiting:
            if not waiting[method] and method not in self.results:  # all jobs are done, but not combined yet
                finish(method)
        if self.left:
            ordered = in_order(self.left, order)
            try:
                failures |= performer(ordered, self.plan.data, jobs, workers, watch, self.kind.work)
            finally:
                with suppress(OSError):  # if the disk is full, other errors say so
                    note()
        tidy(jobs, [job for m, of_method in self.plan.jobs.items() if m in self.results for job in of_method])
        return failures

    def finished(self) -> dict[str, R]:
        """The results, in the recipe's order."""
        return {method: self.results[method] for method in self.recipe.methods if method in self.results}

    def write(self, method: str, result: R) -> None:
        """Write a method's results."""
        jsonfile.write(result_file(self.path, self.kind.results, method), result)
        self.results[method] = result
        self.damaged.pop(method, None)

    @property
    def _jobs(self) -> Path:
        return self.path / "jobs"

    def _claim(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except (FileExistsError, NotADirectoryError):
            raise BadRun(f"cannot create {self.path}: part of the path is a file. Choose a different --out.") from None
        except Timeout:
            raise BadRun(
                f"another process is working in {self.path}; wait for it, or choose a different --out"
            ) from None

    def _read(self, method: str) -> None:
        """Read a method's results, if there are any; damaged ones are computed again."""
        path = result_file(self.path, self.kind.results, method)
        if path.is_file():
            content = jsonfile.content_of(path)  # a file that may not be read is not treated as damaged
            try:
                self.results[method] = self.kind.decode(content, self.recipe, method, str(path))
            except BadRun as error:
                self.damaged[method] = str(error)

    def _done(self, jobs: Mapping[str, Sequence[Job]]) -> dict[str, Machine | None]:
        """Return the machines of the jobs that are done. Of incomplete twins, only those of this machine count."""
        done: dict[str, Machine | None] = {}
        for of_method in jobs.values():
            for job in of_method:
                with suppress(BadRun):
                    done[job.name] = computed_by(file_of(self._jobs, job), job)
            twins = [job for job in of_method if job.twin]
            if any(job.name not in done for job in twins):
                here = machine.here(twins[0].device, twins[0].threads).key
                for job in twins:
                    if (by := done.get(job.name)) is None or by.key != here:
                        done.pop(job.name, None)
        return done

    def _note(self, seconds: float | None) -> None:
        self.recipe = replace(self._origins.noted_in(self.recipe), seconds=seconds)
        jsonfile.write(self.path / "run.json", self.recipe)

    def _finish(self, method: str) -> None:
        """Combine the jobs of a method, write its results, and remove the files that they were made from."""
        files = {job.name: file_of(self._jobs, job) for job in self.plan.jobs[method]}
        loaded = {}
        for job in self.plan.jobs[method]:
            try:
                loaded[job.name] = self.kind.load(files[job.name], job)
            except BadRun:  # removed, so that the same command runs it again
                files[job.name].unlink(missing_ok=True)
                raise
        self.write(method, self.kind.combine(self.plan, method, loaded))
        for path in files.values():
            path.unlink()


def run(
    kind: Kind[R],
    plan: Plan,
    path: Path,
    workers: int = 1,
    listener: engine.Listener = lambda event: None,
    performer: Callable[..., dict[str, str]] = engine.run_jobs,
    mix: bool = False,
    elsewhere: bool = False,
) -> dict[str, str]:
    """Run what is left of a plan in a folder. Returns {job or method name: error}."""
    with RunFolder(path, kind) as folder:
        folder.resume(plan, mix, elsewhere)
        return folder.execute(workers, listener, performer)


def has_recipe(folder: Path) -> bool:
    """Whether a folder is that of a run; `BadRun` if it is one of an audit of format 1."""
    if (folder / "audit.json").is_file():
        raise BadRun(f"{folder} has an audit of version 1; this clpu reads version {jsonfile.VERSION}")
    return (folder / "run.json").is_file()


def tidy(folder: Path, finished: Sequence[Job] = ()) -> None:
    """Remove what finished jobs and killed workers left, and the folder of jobs once there is none in it."""
    if not folder.is_dir():
        return
    for job in finished:
        file_of(folder, job).unlink(missing_ok=True)
        checkpoint_of(file_of(folder, job)).unlink(missing_ok=True)
    for half in [*folder.glob(".*.safetensors.*"), *folder.glob(".*.checkpoint.*")]:
        half.unlink(missing_ok=True)
    if {path.name for path in folder.iterdir()} <= {SHARED}:
        shutil.rmtree(folder)
