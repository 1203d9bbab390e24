"""How many workers share a request's work, and where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import clpu.errors
from clpu.errors import BadSetting, Error, WorkerFailed

Setup = TypeVar("Setup")
Piece = TypeVar("Piece")
Result = TypeVar("Result")

#: What a worker answers: "done" with the fingerprint of its arithmetic and a result, or an error's name and message.
Answer = tuple[str, str, Any]

#: How often a piece is handed out again after the process that had it died.
RETRIES = 3


@dataclass(frozen=True)
class Workers:
    """`count` worker processes of an engine: "local", on this machine, or "ray", on a cluster.

    `address` is that of a running cluster; without one, Ray runs on this machine. Workers start when a request has
    enough work for two, and end with it.
    """

    count: int = 1
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= 4096:
            raise BadSetting(f"workers must be an integer from 1 to 4096, got {self.count!r:.80}")
        if self.engine not in ("local", "ray"):
            raise BadSetting(f"the engine of workers must be local or ray, got {self.engine!r:.80}")
        if self.address is not None and self.engine != "ray":
            raise BadSetting("an address goes with the engine ray")

    def share(self, pieces: Sequence[object]) -> bool:
        """Whether there is work for two."""
        return self.count > 1 and len(pieces) > 1

    def map(
        self, work: Callable[[Setup, Piece], Result], setup: Setup, pieces: Sequence[Piece], *, alike: bool = False
    ) -> Iterator[tuple[int, Result]]:
        """Each piece's number and work(setup, piece), in the order in which they are done.

        `work` is a function of a module. A piece whose process dies is handed out again, `RETRIES` times; then, and if
        `work` fails, `WorkerFailed` is raised; an `Error` that `work` raises is raised here. With `alike`, all of them
        must compute floats in the same way.
        """
        if self.engine == "ray":
            from clpu.workers.cluster import answers
        else:
            from clpu.workers.processes import answers
        first = ""
        for number, (kind, about, value) in answers(self, work, setup, pieces):
            if kind != "done":
                raise _error(kind, about)
            first = first or about
            if alike and about != first:
                raise WorkerFailed(
                    "the workers' machines compute floats differently, so that the result would depend on who did "
                    "which part; use machines of one kind"
                )
            yield number, value


#: No workers: everything is computed in the calling process.
ONE = Workers()


def as_workers(given: object) -> Workers:
    """What a user gave as `workers`: a number of processes on this machine, or `Workers`."""
    return given if isinstance(given, Workers) else Workers(given)  # type: ignore[arg-type]


def answer(work: Callable[[Any, Any], Any], setup: Any, piece: Any) -> Answer:
    """In a worker: do a piece of work, with one thread."""
    import traceback

    from clpu.threads import computing_with

    try:
        with computing_with(1):
            return "done", _fingerprint(), work(setup, piece)
    except (Error, OSError, MemoryError) as error:
        return type(error).__name__, str(error), None
    except Exception:
        return "failed", traceback.format_exc(limit=-3), None


@lru_cache(maxsize=1)
def _fingerprint() -> str:
    from clpu import machine

    return machine.fingerprint()


def _error(kind: str, message: str) -> Error:
    """The error that was raised in a worker; one that is not ours as `WorkerFailed`."""
    found = getattr(clpu.errors, kind, None)
    if isinstance(found, type) and issubclass(found, Error):
        return found(message)
    return WorkerFailed(f"a worker failed: {kind}: {message}" if kind != "failed" else f"a worker failed: {message}")
