"""A piece of the audit's work: some runs of a stream, observed after its forgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from torch import nn

from clpu import machine
from clpu.agent import Agent, Progress
from clpu.audit.bitwise import fingerprint
from clpu.audit.observed import LATER, Observed, Sizes, accuracy, observe
from clpu.bench.engine import shared_folder
from clpu.bench.pieces import Piece, TaskData, handle, share, write_arrays
from clpu.errors import BadRun
from clpu.methods import Method
from clpu.requests import Stream

#: (number of a request, name of a forgotten task): what is observed, and when.
Sight = tuple[int, str]


@dataclass(frozen=True)
class Probe(Piece):
    """Runs to train. `sights` are what to observe; without any, the bits are taken after `outputs_after`."""

    sights: tuple[Sight, ...] = ()
    sizes: Sizes = field(default_factory=lambda: Sizes(0, 0, 0, 1))
    later: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """What came out: observations, or fingerprints after some requests."""

    observed: dict[Sight, Observed]
    fingerprints: dict[int, dict[str, str]]


def perform(
    probe: Probe,
    data: Sequence[TaskData],
    progress: Callable[[int, Progress | None], None] = lambda n, p: None,
    method: type[Method] | None = None,
    network: nn.Module | None = None,
    shared: Path | None = None,
) -> Seen:
    """Train the runs of a probe through their stream and look at them.

    `shared` is a folder for learning that methods have in common. Bits are never taken from it: runs that are
    compared bit by bit are trained independently.
    """
    by_name = {task.name: task for task in data}
    agent = Agent(
        probe.method if method is None else method,
        probe.network if network is None else network,
        seeds=probe.seeds,
        device=probe.device,
        threads=probe.threads,
        **probe.settings,
    )
    share(agent, None if probe.outputs_after else shared)
    observed: dict[Sight, Observed] = {}
    prints: dict[int, dict[str, str]] = {}
    stream = Stream(probe.requests)
    for number in range(len(stream) + 1):
        if number:
            agent.progress = lambda step, number=number: progress(number, step)
            handle(agent, stream[number - 1], by_name)
            agent.progress = None
            progress(number, None)
        if number in probe.outputs_after:
            prints[number] = fingerprint(agent, data)
        tasks = [task for at, task in probe.sights if at == number]
        if tasks:
            later = agent.copy()
            later.learn(LATER, by_name[probe.later].train_x, by_name[probe.later].train_y)
            for task in tasks:
                seen = observe(agent, by_name[task], probe.sizes)
                observed[number, task] = replace(seen, relapse=accuracy(later, by_name[task], probe.sizes))
    return Seen(observed, prints)


def work(probe: Probe, data: Sequence[TaskData], path: Path, progress: Callable[[int, Progress | None], None]) -> None:
    """What the engine does with a probe of a registered method."""
    save(path, probe, perform(probe, data, progress, shared=shared_folder(path.parent, probe)))


def save(path: Path, probe: Probe, seen: Seen) -> None:
    """Write a finished probe, whole or not at all, with what computed it."""
    arrays: dict[str, NDArray[Any]] = {}
    for (number, task), observed in seen.observed.items():
        arrays |= {f"{name}/{number}/{task}": array for name, array in observed.arrays().items()}
    prints = json.dumps({str(number): parts for number, parts in seen.fingerprints.items()})
    metadata = {"piece": probe.described(), "fingerprints": prints, "machine": machine.here(probe.device).to_text()}
    # A file without tensors is fine for safetensors, but not for every version that reads it.
    write_arrays(path, arrays or {"none": np.zeros(1)}, metadata)


def load(path: Path, probe: Probe) -> Seen:
    """Read a finished probe; `BadRun` if the file is damaged or of other work."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        same = metadata["piece"] == probe.described()
        groups: dict[Sight, dict[str, Any]] = {}
        for key, array in arrays.items():
            if key != "none":
                name, number, task = key.split("/", 2)
                groups.setdefault((int(number), task), {})[name] = array
        observed = {sight: Observed(**parts) for sight, parts in groups.items()}
        prints = {int(number): parts for number, parts in json.loads(metadata["fingerprints"]).items()}
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"{path} is damaged: {error!s:.200}; remove it and run the same command again") from None
    if not same:
        raise BadRun(f"{path} is about other work than asked for; remove it and run the same command again")
    return Seen(observed, prints)
