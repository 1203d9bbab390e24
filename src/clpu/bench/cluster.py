"""The same pieces of work on many machines, with Ray (the extra `ray`, `clpu bench --engine ray`).

Each piece is a Ray task. Data go into the object store once, results come back as bytes and are saved by the
program that was called, so machines need no common disk. A piece whose machine or process dies is done again.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clpu.bench.engine import Event, Listener, Work, _do, file_of, measure
from clpu.bench.pieces import Piece, TaskData
from clpu.errors import BadSetting
from clpu.io import write_atomically
from clpu.methods import plugins

#: How often a piece is tried again after its process died.
RETRIES = 3
SECONDS_BETWEEN_LOOKS = 0.2


def run_pieces(
    pieces: Sequence[Piece],
    data: Sequence[TaskData],
    folder: Path,
    workers: int,
    listener: Listener,
    work: Work = measure,
    address: str | None = None,
) -> dict[str, str]:
    """Perform pieces on a Ray cluster, at most `workers` at a time, and save each in the folder."""
    try:
        import ray
    except ImportError:
        raise BadSetting("the engine ray needs Ray: pip install ray") from None
    folder.mkdir(parents=True, exist_ok=True)
    mine = not ray.is_initialized()
    if mine:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        return _run(ray, pieces, data, folder, workers, listener, work)
    finally:
        if mine:
            ray.shutdown()


def _run(
    ray: Any,
    pieces: Sequence[Piece],
    data: Sequence[TaskData],
    folder: Path,
    workers: int,
    listener: Listener,
    work: Work,
) -> dict[str, str]:
    stored = ray.put([_packed(task) for task in data])
    events = ray.remote(num_cpus=0)(_Events).remote()
    remote = ray.remote(max_retries=RETRIES, retry_exceptions=False)(_perform)
    waiting, failures, own = list(pieces), {}, dict(plugins.LOADED)
    running: dict[Any, Piece] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            piece = waiting.pop(0)
            needs = {"num_cpus": 1, "num_gpus": 1 if piece.device.startswith("cuda") else 0}
            running[remote.options(**needs).remote(piece, stored, events, work, own)] = piece
        finished, _ = ray.wait(list(running), timeout=SECONDS_BETWEEN_LOOKS)
        for event in ray.get(events.take.remote()):
            listener(event)
        for reference in finished:
            piece = running.pop(reference)
            reason = _collect(ray, reference, file_of(folder, piece))
            if reason:
                failures[piece.name] = reason
            listener(Event("failed" if reason else "done", piece.name, reason=reason))
    return failures


def _collect(ray: Any, reference: Any, path: Path) -> str:
    """Save a piece's bytes, whole or not at all; the reason if it failed."""
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
    piece: Piece, packed: list[Any], events: Any, work: Work, own: dict[str, tuple[str, bytes]]
) -> tuple[str, bytes]:
    """One piece, in a Ray worker: the reason if it failed, and the file that it would have saved."""
    trouble = plugins.load_again(own)
    if trouble:
        return trouble, b""
    data = [_unpacked(task) for task in packed]
    with tempfile.TemporaryDirectory() as scratch:
        reason = _do(piece, data, Path(scratch), events.tell.remote, work)
        return reason, b"" if reason else file_of(Path(scratch), piece).read_bytes()


class _Events:
    """Collects what workers tell, until somebody asks; lives in the cluster."""

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
