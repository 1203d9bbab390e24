"""Worker processes on this machine: one that dies is replaced, and its piece of work done again."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from clpu.errors import WorkerFailed
from clpu.workers.workers import RETRIES, Answer, Workers, answer


class Process:
    """A spawned process, the connection to it, and what it is working on."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        theirs: Any
        self.connection: Any
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        try:
            self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerFailed(f"this cannot be sent to worker processes: {error!s:.200}") from None
        theirs.close()
        self.job: Any = None

    def give(self, job: Any) -> None:
        """Hand out a job; if the process is dead, the connection will tell."""
        self.job = job
        with suppress(OSError):
            self.connection.send(job)

    def receive(self) -> Any:
        """What the process sent; `EOFError` if it died."""
        try:
            return self.connection.recv()
        except OSError:  # killed in the middle of a message
            raise EOFError from None

    def death(self) -> str:
        """How the process died."""
        self.process.join()
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = "; was there enough memory?" if name == "SIGKILL" else ""
            return f"the worker process was ended by {name}{hint}"
        return f"the worker process ended by itself with code {code}"


def end(processes: Sequence[Process]) -> None:
    """End processes, whatever they are doing."""
    for process in processes:
        process.connection.close()
        process.process.terminate()
    for process in processes:
        process.process.join()


def serve(connection: Connection, work: Callable[[Any, Any], Any], setup: Any) -> None:
    """A worker's life: pieces come in, answers go out, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    with suppress(EOFError, OSError):
        while True:
            _, piece = connection.recv()
            connection.send(answer(work, setup, piece))


def answers(
    workers: Workers, work: Callable[[Any, Any], Any], setup: Any, pieces: Sequence[Any]
) -> Iterator[tuple[int, Answer]]:
    """What the workers answer to each piece, with its number, in the order in which they are done."""
    waiting, deaths = deque(enumerate(pieces)), Counter[int]()
    processes: list[Process] = []
    try:
        for _ in range(min(workers.count, len(pieces))):
            processes.append(Process(serve, work, setup))
            processes[-1].give(waiting.popleft())
        while busy := {process.connection: process for process in processes if process.job}:
            for connection in wait(list(busy)):
                process = busy[connection]
                number, found = process.job[0], None
                try:
                    found = process.receive()
                except EOFError:
                    deaths[number] += 1
                    if deaths[number] > RETRIES:
                        raise WorkerFailed(
                            f"{process.death()}, {deaths[number]} times with the same piece of work (a script that "
                            "uses workers must do so below: if __name__ == '__main__')"
                        ) from None
                    waiting.appendleft(process.job)
                    processes[processes.index(process)] = process = Process(serve, work, setup)
                process.job = None
                if waiting:
                    process.give(waiting.popleft())
                if found is not None:
                    yield number, found
    finally:
        end(processes)
