"""A piece of work: one method, one stream of requests, some seeds; trained, and measured after each request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clpu import machine
from clpu.agent import Agent, Progress
from clpu.bench.shared_training import sharing
from clpu.errors import BadData, BadRun
from clpu.io import write_atomically
from clpu.methods import METHODS
from clpu.requests import Instruction, Request, Stream
from clpu.state import Leaf, State


@dataclass(frozen=True)
class TaskData:
    """A task's tensors; in shared memory, so that they exist once however many processes use them."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """What to do. `outputs_after` are the requests, counted from 1, after which all outputs are kept."""

    method: str
    group: str
    requests: str
    seeds: tuple[int, ...]
    network: str
    settings: dict[str, Any]
    outputs_after: tuple[int, ...]
    device: str = "cpu"
    threads: int = 1

    @property
    def name(self) -> str:
        return f"{self.method}--{self.group}--{self.seeds[0]}"

    def described(self) -> str:
        """All of it as text, to tell whether a file on disk is about the same work."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, eq=False)
class Measured:
    """What came out: accuracy (request, task, seed), log-probabilities {(request, task): (seed, image, class)}."""

    accuracy: NDArray[np.float64]
    outputs: dict[tuple[int, str], NDArray[np.float32]]
    bytes: list[int]
    seconds: list[float]
    evaluation_seconds: float


def perform(
    piece: Piece,
    data: Sequence[TaskData],
    progress: Callable[[int, Progress | None], None] = lambda n, p: None,
    shared: Path | None = None,
) -> Measured:
    """Train the replicas of a piece through their stream; `progress` gets the request's number and the step.

    `shared` is a folder in which pieces leave learning for others that would do the same.
    """
    stream, by_name = Stream(piece.requests), {task.name: task for task in data}
    place = None if shared is None else SharedFolder(shared)
    agent = Agent(
        METHODS[piece.method] if place is None else sharing(METHODS[piece.method], place),
        piece.network,
        seeds=piece.seeds,
        device=piece.device,
        threads=piece.threads,
        **piece.settings,
    )
    # A counterfactual may have no requests at all; then the fresh agent is what is measured.
    accuracy = np.zeros((max(1, len(stream)), len(data), len(piece.seeds)))
    outputs: dict[tuple[int, str], NDArray[np.float32]] = {}
    kept, seconds, evaluating = [], [], 0.0
    examiner = _Examiner(agent)
    for number, request in enumerate(stream, 1) if len(stream) else [(0, None)]:
        agent.progress = lambda step, number=number: progress(number, step)
        start, before = time.perf_counter(), place.seconds if place else 0.0
        if request is not None:
            handle(agent, request, by_name)
        # What another piece has learned is counted as if it had been learned here.
        saved = place.seconds - before if place else 0.0
        seconds.append(time.perf_counter() - start + saved)
        progress(number, None)
        start = time.perf_counter()
        for column, task in enumerate(data):
            log_p = examiner.log_probabilities(task)
            classes = torch.tensor(task.classes, device=log_p.device)
            right = classes[log_p.argmax(-1)] == task.test_y.to(log_p.device)
            accuracy[max(number - 1, 0), column] = right.double().mean(-1).cpu().numpy()
            if number in piece.outputs_after:
                outputs[number, task.name] = log_p.cpu().numpy()
        storage = agent.storage()
        kept.append((storage["main"] + sum(storage["tasks"].values())) // len(piece.seeds))
        evaluating += time.perf_counter() - start
    return Measured(accuracy, outputs, kept, seconds, evaluating)


def handle(agent: Agent, request: Request, data: dict[str, TaskData]) -> None:
    """Let an agent handle a request, with the task's training data where it learns."""
    if request.instruction is Instruction.FORGET or request.task in agent.tasks:
        agent.handle(request)
        return
    task = data[request.task]
    agent.handle(request, task.train_x, task.train_y)
    if agent.labels(request.task) != task.classes:
        raise BadData(f"task {task.name!r} has {len(task.classes)} classes, but its training data only some of them")


class _Examiner:
    """An agent's answers to the test sets; a question whose answer cannot have changed is not asked again."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._known: dict[str, tuple[State, Tensor]] = {}

    def log_probabilities(self, task: TaskData) -> Tensor:
        relevant = self.agent.state().only(task.name)
        before, log_p = self._known.get(task.name, (None, None))
        if log_p is None or before != relevant:
            log_p = F.log_softmax(self.agent.logits(task.name, task.test_x, len(task.classes)), -1)
            self._known[task.name] = relevant, log_p
        return log_p


class SharedFolder:
    """Results of learning as files. One that is missing or damaged is simply computed again.

    `seconds` is how long what was taken from here took to learn.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.seconds = path, 0.0

    def get(self, key: str) -> dict[str, Tensor] | None:
        try:
            with safetensors.safe_open(self.path / key, "numpy") as file:
                tensors = {name: torch.from_numpy(file.get_tensor(name)).clone() for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()
            seconds, same = float(metadata["seconds"]), metadata["sha256"] == Leaf(tensors).sha256
        except (OSError, safetensors.SafetensorError, KeyError, ValueError, TypeError):
            return None
        self.seconds += seconds if same else 0.0
        return tensors if same else None

    def put(self, key: str, tensors: dict[str, Tensor], seconds: float) -> None:
        arrays = {name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}
        with suppress(OSError):  # a full disk only means that nothing is shared
            write_arrays(self.path / key, arrays, {"seconds": str(seconds), "sha256": Leaf(tensors).sha256})


def save(path: Path, piece: Piece, measured: Measured) -> None:
    """Write a finished piece, whole or not at all, with what computed it."""
    tensors: dict[str, NDArray[Any]] = {f"{n}/{task}": a for (n, task), a in measured.outputs.items()}
    rest = {"bytes": measured.bytes, "seconds": measured.seconds, "evaluation": measured.evaluation_seconds}
    metadata = {
        "piece": piece.described(),
        "measured": json.dumps(rest),
        "machine": machine.here(piece.device).to_text(),
    }
    write_arrays(path, {"accuracy": measured.accuracy, **tensors}, metadata)


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically."""
    write_atomically(path, safetensors.numpy.save(arrays, metadata))


def is_whole(path: Path, piece: Piece) -> bool:
    """Whether a finished piece is there, not cut short, and the very work that is asked for."""
    try:
        metadata = _metadata(path)
        _recorded(metadata, path)
    except BadRun:
        return False
    return bool(metadata.get("piece") == piece.described())


def computed_by(path: Path) -> machine.Machine | None:
    """What computed a finished piece, or None if that was not recorded; `BadRun` if the file is damaged."""
    return _recorded(_metadata(path), path)


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise BadRun(f"{path} is damaged: {error!s:.200}") from None


def _recorded(metadata: dict[str, str], path: Path) -> machine.Machine | None:
    return machine.Machine.from_text(metadata["machine"], str(path)) if "machine" in metadata else None


def load(path: Path, piece: Piece) -> Measured:
    """Read a finished piece; `BadRun` if the file is damaged or of another piece."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        rest = json.loads(metadata["measured"])
        same = metadata["piece"] == piece.described()
        accuracy = arrays.pop("accuracy")
        outputs = {(int(n), task): a for (n, _, task), a in ((k.partition("/"), a) for k, a in arrays.items())}
        measured = Measured(accuracy, outputs, rest["bytes"], rest["seconds"], rest["evaluation"])
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{path} is damaged: {error!s:.200}") from None
    if not same:
        raise BadRun(f"{path} belongs to a different job")
    return measured
