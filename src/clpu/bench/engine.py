"""Where pieces of work run: in this process, or in worker processes.

An engine performs pieces in any order, saves each as soon as it is done, and tells what happens in events.
A piece that fails does not stop the others.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.multiprocessing

from clpu import machine
from clpu.agent import Progress
from clpu.bench.pieces import Piece, TaskData, perform, save
from clpu.errors import Error
from clpu.methods import plugins
from clpu.threads import computing_with

#: A worker says how far it is at most this often, counted in steps.
STEPS_A_REPORT = 25


@dataclass(frozen=True)
class Event:
    """`step` (request, phase, step, steps), `request` done, `done`, or `failed` with a reason."""

    kind: str
    piece: str
    request: int = 0
    phase: str = ""
    step: int = 0
    steps: int = 0
    reason: str = ""


#: The folder among pieces in which they leave learning for one another.
SHARED = "shared"

Listener = Callable[[Event], None]


#: Performs a piece and saves it: work(piece, data, path, progress). Worker processes import it by its name.
Work = Callable[[Any, Sequence[TaskData], Path, Callable[[int, Progress | None], None]], None]


def measure(
    piece: Piece, data: Sequence[TaskData], path: Path, progress: Callable[[int, Progress | None], None]
) -> None:
    """What a benchmark does with a piece."""
    save(path, piece, perform(piece, data, progress, shared_folder(path.parent, piece)))


def shared_folder(folder: Path, piece: Piece) -> Path:
    """Where pieces leave learning for one another: for those only that are computed alike."""
    return folder / SHARED / machine.here(piece.device).key


def here(device: str, threads: int = 1) -> machine.Machine:
    """What computes the pieces that `run_pieces` performs: this machine, as its workers use it."""
    with computing_with(threads):
        return machine.here(device)


def run_pieces(
    pieces: Sequence[Piece],
    data: Sequence[TaskData],
    folder: Path,
    workers: int,
    listener: Listener,
    work: Work = measure,
) -> dict[str, str]:
    """Perform pieces and save each in the folder; returns the reason of failure of those that failed."""
    if workers <= 1 or len(pieces) <= 1:
        return _here(pieces, data, folder, listener, work)
    return _in_workers(pieces, data, folder, min(workers, len(pieces)), listener, work)


def file_of(folder: Path, piece: Piece) -> Path:
    """Where a finished piece lies."""
    return folder / f"{piece.name}.safetensors"


def _do(piece: Piece, data: Sequence[TaskData], folder: Path, tell: Listener, work: Work) -> str:
    """Perform and save one piece; the reason if it fails."""

    def progress(number: int, step: Progress | None) -> None:
        if step is None:
            tell(Event("request", piece.name, number))
        elif step.step % STEPS_A_REPORT == 0 or step.step == step.steps:
            tell(Event("step", piece.name, number, step.phase, step.step, step.steps))

    try:
        with computing_with(piece.threads):
            work(piece, data, file_of(folder, piece), progress)
    except (Error, OSError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return traceback.format_exc(limit=-3)
    return ""


def _here(
    pieces: Sequence[Piece], data: Sequence[TaskData], folder: Path, listener: Listener, work: Work
) -> dict[str, str]:
    failures = {}
    for piece in pieces:
        reason = _do(piece, data, folder, listener, work)
        if reason:
            failures[piece.name] = reason
        listener(Event("failed" if reason else "done", piece.name, reason=reason))
    return failures


class _Worker:
    """A process, the connection to it, and what it is working on."""

    def __init__(self, context: Any, data: Sequence[TaskData], folder: Path, work: Work) -> None:
        self.connection, theirs = context.Pipe()
        own = dict(plugins.LOADED)
        self.process = context.Process(target=_work, args=(theirs, list(data), folder, work, own), daemon=True)
        self.process.start()
        theirs.close()
        self.piece: Piece | None = None

    def give(self, piece: Piece) -> None:
        self.piece = piece
        self.connection.send(piece)


def _work(
    connection: Connection, data: list[TaskData], folder: Path, work: Work, own: dict[str, tuple[str, bytes]]
) -> None:
    """A worker's life: pieces come in, events go out, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    trouble = plugins.load_again(own)
    while True:
        try:
            piece = connection.recv()
        except EOFError:
            return
        reason = trouble or _do(piece, data, folder, connection.send, work)
        try:
            connection.send(Event("failed" if reason else "done", piece.name, reason=reason))
        except OSError:  # the parent was killed
            return


def _in_workers(
    pieces: Sequence[Piece], data: Sequence[TaskData], folder: Path, count: int, listener: Listener, work: Work
) -> dict[str, str]:
    context = torch.multiprocessing.get_context("spawn")
    shared = [_shared(task) for task in data]
    waiting, failures = list(pieces), {}
    workers: list[_Worker] = []
    try:
        workers = [_Worker(context, shared, folder, work) for _ in range(count)]
        for worker in workers:
            worker.give(waiting.pop(0))
        while any(worker.piece for worker in workers):
            busy = {worker.connection: worker for worker in workers if worker.piece}
            for connection in wait(list(busy)):
                worker = busy[connection]
                assert worker.piece is not None
                try:
                    event = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join()
                    event = Event("failed", worker.piece.name, reason=_death(worker.process.exitcode))
                    workers[workers.index(worker)] = worker = _Worker(context, shared, folder, work)
                if event.kind == "failed":
                    failures[event.piece] = event.reason
                if event.kind in ("failed", "done"):
                    worker.piece = None
                    if waiting:
                        worker.give(waiting.pop(0))
                listener(event)
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
    return failures


def _shared(task: TaskData) -> TaskData:
    for tensor in (task.train_x, task.train_y, task.test_x, task.test_y):
        tensor.share_memory_()
    return task


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = "; was there enough memory?" if name == "SIGKILL" else ""
        return f"the worker process was ended by {name}{hint}"
    return f"the worker process ended by itself with code {code}"


multiprocessing.allow_connection_pickling()
