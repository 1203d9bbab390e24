"""Workers on many machines, with Ray (the extra `ray`); each piece of work is a Ray task.

What a task is given and returns stays in Ray's memory. A cluster that is started here does not spill it to disk; of a
cluster that is running already, its operator decides.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from clpu.errors import BadSetting, WorkerFailed
from clpu.workers.workers import RETRIES, Answer, Workers, answer


@contextmanager
def session(workers: int, address: str | None, *, spill: bool = True) -> Iterator[Any]:
    """The module `ray`, connected to a cluster: the one that this process uses already, one at an address, or a new
    one on this machine, which ends with the block."""
    try:
        import ray
    except ImportError:
        raise BadSetting("the engine ray needs Ray: pip install ray") from None
    mine = not ray.is_initialized()
    if mine:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        if not address and not spill:
            options["_system_config"] = {"automatic_object_spilling_enabled": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def answers(
    workers: Workers, work: Callable[[Any, Any], Any], setup: Any, pieces: Sequence[Any]
) -> Iterator[tuple[int, Answer]]:
    """What the workers answer to each piece, with its number, in the order in which they are done."""
    with session(workers.count, workers.address, spill=False) as ray:
        stored = ray.put(setup)
        remote = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=False)(answer)
        waiting = list(range(len(pieces)))
        running: dict[Any, int] = {}
        while waiting or running:
            while waiting and len(running) < workers.count:
                number = waiting.pop(0)
                running[remote.remote(work, stored, pieces[number])] = number
            for reference in ray.wait(list(running))[0]:
                number = running.pop(reference)
                try:
                    found = ray.get(reference)
                except ray.exceptions.RayError as error:
                    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
                    reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
                    raise WorkerFailed(f"a worker on the cluster failed: {reason:.300}") from None
                yield number, found
