"""Runs jobs on many machines, with Ray (the extra `ray`, `clpu bench --engine ray`).

Each job is a Ray task. Data go into the object store once, results are returned as bytes and saved by the
program that was called, so machines need no common disk. A job whose machine or process dies is retried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clpu.io import write_atomically
from clpu.methods import plugins
from clpu.runs.engine import Event, Listener, Work, perform
from clpu.runs.jobs import Job, TaskData, file_of
from clpu.workers.cluster import session
from clpu.workers.workers import RETRIES

SECONDS_BETWEEN_LOOKS = 0.2


def run_jobs(
    jobs: Sequence[Job],
    data: Sequence[TaskData],
    folder: Path,
    workers: int,
    listener: Listener,
    work: Work,
    address: str | None = None,
) -> dict[str, str]:
    """Perform jobs on a Ray cluster, at most `workers` at a time, and save each in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with session(workers, address) as ray:
        return _run(ray, jobs, data, folder, workers, listener, work)


def _run(
    ray: Any,
    jobs: Sequence[Job],
    data: Sequence[TaskData],
    folder: Path,
    workers: int,
    listener: Listener,
    work: Work,
) -> dict[str, str]:
    stored = ray.put([_packed(task) for task in data])
    events = ray.remote(num_cpus=0)(_Events).remote()
    remote = ray.remote(max_retries=RETRIES, retry_exceptions=False)(_perform)
    waiting, failures, loaded = list(jobs), {}, dict(plugins.LOADED)
    running: dict[Any, Job] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            needs = {"num_cpus": 1, "num_gpus": 1 if job.device.startswith("cuda") else 0}
            running[remote.options(**needs).remote(job, stored, events, work, loaded)] = job
        finished, _ = ray.wait(list(running), timeout=SECONDS_BETWEEN_LOOKS)
        for event in ray.get(events.take.remote()):
            listener(event)
        for reference in finished:
            job = running.pop(reference)
            reason = _collect(ray, reference, file_of(folder, job))
            if reason:
                failures[job.name] = reason
            listener(Event("failed" if reason else "done", job.name, reason=reason))
    return failures


def _collect(ray: Any, reference: Any, path: Path) -> str:
    """Save a job's bytes atomically; the reason if it failed."""
    try:
        reason, content = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if reason:
        return str(reason)
    try:
        write_atomically(path, content)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _perform(
    job: Job, packed: list[Any], events: Any, work: Work, loaded: dict[str, tuple[str, bytes]]
) -> tuple[str, bytes]:
    """One job, in a Ray worker: the reason if it failed, and the file that it would have saved."""
    trouble = plugins.load_again(loaded)
    if trouble:
        return trouble, b""
    data = [_unpacked(task) for task in packed]
    with tempfile.TemporaryDirectory() as scratch:
        reason = perform(job, data, Path(scratch), events.tell.remote, work)
        return reason, b"" if reason else file_of(Path(scratch), job).read_bytes()


class _Events:
    """Collects the workers' events until they are asked for; lives in the cluster."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def take(self) -> list[Event]:
        taken, self.events = self.events, []
        return taken


def _packed(task: TaskData) -> Any:
    """Arrays, which Ray keeps in shared memory and hands out without copying."""
    return (
        task.name,
        task.train_x.numpy(),
        task.train_y.numpy(),
        task.test_x.numpy(),
        task.test_y.numpy(),
        task.classes,
    )


def _unpacked(packed: Any) -> TaskData:
    import warnings

    name, *arrays, classes = packed
    with warnings.catch_warnings():  # read-only is what shared data should be
        warnings.simplefilter("ignore", UserWarning)
        train_x, train_y, test_x, test_y = (torch.from_numpy(a) for a in arrays)
    return TaskData(name, train_x, train_y, test_x, test_y, classes)
