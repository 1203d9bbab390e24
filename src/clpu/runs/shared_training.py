"""Training that methods have in common, done once.

Seq, EWC, LwF, ER, DER++ and both forms of CLPU-DER++ learn their first task in exactly the same way, by plain gradient
descent on its own data, and so do Ind and CLPU-DER++ (scratch) their temporary ones; the main networks of both forms of
CLPU-DER++ are the same until the first merge. Whoever runs several methods with the same seeds can have this
done once: equal starts, data and settings give equal bits, so the result is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from clpu import machine
from clpu.io import canonical, sha256
from clpu.learning.batches import Examples
from clpu.learning.memory import Memory
from clpu.methods import Method
from clpu.methods.networks import NetworkMethod
from clpu.methods.plugins import is_ours
from clpu.methods.replay import ReplayMethod
from clpu.networks.body import Body
from clpu.networks.learner import QuadraticPenalty
from clpu.networks.linear import Linear
from clpu.networks.network import Network
from clpu.runs.jobs import Job, write_arrays
from clpu.settings import Training
from clpu.state import Leaf, State

Trained = tuple[Network, Memory | None]


#: The folder among jobs in which they leave training for one another.
SHARED = "shared"


def shared_folder(folder: Path, job: Job) -> Path:
    """Return the folder in which jobs on machines that compute alike leave training for one another."""
    return folder / SHARED / machine.here(job.device).key


class SharedFolder:
    """Results of training as files. One that is missing or damaged is computed again.

    `seconds` is how long the training took whose results were taken from the folder.
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


def sharing(method: type[Method], place: SharedFolder) -> type[Method]:
    """The method, taking training that another one has done from a folder, and leaving its own there.

    Only methods that train with our own functions share; a user's network is not shared either.
    """
    if not issubclass(method, NetworkMethod) or any(
        getattr(method, name) is not getattr(NetworkMethod, name) for name in _USED
    ):
        return method
    bases: tuple[type, ...] = (_SharedPlain, method)
    if issubclass(method, ReplayMethod) and is_ours(_first(method, "train_with_replay")):
        bases = (_SharedReplay, *bases)
    # The name, the traits and the settings are the method's own.
    made: type[Method] = type(method.__name__, bases, {"place": place, "original": method})
    return made


#: The functions that plain training calls.
_USED = ("train_plain", "batches", "augmentation", "reservoir", "rehearsal", "generators", "with_fresh_head", "fit")


def _first(method: type[Method], name: str) -> str:
    """The module that defines a method's function."""
    function: Any = getattr(method, name)
    return f"{function.__module__}.{function.__qualname__}"


class _SharedPlain:
    """Plain training, done once for all methods that would do the same."""

    place: SharedFolder

    def _is_custom(self: Any, body: Body) -> bool:
        """Whether a body may depend on more than its tensors and the blueprint, as a user's may."""
        return self.blueprint.users or not is_ours(type(body).__module__)

    def train_plain(
        self: Any, task: str, data: Examples, start: Network, penalty: QuadraticPenalty | None = None
    ) -> Trained:
        def train() -> Trained:
            return NetworkMethod.train_plain(self, task, data, start, penalty)

        # A third task on top of others is hardly ever learned in the same way by a different method.
        if penalty is not None or len(start.heads) > 1 or self._is_custom(start.body):
            return train()
        size = getattr(self.settings, "memory", None)
        return _once(self, task, data, start, [task], train, ["plain"], {}, {size, None})


class _SharedReplay:
    """Training with replay of one task, which both forms of CLPU-DER++ do alike."""

    place: SharedFolder
    original: type[ReplayMethod]

    def train_with_replay(
        self: Any, state: State, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> Trained:
        def train() -> Trained:
            trained: Trained = super(_SharedReplay, self).train_with_replay(state, task, data, network, past)  # type: ignore[misc]
            return trained

        if len(past) != 1 or self._is_custom(network.body):
            return train()
        way = [
            "replay",
            _first(self.original, "train_with_replay"),
            _first(self.original, "replay_loss"),
            self.settings,
        ]
        return _once(self, task, data, network, [task, *past], train, way, past, {self.settings.memory})


def _once(
    method: Any,
    task: str,
    data: Examples,
    start: Network,
    tasks: Sequence[str],
    train: Callable[[], Trained],
    way: Sequence[object],
    past: Mapping[str, Memory],
    sizes: set[int | None],
) -> Trained:
    """Return the result of `train()`, done once for all methods that would do the same.

    The outcome may depend on the start, the task's data, the seeds, the settings of `Training` and the memory's
    size, on the memories of past tasks, whose heads it may change, and on the way of training.
    """
    size = getattr(method.settings, "memory", None)
    blueprint = method.blueprint
    known = [method.seeds, blueprint.name, blueprint.settings, data.labels, method.device, *way]
    known += [getattr(method.settings, field.name) for field in fields(Training)]
    named = {**start.body.tensors, "x": data.x, "y": data.y, **_heads(start, tasks)}
    for name, memory in past.items():
        named |= {f"memory {name}/{part}": tensor for part, tensor in memory.tensors().items()}
    begin = Leaf(named).sha256
    keys = {kept: sha256(canonical([task, list(past), begin, *map(str, [*known, kept])])) for kept in sizes}
    found = method.place.get(keys[size])
    if found is not None:
        steps = len(method.batches(task, data))
        method.progress("learn", steps, steps)
        return _unpacked({n: t.to(method.device) for n, t in found.items()}, start, tasks)
    began = time.perf_counter()
    network, made = train()
    for kept, key in keys.items():
        tensors = _packed(network, tasks, None if kept is None else made)
        method.place.put(key, tensors, time.perf_counter() - began)
    return network, made


def _packed(network: Network, tasks: Sequence[str], memory: Memory | None) -> dict[str, Tensor]:
    """A network that just learned the first of some tasks, with the heads of all, and its memory, as tensors."""
    tensors = {f"body/{n}": t for n, t in network.body.tensors.items()} | _heads(network, tasks)
    return tensors | {f"memory/{n}": t for n, t in (memory.tensors() if memory else {}).items()}


def _unpacked(tensors: Mapping[str, Tensor], start: Network, tasks: Sequence[str]) -> Trained:
    """The same again, for a network that had this start."""

    def part(name: str) -> dict[str, Tensor]:
        return {n.removeprefix(name): t for n, t in tensors.items() if n.startswith(name)}

    memory = part("memory/")
    network = Network(start.body.with_tensors(part("body/")), start.heads, start.pixels)
    for number, task in enumerate(tasks):
        head = part(f"head {number}/")
        network = network.with_head(task, Linear(head["weight"], head["bias"]))
    return network, Memory(memory["x"], memory["y"], memory.get("logits")) if memory else None


def _heads(network: Network, tasks: Sequence[str]) -> dict[str, Tensor]:
    """The heads of some tasks by their numbers; a network may not have a fresh one yet."""
    named: dict[str, Tensor] = {}
    for number, task in enumerate(tasks):
        if task in network.heads:
            head = network.heads[task]
            named |= {f"head {number}/weight": head.weight, f"head {number}/bias": head.bias}
    return named
