"""The contract of a method, and the tools it has: networks, the training loop and random numbers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from clpu.errors import BadSetting, UnknownTask
from clpu.learning.augment import crop_and_flip
from clpu.learning.batches import Augment, Batches, Examples, unchanged
from clpu.learning.losses import Loss
from clpu.learning.randomness import generators
from clpu.methods.familiarity import NONE_OF_THESE, SHARPNESS, log_weights
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.fit import Step, Steps, fit
from clpu.networks.learner import Descent, Edit, QuadraticPenalty, Trainee
from clpu.networks.network import Network
from clpu.requests import Scope
from clpu.settings import Training
from clpu.state import Leaf, State, Task
from clpu.state.schema import Schema
from clpu.workers import ONE

#: The methods by name, in the order in which tables list them.
METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound="type[Method]")

#: What a method forgets exactly.
Forgets = Literal["nothing", "temporary", "tasks", "records"]


def register(cls: M) -> M:
    """Make a method known by its name (a class decorator)."""
    before = METHODS.get(cls.name)
    if before is not None and (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
        raise BadSetting(f"there is a method {cls.name!r} already; give yours a different name")
    METHODS[cls.name] = cls
    return cls


def find_method(method: object) -> type[Method]:
    """The method of that name, or the class itself; `BadSetting` for anything else."""
    if isinstance(method, type) and issubclass(method, Method):
        if inspect.isabstract(method) or not isinstance(getattr(method, "name", None), str):
            raise BadSetting(f"{method.__name__} is not a complete method: it needs a name and a learn()")
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise BadSetting(f"method must be one of {', '.join(METHODS)} or a Method class, got {method!r:.80}")
    return METHODS[method]


def label_of(name: str) -> str:
    """Return the name that tables show for a method: its label, or its name if it has none or is not registered."""
    method = METHODS.get(name)
    return (method.label if method else "") or name


class Method(ABC):
    """How an agent learns, remembers and forgets.

    `learn`, `keep` and `forget` take a state and return a new one. A method is built anew for each request, and
    nothing but the state survives it. The agent checks requests, and swaps the new state in when it is complete.
    """

    name: ClassVar[str]
    #: The name that tables show.
    label: ClassVar[str] = ""
    #: What it forgets exactly: afterwards the state equals, bit for bit, that of an agent that never had it.
    forgets: ClassVar[Forgets] = "nothing"
    #: Whether it is an upper bound, which learns each task separately: tables never mark it as best, and forward
    #: transfer is measured against it.
    upper_bound: ClassVar[bool] = False
    #: The network of an agent that was not given one.
    default_network: ClassVar[str] = "mlp"
    Settings: ClassVar[type] = Training
    #: Rough cost of the requests learn, keep and forget, where 1 is plain training; for estimates of the time left.
    costs: ClassVar[tuple[float, float, float]] = (1.5, 1.5, 1.0)
    #: Settings that benchmarks use where they differ from the defaults, by data set, or by data set and profile:
    #: {"cifar10": {"beta": 0.5}, "cifar10 small": {"lr": 0.05}}.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Settings that cannot differ from task to task.
    same_for_all_tasks: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        settings: Any,
        blueprint: Blueprint,
        seeds: Sequence[int],
        progress: Callable[[str, int, int], None] = lambda phase, step, steps: None,
    ) -> None:
        self.settings = settings
        self.blueprint = blueprint
        self.seeds = tuple(seeds)
        self.device = blueprint.device
        self.progress = progress
        #: Who shares the work of a request, where a method can divide it.
        self.workers = ONE

    # To be defined by a method

    @abstractmethod
    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        """The state with a new task, which `state` does not have."""

    def keep(self, state: State, task: str) -> State:
        """The state with a temporary task made permanent; the agent changes its status afterwards."""
        return state

    def forget(self, state: State, task: str) -> State:
        """The state without a task."""
        return state.without(task)

    def add(self, state: State, task: str, data: Examples) -> State:
        """The state with more records of an active task, for methods that forget records."""
        raise NotImplementedError(f"{self.name} forgets records, so it must define add()")

    def forget_records(self, state: State, scope: Scope) -> State:
        """The state without the records that a scope names, for methods that forget records."""
        return state.without(**scope.keywords())

    def take_along(self, before: State, after: State, scope: Scope) -> None:
        """Derive in memory for a state without some records what is known about the state before; optional."""

    @abstractmethod
    def logits(self, state: State, task: str, x: Tensor, classes: int | None = None) -> Tensor:
        """Outputs (replicas, n, classes) for inputs (n, *input), from `shared` and the task's own leaf.

        For a task that is not active, the outputs of an untrained head with that many `classes`.
        """

    def memory_accuracy(self, state: State, task: str) -> float | None:
        """The share of a task's examples in memory that are classified correctly; `None` if there are none."""
        return None

    def scores(self, state: State, inputs: Mapping[str, Tensor]) -> Tensor:
        """Log-likelihoods, up to a constant, that inputs belong to each task and label; "none of these" is last.

        `inputs` are the same inputs (n, *input) as each task scales them. The answer has the shape (replicas, n,
        pairs + 1), pairs in the order of the tasks in `inputs` and of their labels. A baseline over heads, which
        `clpu.methods.familiarity` explains; a method that knows better defines its own.
        """
        parts = [log_weights(state.tasks[task].facts, x, self.logits(state, task, x)) for task, x in inputs.items()]
        none = parts[0].new_full((*parts[0].shape[:2], 1), SHARPNESS * NONE_OF_THESE)
        return torch.cat([*parts, none], -1)

    def shared_schema(self, state: State) -> Schema:
        """The tensors that the shared leaf may hold; saved states are checked against it."""
        return {}

    def task_schema(self, state: State, task: Task) -> Schema:
        """The tensors that a task's own leaf may hold; saved states are checked against it."""
        return {}

    def people_schema(self, state: State, task: Task) -> Schema:
        """The tensors that the leaves of people may hold, for methods that forget records."""
        return {}

    def check(self, state: State) -> None:
        """Refuse a saved state for reasons that types and shapes do not show; `BadState`."""

    def network(self, state: State, task: str, inputs: Inputs | None = None) -> Network | None:
        """The network that answers for a task, active or not, for whoever looks inside; `None` if there is none."""
        return None

    # Tools of a method

    @classmethod
    def takes(cls, network: object) -> bool:
        """Whether it can build on a network: a name, or a user's module."""
        return True

    @classmethod
    def forgets_exactly(cls) -> bool:
        """Whether it forgets anything exactly."""
        return cls.forgets != "nothing"

    def entry(self, data: Examples, temporary: bool, own: Leaf | None = None, **facts: Any) -> Task:
        """A task that was just learned from these data."""
        about = {"inputs": inputs_of(data).to_json(), "labels": list(data.labels)}
        probe = self.blueprint.probe(inputs_of(data), self.seeds)
        return Task("T" if temporary else "R", {**about, **({"probe": probe} if probe else {}), **facts}, own)

    def fresh_network(self, inputs: Inputs, task: str | None) -> Network:
        """A network without heads, drawn for (seed, task)."""
        return self.blueprint.network(inputs, self.seeds, task)

    def feature_count(self, inputs: Inputs) -> int:
        """Return the number of features that a network gives for such inputs."""
        return self.blueprint.features(inputs, self.seeds)

    def with_fresh_head(self, network: Network, task: str, classes: int) -> Network:
        """The network with a head for the task, drawn for (seed, task)."""
        return network.with_head(task, self.blueprint.head(network.body.features, classes, self.seeds, task))

    def generators(self, task: str, purpose: str) -> list[torch.Generator]:
        """The random numbers of one purpose of one task, one generator per replica."""
        return generators(self.seeds, task, purpose)

    def batches(self, task: str, data: Examples, purpose: str = "order") -> Batches:
        """The passes over a task's data in which it is learned."""
        augment = self.augmentation(task, purpose)
        balanced = getattr(self.settings, "class_weight", "none") == "balanced"
        draws = self.generators(task, purpose)
        return Batches(data, self.settings.epochs, self.settings.batch_size, draws, augment, balanced)

    def augmentation(self, task: str, purpose: str) -> Augment:
        """Return the function that augments a batch of images (K, batch, channels, height, width)."""
        if self.settings.augment == "none":
            return unchanged
        sources = self.generators(task, f"augment {purpose}")
        return lambda x: crop_and_flip(x, sources)

    def fit(
        self,
        task: str,
        network: Network,
        steps: Steps[Step],
        loss: Callable[[Trainee, Step], Loss | Tensor],
        purpose: str = "learn",
        *,
        penalty: QuadraticPenalty | None = None,
        edit: Edit | None = None,
        only: Collection[str] | None = None,
    ) -> Network:
        """Train a copy of the network on a loss, with the settings' optimiser, learning rate and weight decay.

        `edit(net, gradients)` may change the gradients before each step; `only` names the parameters to train.
        """
        descent = Descent(
            self.settings.lr,
            self.settings.weight_decay,
            self.settings.optimizer,
            penalty,
            edit,
            only,
            self.generators(task, f"module {purpose}"),
        )
        return fit(network, steps, loss, descent, lambda done, total: self.progress(purpose, done, total))


def inputs_of(source: Examples | Tensor | Task) -> Inputs:
    """Describe one input of these examples, of these inputs (n, *input), or of this task."""
    if isinstance(source, Task):
        return Inputs.from_json(source.facts["inputs"])
    x = source if isinstance(source, Tensor) else source.x
    return Inputs(tuple(x.shape[1:]), x.dtype == torch.int64)


def known_classes(state: State, task: str, classes: int | None) -> int:
    """Return a task's number of classes; if it is not active, the number asked for, or `UnknownTask` without one."""
    if task in state.tasks:
        return len(state.tasks[task].labels)
    if classes is None:
        raise UnknownTask(f"unknown task {task!r}")
    return classes
