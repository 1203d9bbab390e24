"""A job of a benchmark: replicas are trained through their stream, and measured after each request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clpu import machine
from clpu.agent import Agent
from clpu.errors import BadData, BadRun
from clpu.methods import METHODS
from clpu.requests import Request, Stream
from clpu.runs import jobs
from clpu.runs.jobs import Job, Report, TaskData, answers, checkpoint_of, handle
from clpu.runs.shared_training import SharedFolder, shared_folder, sharing
from clpu.state import State


@dataclass
class Cost:
    """The cost of a job: bytes of one replica after each request, seconds of each request and of evaluation.

    Where people leave, the seconds include an answer to one input, because a method may solve when it is asked, and
    `digests` has the digest after each request.
    """

    bytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluation: float = 0.0
    digests: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class JobResult:
    """The result of a job: accuracy (request, task, seed), log-probabilities {(request, task): (seed, image, class)}.

    `class_incremental` (seed,) is the accuracy at the end on all active tasks together, when nobody names the task.
    `state` are the bytes of the agent, for a job that is not finished.
    """

    accuracy: NDArray[np.float64]
    outputs: dict[tuple[int, str], NDArray[np.float32]]
    cost: Cost
    class_incremental: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    state: bytes = b""


def measure(job: Job, data: Sequence[TaskData], path: Path, progress: Report) -> None:
    """Perform a job, sharing training with others, and save what came out; a job that was killed is resumed."""
    checkpoint = checkpoint_of(path)
    save(path, job, perform(job, data, progress, shared_folder(path.parent, job), checkpoint))
    checkpoint.unlink(missing_ok=True)


def perform(
    job: Job,
    data: Sequence[TaskData],
    progress: Report = lambda n, p: None,
    shared: Path | None = None,
    checkpoint: Path | None = None,
) -> JobResult:
    """Train the replicas of a job through their stream; `progress` gets the request's number and the step.

    `shared` is a folder in which jobs leave training for others that would do the same. `checkpoint` is a file
    that gets, after each request, what is needed to continue there; if it exists, the job continues.
    """
    stream, by_name = Stream(job.requests), {task.name: task for task in data}
    place = None if shared is None else SharedFolder(shared)
    method = METHODS[job.method] if place is None else sharing(METHODS[job.method], place)
    # A counterfactual may have no requests at all; then the fresh agent is what is measured.
    accuracy = np.zeros((max(1, len(stream)), len(data), len(job.seeds)))
    agent, result = job.agent(method), JobResult(accuracy, {}, Cost())
    if checkpoint is not None and (found := _resumed(checkpoint, job)):
        agent = Agent.from_state(found.state, method=method, device=job.device, threads=job.threads)
        result = replace(found, state=b"")  # a finished job does not keep it
    outputs, cost, examiner = result.outputs, result.cost, _Examiner(agent)
    staying = {task.name: _staying(task, job.leaving) for task in data}
    for number, request in enumerate(stream, 1) if len(stream) else [(0, None)]:
        if number <= len(cost.seconds) and number:
            progress(number, None)
            continue
        agent.progress = lambda step, number=number: progress(number, step)
        start, before = time.perf_counter(), place.seconds if place else 0.0
        if request is not None:
            handle(agent, request, by_name)
            for name in list(agent.tasks)[:1] if job.leaving else []:
                agent.logits(name, by_name[name].test_x[:1])
        # Training that was taken from a different job counts as if it had been done here.
        saved = place.seconds - before if place else 0.0
        cost.seconds.append(time.perf_counter() - start + saved)
        start = time.perf_counter()
        for column, task in enumerate(data):
            log_p = examiner.log_probabilities(task)
            right = is_right(log_p, task)[:, staying[task.name]]
            result.accuracy[max(number - 1, 0), column] = right.double().mean(-1).numpy()
            if number in job.outputs_after:
                outputs[number, task.name] = log_p.cpu().numpy()
        storage = agent.storage()
        if job.leaving:
            cost.digests.append(agent.digest())
        cost.bytes.append((storage["main"] + sum(storage["tasks"].values())) // len(job.seeds))
        cost.evaluation += time.perf_counter() - start
        if checkpoint is not None and number < len(stream):
            with suppress(OSError):  # a full disk only means that the job would begin anew
                save(checkpoint, job, replace(result, state=agent.state().to_bytes()))
        progress(number, None)
    if job.group == "actual":
        start = time.perf_counter()
        if job.leaving:
            data = [task.chosen(torch.zeros(len(task.train_y)).bool(), staying[task.name]) for task in data]
        result = replace(result, class_incremental=class_incremental(agent, data))
        cost.evaluation += time.perf_counter() - start
    return result


def is_right(log_p: Tensor, task: TaskData) -> Tensor:
    """Which answers (replica, n) to a task's test set are right."""
    found = torch.tensor(task.classes)[log_p.cpu().argmax(-1)]
    return found == task.test_y.cpu()


def _staying(task: TaskData, leaving: Sequence[str]) -> Tensor:
    """Which test records are about nobody who leaves."""
    stays = torch.ones(len(task.test_y), dtype=torch.bool)
    for text in leaving:
        stays &= ~task.covered(Request.parse(text).scope)
    if not stays.any():
        raise BadData(f"no test record of task {task.name} is left when all have left that the requests name")
    return stays


def class_incremental(agent: Agent, data: Sequence[TaskData]) -> NDArray[np.float64]:
    """The share (seed,) of test images of the active tasks whose most likely pair (task, label) is the right one.

    "None of these" is not among the answers, and images whose label was forgotten are not among the questions.
    """
    active = [task for task in data if task.name in agent.tasks]
    if not active:
        return np.empty(0)
    pairs = {pair: column for column, pair in enumerate(agent.labels(None)[:-1])}
    right, count = np.zeros(len(agent.seeds)), 0
    for task in active:
        wanted = torch.tensor([pairs.get((task.name, label), -1) for label in task.test_y.tolist()])
        asked, wanted = task.test_x[wanted >= 0], wanted[wanted >= 0]
        if not len(asked):
            continue
        found = agent.predict(None, asked)[..., :-1].argmax(-1).cpu()
        right += (found == wanted).double().sum(-1).numpy()
        count += len(wanted)
    return right / count if count else np.empty(0)


def _resumed(checkpoint: Path, job: Job) -> JobResult | None:
    """The result so far; None if there is none, or none that this machine may continue."""
    with suppress(BadRun):
        by = jobs.computed_by(checkpoint, job)
        if by is not None and by.key == machine.here(job.device).key:
            return load(checkpoint, job)
    return None


class _Examiner:
    """An agent's answers to the test sets; a question whose answer cannot have changed is not asked again."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._known: dict[str, tuple[State, Tensor]] = {}

    def log_probabilities(self, task: TaskData) -> Tensor:
        relevant = self.agent.state().only(task.name)
        before, log_p = self._known.get(task.name, (None, None))
        if log_p is None or before != relevant:
            log_p = F.log_softmax(answers(self.agent, task, task.test_x), -1)
            self._known[task.name] = relevant, log_p
        return log_p


def save(path: Path, job: Job, result: JobResult) -> None:
    """Write a job's result atomically, with what computed it."""
    arrays: dict[str, NDArray[Any]] = {f"{n}/{task}": a for (n, task), a in result.outputs.items()}
    if result.state:
        arrays["state"] = np.frombuffer(result.state, dtype=np.uint8)
    measured = {"accuracy": result.accuracy, "class_incremental": result.class_incremental}
    jobs.save(path, job, {**measured, **arrays}, result.cost)


def load(path: Path, job: Job) -> JobResult:
    """Read what `save` wrote; `BadRun` if the file is damaged or belongs to a different job."""
    arrays, cost = jobs.load(path, job, Cost)
    try:
        accuracy, state = arrays.pop("accuracy"), arrays.pop("state", np.zeros(0)).tobytes()
        together = arrays.pop("class_incremental")
        outputs = {(int(n), task): a for (n, _, task), a in ((k.partition("/"), a) for k, a in arrays.items())}
    except (KeyError, ValueError) as error:
        raise BadRun(f"{path} is damaged: {error!s:.200}") from None
    return JobResult(accuracy, outputs, cost, together, state)
