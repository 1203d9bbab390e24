"""A job: one method, one stream of requests, some seeds; and the file that it leaves when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from clpu import jsonfile, machine
from clpu.agent import Agent, Progress
from clpu.errors import BadData, BadRun
from clpu.io import canonical, sha256, write_atomically
from clpu.methods import METHODS, Method
from clpu.requests import Instruction, Request, Scope, Stream
from clpu.state import Leaf

T = TypeVar("T")

#: Takes the number of a request, and how far it is; nothing if it is complete.
Report = Callable[[int, Progress | None], None]


@dataclass(frozen=True)
class TaskData:
    """A task's tensors; in shared memory, so that they exist once however many processes use them."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[int, ...]
    #: Who each record is about, "" for nobody in particular; nothing if the data do not say.
    train_people: tuple[str, ...] = ()
    test_people: tuple[str, ...] = ()

    def covered(self, scope: Scope, train: bool = False) -> Tensor:
        """Which test records, or training records, a scope names: a boolean for each."""
        y, people = (self.train_y, self.train_people) if train else (self.test_y, self.test_people)
        if scope.task not in (None, self.name):
            return torch.zeros(len(y), dtype=torch.bool)
        if not scope.some_records:
            return torch.ones(len(y), dtype=torch.bool)
        pairs = zip(y.tolist(), people or [""] * len(y))
        return torch.tensor([scope.covers(label, [who] if who else []) for label, who in pairs])

    def chosen(self, train: Tensor, test: Tensor) -> TaskData:
        """The same task with these training and test records only."""

        def some(people: tuple[str, ...], which: Tensor) -> tuple[str, ...]:
            return tuple(who for who, keep in zip(people, which.tolist()) if keep)

        return replace(
            self,
            train_x=self.train_x[train],
            train_y=self.train_y[train],
            test_x=self.test_x[test],
            test_y=self.test_y[test],
            train_people=some(self.train_people, train),
            test_people=some(self.test_people, test),
        )


@dataclass(frozen=True)
class Job:
    """A unit of work. `outputs_after` are the requests, counted from 1, after which all outputs are kept."""

    method: str
    group: str
    requests: str
    seeds: tuple[int, ...]
    network: str
    settings: dict[str, Any]
    outputs_after: tuple[int, ...]
    device: str = "cpu"
    threads: int = 1
    #: Requests that forget some records of a task, as text: who is forgotten is not tested, and digests are kept.
    leaving: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.method}--{self.group}--{self.seeds[0]}"

    @property
    def twin(self) -> bool:
        """Whether its result is compared bit for bit with that of others, so that one machine must compute them all."""
        return bool(self.leaving)

    def described(self) -> str:
        """All of it as text, to check whether a file on disk belongs to the same job."""
        return canonical(asdict(self))

    def agent(self, method: type[Method] | None = None, network: Any = None) -> Agent:
        """The agent that handles the requests, before the first; a registered method unless a class is given."""
        return Agent(
            method or METHODS[self.method],
            self.network if network is None else network,
            seeds=self.seeds,
            device=self.device,
            threads=self.threads,
            **self.settings,
        )

    def costs(self) -> list[float]:
        """The rough cost of each request; never nothing, so that every request moves the bar."""
        learn, keep, forget = METHODS[self.method].costs if self.method in METHODS else Method.costs
        costs = {"learn": learn, "keep": keep, "nothing": keep, "forget": forget}
        return [(costs[what] + 0.02) * len(self.seeds) for _, what, _ in Stream(self.requests).walk()]


@dataclass(frozen=True)
class Timed:
    """The facts that are read of an unfinished job: the seconds of each request that is done."""

    seconds: list[float]


def in_order(jobs: Sequence[Job], methods: Sequence[str] = ()) -> list[Job]:
    """Sort jobs by method, so that an interrupted run has complete results; within a method, the costliest first.

    Those of `methods` come first, in that order; then the others, the costliest first, so that no long job starts last.
    """
    total: dict[str, float] = {}
    for job in jobs:
        total[job.method] = total.get(job.method, 0.0) + sum(job.costs())
    rank = {method: number for number, method in enumerate(methods)}
    return sorted(
        jobs,
        key=lambda job: (rank.get(job.method, len(rank)), -total[job.method], job.method, -sum(job.costs())),
    )


def handle(agent: Agent, request: Request, data: Mapping[str, TaskData]) -> None:
    """Let an agent handle a request, with the task's training data where it learns."""
    if request.instruction is Instruction.FORGET or request.task in agent.tasks:
        agent.handle(request)
        return
    task = data[request.task]
    people = [who or None for who in task.train_people] if task.train_people and agent.forgets == "records" else None
    agent.handle(request, task.train_x, task.train_y, people=people)
    if not request.parts and not people and agent.labels(request.task) != task.classes:
        raise BadData(f"task {task.name!r} has {len(task.classes)} classes, but its training data only some of them")


def answers(agent: Agent, task: TaskData, x: Tensor) -> Tensor:
    """An agent's logits (replica, n, classes) for a task, active or not; -inf for a label that it has no more."""
    labels = agent.labels(task.name) if task.name in agent.tasks else task.classes
    if labels == task.classes:
        return agent.logits(task.name, x, len(task.classes))
    known = agent.logits(task.name, x)
    found = torch.full((*known.shape[:-1], len(task.classes)), float("-inf"), device=known.device)
    found[..., [task.classes.index(int(label)) for label in labels]] = known
    return found


def file_of(folder: Path, job: Job) -> Path:
    """The file of a finished job."""
    return folder / f"{job.name}.safetensors"


def checkpoint_of(path: Path) -> Path:
    """The file in which a job that is not finished keeps what it needs to resume; `path` is the finished job's."""
    return path.with_suffix(".checkpoint")


def save(path: Path, job: Job, arrays: Mapping[str, NDArray[Any]], facts: object) -> None:
    """Write what came out of a job, atomically: arrays, a dataclass of facts, and what computed it."""
    record = {"job": job.described(), "facts": facts, "machine": machine.here(job.device)}
    metadata = {name: v if isinstance(v, str) else canonical(jsonfile.to_plain(v)) for name, v in record.items()}
    # A file without tensors is fine for safetensors, but not for every version that reads it.
    arrays = arrays or {"none": np.zeros(1)}
    write_arrays(path, arrays, {**metadata, "sha256": _checksum(arrays, metadata["facts"])})


def _checksum(arrays: Mapping[str, NDArray[Any]], facts: str) -> str:
    return sha256(canonical([facts, Leaf.of_arrays(arrays).sha256]))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically."""
    write_atomically(path, safetensors.numpy.save(dict(arrays), metadata))


def computed_by(path: Path, job: Job | None = None) -> machine.Machine | None:
    """Return the machine that computed a finished job, or None if it was not recorded.

    `BadRun` if the file is damaged, or of a different job than the one given.
    """
    return _checked(_read(path)[1], path, job)


def requests_done(path: Path, job: Job) -> int:
    """Count the requests that are done according to a job's checkpoint; `path` is the finished job's."""
    with suppress(BadRun):
        _, metadata = _read(checkpoint_of(path))
        by = _checked(metadata, path, job)
        if by is not None and by.key == machine.here(job.device, job.threads).key:
            return len(jsonfile.decode(metadata.get("facts", ""), Timed, path).seconds)
    return 0


def load(path: Path, job: Job, kind: type[T]) -> tuple[dict[str, NDArray[Any]], T]:
    """Read what came out of a job; `BadRun` if the file is damaged or belongs to a different job."""
    arrays, metadata = _read(path, contents=True)
    _checked(metadata, path, job)
    if metadata.get("sha256") != _checksum(arrays, metadata.get("facts", "")):
        raise BadRun(f"{path} is damaged: its checksum does not match its content")
    arrays.pop("none", None)
    return arrays, jsonfile.decode(metadata.get("facts", ""), kind, f"{path} (facts)")


def _read(path: Path, contents: bool = False) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    try:
        with safetensors.safe_open(path, "numpy") as file:
            names = list(file.keys()) if contents else []
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise BadRun(f"{path} is damaged: {error!s:.200}") from None


def _checked(metadata: Mapping[str, str], path: Path, job: Job | None) -> machine.Machine | None:
    if job is not None and metadata.get("job") != job.described():
        raise BadRun(f"{path} belongs to a different job")
    if "machine" not in metadata:
        return None
    return jsonfile.decode(metadata["machine"], machine.Machine, f"{path} (machine)")
