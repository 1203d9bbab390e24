"""A job of the audit: some runs of a stream, observed after its forget requests."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import torch
from numpy.typing import NDArray
from torch import nn

from clpu.agent import Progress
from clpu.audit.bitwise import fingerprint
from clpu.audit.observations import LATER_TASK, Observations, Sizes, accuracy, observe
from clpu.errors import BadRun
from clpu.io import sha256
from clpu.isolation import Listener, run_isolated
from clpu.methods import METHODS, Method
from clpu.requests import Request, Stream
from clpu.runs import jobs
from clpu.runs.jobs import Job, Report, TaskData, handle
from clpu.runs.shared_training import SharedFolder, shared_folder, sharing
from clpu.threads import computing_with

#: (number of a request, name of a task, which of its records were forgotten or ""): what is observed, and when.
Sight = tuple[int, str, str]

#: torch's optimisers import this when they are first used; the next copy of this process should have it already.
_SLOW_TO_IMPORT = "torch._dynamo"


@dataclass(frozen=True)
class Probe(Job):
    """Runs to train. `sights` are what to observe; without any, the bits are taken after `outputs_after`."""

    sights: tuple[Sight, ...] = ()
    sizes: Sizes = field(default_factory=lambda: Sizes(0, 0, 0, 1))
    later: str = ""

    @property
    def twin(self) -> bool:
        return not self.sights


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The result of a probe: observations, or fingerprints after some requests."""

    observations: dict[Sight, Observations]
    fingerprints: dict[int, dict[str, str]]


def perform(
    probe: Probe,
    data: Sequence[TaskData],
    progress: Report = lambda number, step: None,
    method: type[Method] | None = None,
    network: nn.Module | None = None,
    shared: Path | None = None,
) -> ProbeResult:
    """Train the runs of a probe through their stream and observe them.

    `shared` is a folder for training that methods have in common. Bits are never taken from it: runs that are
    compared bit for bit are trained independently.
    """
    complete = {task.name: task for task in data}
    by_name = complete
    if probe.leaving and probe.sights:
        by_name = {task.name: some_people(task, probe.seeds[0], probe.leaving) for task in data}
    chosen = METHODS[probe.method] if method is None else method
    if shared is not None and not probe.outputs_after:
        chosen = sharing(chosen, SharedFolder(shared))
    agent = probe.agent(chosen, network)
    observations: dict[Sight, Observations] = {}
    prints: dict[int, dict[str, str]] = {}
    stream = Stream(probe.requests)
    for number in range(len(stream) + 1):
        if number:
            agent.progress = lambda step, number=number: progress(number, step)
            handle(agent, stream[number - 1], by_name)
            agent.progress = None
            progress(number, None)
        if number in probe.outputs_after:
            prints[number] = fingerprint(agent, data)
        sights = [sight for sight in probe.sights if sight[0] == number]
        if sights:
            later, another = agent.copy(), without(by_name[probe.later], probe.leaving)
            later.learn(LATER_TASK, another.train_x, another.train_y)
            for sight in sights:
                forgotten = forgotten_part(complete[sight[1]], sight[2])
                observed = observe(agent, forgotten, probe.sizes, by_name)
                observations[sight] = replace(observed, relapse=accuracy(later, forgotten, probe.sizes))
    return ProbeResult(observations, prints)


def forgotten_part(task: TaskData, records: str) -> TaskData:
    """What was forgotten of a task; without test records of it, its training records are tested."""
    if not records:
        return task
    (scope,) = Request.parse(shlex.quote(f"task{records}") + "F").parts
    train, test = task.covered(scope, train=True), task.covered(scope)
    found = task.chosen(train, test)
    return found if test.any() else replace(found, test_x=found.train_x, test_y=found.train_y)


def without(task: TaskData, leaving: Sequence[str]) -> TaskData:
    """A task without the training records that some requests forget."""
    stays = torch.ones(len(task.train_y), dtype=torch.bool)
    for text in leaving:
        stays &= ~task.covered(Request.parse(text).scope, train=True)
    return task.chosen(stays, torch.ones(len(task.test_y), dtype=torch.bool))


def some_people(task: TaskData, seed: int, leaving: Sequence[str]) -> TaskData:
    """A task in which a seed decides who is there of those whom the requests do not name, about half of them.

    A method that draws nothing at random would give a group of agents that are all alike, and an attacker never knows
    who else is among the data. Those who leave are there for everyone, so that an agent either forgot them or not.
    """
    named = {Request.parse(text).scope.person for text in leaving}
    others = sorted({*task.train_people} - named - {""})
    left_out = {who for who in others if sha256(f"clpu audit {seed} {who}") < "8"}
    if len(left_out) == len(others):
        return task
    stays = torch.tensor([who not in left_out for who in task.train_people])
    return task.chosen(stays, torch.ones(len(task.test_y), dtype=torch.bool)) if len(stays) else task


def work(
    probe: Probe,
    data: Sequence[TaskData],
    path: Path,
    progress: Report,
    method: type[Method] | None = None,
    network: nn.Module | None = None,
) -> None:
    """Perform a probe in its own process, and save the result; called by the engine.

    Every probe finds the memory as the first one did. Otherwise, what a method kept outside the state, such as a
    counter on its class, would reach the next probe, and twins could come out equal or different by accident.
    Registered methods share training; a graphics card cannot be used by a copy of a process.
    """
    shared = shared_folder(path.parent, probe) if method is None else None

    def performed(tell: Listener) -> bool:
        def report(number: int, step: Progress | None) -> None:
            tell(number, [str(step.request), step.phase, step.step, step.steps] if step else None)

        with computing_with(probe.threads):
            save(path, probe, perform(probe, data, report, method, network, shared))
        return _SLOW_TO_IMPORT in sys.modules

    def reported(number: int, step: list[Any] | None) -> None:
        progress(number, Progress(Request.parse(step[0]), *step[1:]) if step else None)

    if probe.device == "cpu":
        if run_isolated(performed, reported):
            importlib.import_module(_SLOW_TO_IMPORT)
    else:
        performed(reported)


def save(path: Path, probe: Probe, result: ProbeResult) -> None:
    """Write a finished probe atomically, with what computed it."""
    arrays: dict[str, NDArray[Any]] = {}
    for (number, task, records), observed in result.observations.items():
        place = f"{number}/{quote(records, safe='')}/{task}"
        arrays |= {f"{name}/{place}": array for name, array in observed.arrays().items()}
    jobs.save(path, probe, arrays, result.fingerprints)


def load(path: Path, probe: Probe) -> ProbeResult:
    """Read a finished probe; `BadRun` if the file is damaged or belongs to a different job."""
    arrays, prints = jobs.load(path, probe, dict[str, dict[str, str]])
    groups: dict[Sight, dict[str, Any]] = {}
    try:
        for key, array in arrays.items():
            name, number, records, task = key.split("/", 3)
            groups.setdefault((int(number), task, unquote(records)), {})[name] = array
        observations = {sight: Observations(**parts) for sight, parts in groups.items()}
        return ProbeResult(observations, {int(number): parts for number, parts in prints.items()})
    except (ValueError, TypeError) as error:
        raise BadRun(f"{path} is damaged: {error!s:.200}") from None
