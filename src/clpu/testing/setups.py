"""Tiny agents, tasks and streams that methods are checked on."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from clpu.agent import Agent
from clpu.errors import Error
from clpu.methods import METHODS, Method
from clpu.networks.blueprint import Blueprint
from clpu.networks.module_body import seeded
from clpu.requests import Instruction, Request, Stream
from clpu.settings import setting_fields
from clpu.state import State

#: Small enough for a check to take a moment, large enough for every code path.
TINY: dict[str, Any] = {
    "hidden": (12, 8),
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.01,
    "weight_decay": 0.0005,
    "scaling": "none",
}


def tiny(method: str) -> dict[str, Any]:
    """Those of the tiny settings that a registered method has on its own kind of network."""
    kind = METHODS[method]
    known = setting_fields(kind.Settings, Blueprint.settings_class(kind.default_network))
    return {name: value for name, value in TINY.items() if name in known}


#: Streams in which something is forgotten, in every way that matters; most continue after a forget request.
FORGETFUL = [
    "1T 1F",
    "1R 2T 2F 3R",
    "1T 2R 1F 3R",
    "2R 3R 1T 1F 4R 5T 5R",
    "1R 2T 3T 4R 2R 3F 5T 5F",
    "1T 1R 2T 3T 2F 2T 3R 2F 4R",
]
#: The same for methods that forget any task.
FORGETFUL_OF_ALL = ["1R 1F", "1R 2R 1F 3R", "1R 2T 2R 2F 1F 3T"]


def forgetful(method: type[Method]) -> list[str]:
    """The streams of forgetting that a method's trait allows."""
    return [*FORGETFUL, *(FORGETFUL_OF_ALL if method.forgets in ("tasks", "records") else [])]


Check = Callable[[type[Method]], None]


def make_task(task: str, examples: int = 48, classes: int = 3, shape: int | tuple[int, ...] = 6) -> tuple[Any, Any]:
    """Well separated Gaussian clusters, one per class, drawn for the task's name; labels are 7, 17, 27, …"""
    rng = np.random.default_rng([*task.encode()])
    size = int(np.prod(shape))
    centres = rng.normal(size=(classes, size))
    centres *= 4 / np.linalg.norm(centres[:, None] - centres, axis=-1)[np.triu_indices(classes, 1)].min()
    y = np.arange(examples) % classes
    x = centres[y] + 0.3 * rng.normal(size=(examples, size))
    return x.astype(np.float32).reshape(examples, *np.atleast_1d(shape)), 7 + 10 * y


def run_stream(
    stream: Stream | str,
    method: str | type[Method],
    data: Callable[[str], tuple[Any, Any]] = make_task,
    **settings: Any,
) -> Agent:
    """A new agent that has handled a stream; `data` gives each task's training data."""
    agent = Agent(method, **settings)
    return continue_stream(agent, stream, data)


def continue_stream(agent: Agent, stream: Stream | str, data: Callable[[str], tuple[Any, Any]] = make_task) -> Agent:
    """The agent after it has handled a further stream, which need not be legal by itself."""
    requests = stream if isinstance(stream, Stream) else [Request.parse(word) for word in shlex.split(stream)]
    for request in requests:
        learns = request.task not in agent.tasks and request.instruction is not Instruction.FORGET
        if not learns and request.instruction is not Instruction.ADD:
            agent.handle(request)
            continue
        x, y = data(request.task)[:2]
        if agent.forgets != "records":
            agent.handle(request, x, y)
            continue
        add = request.instruction is Instruction.ADD
        x, y, people, records = make_records(request.task, x, y, "more" if add else "")
        left = [not any(p.covers(int(k), who, one) for p in request.parts) for k, who, one in zip(y, people, records)]
        if any(left):  # a counterfactual may leave out all that a request brought
            agent.handle(request, x, y, people=people, records=records)
    return agent


#: The people whom the records of `make_records` are about.
PEOPLE = ("ann", "bob", "cy", "dee")


def make_records(task: str, x: Any, y: Any, part: str = "") -> tuple[Any, Any, list[list[str]], list[str]]:
    """Half of some data, `part` "more" being the other half, with one or two people and an id for each record."""
    half = slice(1, None, 2) if part else slice(0, None, 2)
    numbers = range(len(y))[half]
    people = [[PEOPLE[n // 2 % 4]] + ([PEOPLE[n // 8 % 4]] if n % 3 == 0 else []) for n in numbers]
    return x[half], y[half], people, [f"{task}-{n}" for n in numbers]


@dataclass(frozen=True)
class Setup:
    """The network that a method is checked on, by name or as a factory of a module, and the shape of one input."""

    network: str | Callable[[], nn.Module] = "mlp"
    shape: tuple[int, ...] = (16,)
    settings: Mapping[str, Any] = field(default_factory=lambda: TINY)

    def made(self) -> str | nn.Module:
        """The network as an agent takes it; a factory makes the same weights each time."""
        if isinstance(self.network, str):
            return self.network
        with seeded(0, torch.device("cpu")):
            return self.network()

    def agent(self, method: type[Method], seeds: list[int] | None = None, seed: int = 0, **settings: Any) -> Agent:
        """A small agent; settings that the method or the network does not have are left out."""
        network = self.made()
        known = setting_fields(method.Settings, Blueprint.settings_class(network))
        chosen = {name: value for name, value in {**self.settings, **settings}.items() if name in known}
        return Agent(method, network, seed, seeds=seeds, **chosen)

    def restored(self, method: type[Method], state: State | bytes, progress: Any = None) -> Agent:
        """An agent that continues from a saved state."""
        module = None if isinstance(self.network, str) else self.made()
        return Agent.from_state(state, method=method, network=module, progress=progress)  # type: ignore[arg-type]

    def task(self, name: str, examples: int = 48, classes: int = 3) -> tuple[Any, Any]:
        return make_task(name, examples, classes, self.shape)

    def run(self, stream: Stream | str, method: type[Method], **options: Any) -> Agent:
        return self.continued(self.agent(method, **options), stream)

    def continued(self, agent: Agent, stream: Stream | str) -> Agent:
        return continue_stream(agent, stream, self.task)


MLP = Setup()
RESNET = Setup("resnet18", (1, 8, 8), {"width": 1, "epochs": 1, "batch_size": 24, "lr": 0.01, "weight_decay": 0.0005})


Refused = list[tuple[type[Error], Callable[[], object]]]


def check_refused(agent: Agent, refused: Refused) -> None:
    """Each attempt raises its error and leaves the agent as it was."""
    before = agent.digest()
    for error, attempt in refused:
        try:
            attempt()
        except error:
            assert agent.digest() == before, f"a request refused with {error.__name__} left something behind"
        else:
            raise AssertionError(f"expected {error.__name__}")
