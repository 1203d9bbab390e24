"""What a method is, and what it has at hand: networks, memories, the training loop and its random numbers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from clpu.augment import crop_and_flip
from clpu.errors import BadSetting
from clpu.losses import Loss, cross_entropy
from clpu.memory import Memory, Rehearsal, Reservoir
from clpu.methods import alone
from clpu.methods.alone import Shared
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.descent import Descent, Pull
from clpu.networks.network import Network
from clpu.randomness import generators
from clpu.requests import Ledger
from clpu.settings import Training
from clpu.training import Augment, Batch, Batches, Examples, Step, Steps, fit, unchanged

#: The methods by name, in the order of the paper's tables.
METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound="type[Method]")


def register(cls: M) -> M:
    """Make a method known by its name (a class decorator)."""
    if METHODS.get(cls.name, cls).__qualname__ != cls.__qualname__:
        raise BadSetting(f"there is a method {cls.name!r} already; give yours another name")
    METHODS[cls.name] = cls
    return cls


@dataclass
class State:
    """All that a method has learned. Whatever belongs to one task stands under that task's name.

    The values are never changed in place, so a shallow copy is a snapshot.
    """

    inputs: Inputs | None = None
    ledger: Ledger = field(default_factory=Ledger)
    main: Network | None = None
    isolated: dict[str, Network] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    extras: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def copy(self) -> State:
        return replace(
            self,
            ledger=self.ledger.copy(),
            isolated=dict(self.isolated),
            memories=dict(self.memories),
            extras=dict(self.extras),
        )

    def drop(self, task: str) -> None:
        """Remove all that stands under a task's name; inputs may have any shape again once nothing is left."""
        self.ledger.forgotten(task)
        for part in (self.isolated, self.memories, self.extras):
            part.pop(task, None)
        if self.main is None and not self.ledger:
            self.inputs = None


class Method(ABC):
    """How an agent learns, remembers and forgets.

    A method defines `learn` and, where they do something, `keep` and `forget`. It reads and writes
    `self.main` (the main network), `self.isolated` (a network a task), `self.memories` (a memory a task) and
    `self.extras` (further tensors a task); the agent checks requests, keeps the ledger, drops what stands
    under a forgotten task's name, and puts everything back if a request fails.
    """

    name: ClassVar[str]
    #: Whether the state after any stream equals, bit by bit, that after its counterfactual.
    exact: ClassVar[bool] = False
    Settings: ClassVar[type[Training]] = Training
    #: What is kept of each task besides networks ("memory", "logits"); saved states are checked by it. None: anything.
    keeps: ClassVar[tuple[str, ...] | None] = None

    def __init__(
        self,
        settings: Any,
        blueprint: Blueprint,
        seeds: Sequence[int],
        progress: Callable[[str, int, int], None],
    ) -> None:
        self.settings = settings
        self.blueprint = blueprint
        self.seeds = tuple(seeds)
        self.device = blueprint.device
        self.progress = progress
        self.state = State()
        #: Where learning that other methods have in common with this one is done once; nowhere, unless told.
        self.shared: Shared | None = None

    @abstractmethod
    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        """Learn a new task; `self.ledger` holds the tasks before it."""

    def keep(self, task: str) -> None:
        """Remember a temporary task for good. Nothing to do for a method that learns T as it learns R."""

    def forget(self, task: str) -> None:
        """Forget a temporary task, which is still in the ledger. What stands under its name is dropped afterwards."""

    def network_of(self, task: str) -> Network:
        """The network that answers for a task, known or not."""
        return self.main

    def extra_shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a task's extras, without the replica axis, by which saved states are checked."""
        return {}

    # What a method has at hand.

    @property
    def ledger(self) -> Ledger:
        return self.state.ledger

    @property
    def main(self) -> Network:
        """The main network; as drawn for the seed as long as nothing was learned into it."""
        return self.state.main or self.fresh_network(None)

    @main.setter
    def main(self, network: Network) -> None:
        self.state.main = network

    @property
    def isolated(self) -> dict[str, Network]:
        return self.state.isolated

    @property
    def memories(self) -> dict[str, Memory]:
        return self.state.memories

    @property
    def extras(self) -> dict[str, dict[str, Tensor]]:
        return self.state.extras

    def others(self, task: str) -> list[str]:
        """The tasks alive, but for one."""
        return [t for t in self.ledger if t != task]

    def fresh_network(self, task: str | None) -> Network:
        """A network without heads, drawn for (seed, task)."""
        assert self.state.inputs is not None
        return self.blueprint.network(self.state.inputs, self.seeds, task)

    def with_fresh_head(self, network: Network, task: str, classes: int) -> Network:
        """The network with a head for the task, drawn for (seed, task)."""
        return network.with_head(task, self.blueprint.head(network.body.features, classes, self.seeds, task))

    def sources(self, task: str, purpose: str) -> list[torch.Generator]:
        """The random numbers of one purpose of one task, a generator a replica."""
        return generators(self.seeds, task, purpose)

    def batches(self, task: str, data: Examples, purpose: str = "order") -> Batches:
        """The passes over a task's data that one learning makes."""
        augment = self.augmentation(task, purpose)
        return Batches(data, self.settings.epochs, self.settings.batch_size, self.sources(task, purpose), augment)

    def augmentation(self, task: str, purpose: str) -> Augment:
        """What `settings.augment` does to a batch of images (K, batch, channels, height, width)."""
        if self.settings.augment == "none":
            return unchanged
        sources = self.sources(task, f"augment {purpose}")
        return lambda x: crop_and_flip(x, sources)

    def reservoir(self, task: str, batches: Batches) -> Reservoir:
        """An empty memory for a task that is about to be learned."""
        return Reservoir(batches, self.settings.memory, self.sources(task, "reservoir"))

    def rehearsal(self, memories: Mapping[str, Memory], task: str, purpose: str) -> Rehearsal:
        """Draws from memories, `settings.rehearsed` examples a step."""
        classes = {t: len(self.ledger[t].labels) for t in memories}
        augment = self.augmentation(task, purpose)
        return Rehearsal(memories, classes, self.settings.rehearsed, self.sources(task, purpose), augment)

    def learned_alone(
        self, task: str, data: Examples, start: Network, pull: Pull | None = None
    ) -> tuple[Network, Memory | None]:
        """The network after plain SGD on the task's own data, and a memory of it if the settings have one."""
        start = self.with_fresh_head(start, task, data.classes)
        size = getattr(self.settings, "memory", None)

        def learn() -> tuple[Network, Memory | None]:
            batches = self.batches(task, data)
            reservoir = None if size is None else self.reservoir(task, batches)

            def loss(net: Network, batch: Batch) -> Loss:
                outputs = net.logits((task, batch.x))[0]
                if reservoir is not None:
                    reservoir.see(batch, outputs)
                return cross_entropy(outputs, batch.y)

            network = self.fit(task, start, batches, loss, pull=pull)
            return network, None if reservoir is None else reservoir.memory()

        # A third task on top of others is hardly ever learned in the same way by another method.
        if pull is not None or min(len(self.ledger), len(start.heads)) > 1:
            return learn()
        return self._learned_once(task, data, start, learn, ["alone"], also_without_memory=True)

    def _learned_once(
        self,
        task: str,
        data: Examples,
        start: Network,
        learn: Callable[[], tuple[Network, Memory | None]],
        way: Sequence[object],
        past: Mapping[str, Memory] | None = None,
        also_without_memory: bool = False,
    ) -> tuple[Network, Memory | None]:
        """What `learn()` gives; done once for all methods that would do the same, where there is a place for it.

        The outcome may depend on the start, the task's data, the seeds, the settings of `Training` and the memory's
        size, on the memories of past tasks, whose heads it may change, and on the way of learning: its name, and
        whatever else matters.
        """
        if self.shared is None or self.blueprint.module is not None or self._trains_in_its_own_way():
            return learn()
        size, past = getattr(self.settings, "memory", None), past or {}
        known = [self.seeds, self.blueprint.name, self.blueprint.settings, data.labels, self.device, *way]
        known += [getattr(self.settings, field.name) for field in fields(Training)]
        wanted = {size, None} if also_without_memory else {size}
        keys = {kept: alone.key_of(start, task, data, past, [*known, kept]) for kept in wanted}
        found = self.shared.get(keys[size])
        if found is not None:
            steps = len(self.batches(task, data))
            self.progress("learn", steps, steps)
            return alone.unpacked({n: t.to(self.device) for n, t in found.items()}, start, [task, *past])
        began = time.perf_counter()
        network, memory = learn()
        for kept, key in keys.items():
            tensors = alone.packed(network, [task, *past], None if kept is None else memory)
            self.shared.put(key, tensors, time.perf_counter() - began)
        return network, memory

    def _trains_in_its_own_way(self) -> bool:
        used = ("batches", "augmentation", "reservoir", "rehearsal", "sources", "with_fresh_head", "learned_alone")
        return any(getattr(type(self), name) is not getattr(Method, name) for name in (*used, "_learned_once", "fit"))

    def fit(
        self,
        task: str,
        network: Network,
        steps: Steps[Step],
        loss: Callable[[Network, Step], Loss | Tensor],
        purpose: str = "learn",
        pull: Pull | None = None,
        head_only: bool = False,
    ) -> Network:
        """Train a copy of the network by SGD on a loss, with the settings' learning rate and weight decay."""
        descent = Descent(
            self.settings.lr,
            self.settings.weight_decay,
            pull,
            head_only,
            self.sources(task, f"module {purpose}"),
        )
        return fit(network, steps, loss, descent, lambda done, total: self.progress(purpose, done, total))
