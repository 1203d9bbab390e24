"""Runs jobs on this machine, one after the other or in worker processes.

A worker that dies takes its job with it and is replaced; a job that fails does not stop the others.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from clpu.agent import Progress
from clpu.errors import Error
from clpu.methods import plugins
from clpu.runs.jobs import Job, Report, TaskData, file_of
from clpu.threads import computing_with
from clpu.workers.processes import Process, end

#: Options of glibc's mallopt (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: A worker reports its progress once per this many steps.
STEPS_PER_REPORT = 25


@dataclass(frozen=True)
class Event:
    """`step` (request, phase, step, steps), `request` done, `done`, or `failed` with a reason."""

    kind: str
    job: str
    request: int = 0
    phase: str = ""
    step: int = 0
    steps: int = 0
    reason: str = ""


Listener = Callable[[Event], None]

#: Performs a job and saves it: work(job, data, path, progress). Worker processes import it by its name.
Work = Callable[[Any, Sequence[TaskData], Path, Report], None]


def run_jobs(
    jobs: Sequence[Job],
    data: Sequence[TaskData],
    folder: Path,
    workers: int,
    listener: Listener,
    work: Work,
    nice: bool = False,
) -> dict[str, str]:
    """Perform jobs and save each in the folder. Returns {job name: error}.

    With `nice`, worker processes run at the lowest priority; then there is at least one.
    """
    if not nice and (workers <= 1 or len(jobs) <= 1):
        return _in_this_process(jobs, data, folder, listener, work)
    return _in_workers(jobs, data, folder, max(1, min(workers, len(jobs))), listener, work, nice)


def perform(job: Job, data: Sequence[TaskData], folder: Path, tell: Listener, work: Work) -> str:
    """Perform and save one job; the reason if it fails."""

    def progress(number: int, step: Progress | None) -> None:
        if step is None:
            tell(Event("request", job.name, number))
        elif step.step % STEPS_PER_REPORT == 0 or step.step == step.steps:
            tell(Event("step", job.name, number, step.phase, step.step, step.steps))

    try:
        with computing_with(job.threads):
            work(job, data, file_of(folder, job), progress)
    except (Error, OSError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return traceback.format_exc(limit=-3)
    return ""


def _in_this_process(
    jobs: Sequence[Job], data: Sequence[TaskData], folder: Path, listener: Listener, work: Work
) -> dict[str, str]:
    failures = {}
    for job in jobs:
        reason = perform(job, data, folder, listener, work)
        if reason:
            failures[job.name] = reason
        listener(Event("failed" if reason else "done", job.name, reason=reason))
    return failures


def _work(
    connection: Connection,
    loaded: dict[str, tuple[str, bytes]],
    data: list[TaskData],
    folder: Path,
    work: Work,
    nice: bool,
) -> None:
    """A worker's life: jobs come in, events go out, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    if nice:
        _lower_priority()
    keep_freed_memory()
    trouble = plugins.load_again(loaded)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        reason = trouble or perform(job, data, folder, connection.send, work)
        try:
            connection.send(Event("failed" if reason else "done", job.name, reason=reason))
        except OSError:  # the parent was killed
            return


def _in_workers(
    jobs: Sequence[Job],
    data: Sequence[TaskData],
    folder: Path,
    count: int,
    listener: Listener,
    work: Work,
    nice: bool,
) -> dict[str, str]:
    setup = dict(plugins.LOADED), [in_shared_memory(task) for task in data], folder, work, nice
    waiting, failures = list(jobs), {}
    workers: list[Process] = []
    try:
        workers = [Process(_work, *setup) for _ in range(count)]
        for worker in workers:
            worker.give(waiting.pop(0))
        while any(worker.job for worker in workers):
            busy = {worker.connection: worker for worker in workers if worker.job}
            for connection in wait(list(busy)):
                worker = busy[connection]
                assert worker.job is not None
                try:
                    event = worker.receive()
                except EOFError:
                    event = Event("failed", worker.job.name, reason=worker.death())
                    workers[workers.index(worker)] = worker = Process(_work, *setup)
                if event.kind == "failed":
                    failures[event.job] = event.reason
                if event.kind in ("failed", "done"):
                    worker.job = None
                    if waiting:
                        worker.give(waiting.pop(0))
                listener(event)
    finally:
        end(workers)
    return failures


def _lower_priority() -> None:
    """Give way to every other process. Linux compares niceness within a session only, and then sessions."""
    if hasattr(os, "nice"):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.setsid()
        Path("/proc/self/autogroup").write_text("19", encoding="utf-8")


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step; otherwise each step causes about 1,000 page faults."""
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        # Either option stops glibc from adjusting both by itself, so it is both or none; 2**25 is the maximum.
        if mallopt(M_MMAP_THRESHOLD, 2**25):
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def in_shared_memory(task: TaskData) -> TaskData:
    """Move the tensors of a task into shared memory."""
    for tensor in (task.train_x, task.train_y, task.test_x, task.test_y):
        tensor.share_memory_()
    return task


multiprocessing.allow_connection_pickling()
