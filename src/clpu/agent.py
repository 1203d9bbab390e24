"""The agent: handles requests one by one, and predicts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clpu.errors import AlreadyLearned, BadData, BadRequest, BadSetting, BadState
from clpu.inputs import describe, read_examples, read_inputs, read_labels
from clpu.methods import METHODS, Method
from clpu.networks.blueprint import Blueprint
from clpu.requests import Entry, Instruction, Request, check_name
from clpu.settings import known, make, refuse_unknown
from clpu.snapshot import FORMAT, VERSION, Snapshot, main_tensors, read_state, state_meta, state_tensors, task_tensors
from clpu.threads import check_threads, computing_with


@dataclass(frozen=True)
class Progress:
    """How far a request is: step `step` of `steps` in one phase of it (learn, warm-up, merge, forget)."""

    request: Request
    phase: str
    step: int
    steps: int


class Agent:
    """Learns tasks for good or for now, forgets them on request, and predicts.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(40, 5)); y = x[:, 0] > 0
    >>> agent = Agent("clpu-der++", hidden=(8,), epochs=1)
    >>> agent.learn("clinic", x, y, temporary=True)
    >>> agent.tasks
    {'clinic': 'T'}
    >>> agent.forget("clinic")
    >>> agent.digest() == Agent("clpu-der++", hidden=(8,), epochs=1).digest()
    True

    `method` is a name (see `clpu.methods.METHODS`) or a `Method` class of your own; `network` is "mlp",
    "resnet18" or a `torch.nn.Module` that maps inputs to features. With `seeds` the agent is a population:
    independent replicas trained in lockstep, and everything it returns has a replica axis in front.
    Further keyword arguments are settings of training, method and network. `progress` is called with a
    `Progress` after every step; if it raises, the request is undone. Everything is computed with `threads`
    threads, whatever the process uses otherwise; a different count may give a different digest.
    """

    def __init__(
        self,
        method: str | type[Method] = "clpu-der++",
        network: str | nn.Module = "mlp",
        seed: int = 0,
        *,
        seeds: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        threads: int = 1,
        progress: Callable[[Progress], None] | None = None,
        **settings: Any,
    ) -> None:
        method_class = _method_class(method)
        if progress is not None and not callable(progress):
            raise BadSetting(f"progress must be a function that takes a clpu.Progress, got {progress!r:.80}")
        of_network = known(Blueprint.settings_class(network))
        of_method = known(method_class.Settings)
        refuse_unknown(settings, {**of_method, **of_network})
        blueprint = Blueprint(network, {k: v for k, v in settings.items() if k in of_network}, _device(device))
        chosen = make(method_class.Settings, {k: v for k, v in settings.items() if k in of_method})
        self.progress = progress
        self.threads = check_threads(threads)
        self._population = seeds is not None
        self._request: Request | None = None
        self._method = method_class(chosen, blueprint, _seeds([seed] if seeds is None else seeds), self._report)

    # Requests

    def learn(self, task: str, x: Any, y: Any = None, *, temporary: bool = False) -> None:
        """Learn a new task, for good (R) or, with `temporary`, for now (T). `x` may be a Dataset of (x, y) pairs."""
        request = Request(check_name(task), Instruction.TEMPORARY if temporary else Instruction.REMEMBER)
        if self._method.ledger.admit(request) != "learn":
            raise AlreadyLearned(
                f"task {task!r} is alive already (status {self.tasks[task]}); "
                "keep() remembers a temporary task for good and takes no data"
            )
        data = read_examples(x, y, *self._expectations())
        inputs = self._method.state.inputs or describe(data.x)
        self._method.blueprint.features(inputs)
        if self._method.settings.augment != "none" and len(inputs.shape) != 3:
            raise BadData(f"augmentation needs images (channels, height, width), got inputs of shape {inputs.shape}")
        with self._all_or_nothing(request):
            self._method.state.inputs = inputs
            self._method.learn(task, data, temporary)
            steps = len(self._method.batches(task, data))
            self._method.ledger.learned(task, Entry(request.instruction, data.labels, steps))

    def keep(self, task: str) -> None:
        """Remember a temporary task for good (R after T); nothing happens if it is remembered already."""
        self._method.ledger[check_name(task)]
        request = Request(task, Instruction.REMEMBER)
        if self._method.ledger.admit(request) == "nothing":
            return
        with self._all_or_nothing(request):
            self._method.keep(task)
            self._method.ledger.kept(task)

    def forget(self, task: str) -> None:
        """Forget a temporary task (F). With an exact method: as if it had never been learned."""
        request = Request(check_name(task), Instruction.FORGET)
        self._method.ledger.admit(request)
        with self._all_or_nothing(request):
            self._method.forget(task)
            self._method.state.drop(task)

    def handle(self, request: str | Request, x: Any = None, y: Any = None) -> None:
        """Handle a request given as in a stream, such as "5T"; data come with the learning of a new task only."""
        request = request if isinstance(request, Request) else Request.parse(request)
        meaning = self._method.ledger.admit(request)
        if meaning == "learn":
            if x is None:
                raise BadData(f"request {request} learns a new task, so it needs data: handle({str(request)!r}, x, y)")
            self.learn(request.task, x, y, temporary=request.instruction is Instruction.TEMPORARY)
        elif x is not None or y is not None:
            raise BadRequest(f"request {request} takes no data: the task is alive already")
        elif meaning == "forget":
            self.forget(request.task)
        else:
            self.keep(request.task)

    # Questions; none of them changes the agent.

    @property
    def tasks(self) -> dict[str, str]:
        """The tasks alive, in the order in which they were learned: "R" remembered, "T" temporary."""
        return {task: entry.status.value for task, entry in self._method.ledger.entries.items()}

    @property
    def method(self) -> str:
        return self._method.name

    @property
    def seeds(self) -> tuple[int, ...]:
        return self._method.seeds

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of training, method and network."""
        own, net = self._method.settings, self._method.blueprint.settings
        return {**dataclasses.asdict(own), **dataclasses.asdict(net)}

    def labels(self, task: str) -> tuple[int, ...]:
        """The labels of a task in the order of `predict`'s columns."""
        return self._method.ledger[check_name(task)].labels

    def predict(self, task: str, x: Any) -> Any:
        """Class probabilities (n, classes), columns in the order of `labels`; a tensor for a tensor, else an array."""
        probabilities = F.softmax(self._logits(task, x, None), -1)
        return self._returned(probabilities, isinstance(x, Tensor))

    def accuracy(self, task: str, x: Any, y: Any) -> Any:
        """The share of inputs whose most probable label is the given one: a float, or an array over replicas."""
        logits = self._logits(task, x, None)
        labels = torch.tensor(self.labels(task), device=logits.device)
        right = labels[logits.argmax(-1)] == read_labels(y, logits.shape[1]).to(logits.device)
        share = right.double().mean(-1).cpu().numpy()
        return share if self._population else float(share[0])

    def logits(self, task: str, x: Any, classes: int | None = None) -> Tensor:
        """The network's outputs before the softmax, for any task.

        A task that has no head, because it was never learned or was forgotten, answers through a fresh
        head drawn for (seed, task) with as many `classes` as given. That is what the metrics compare.
        """
        outputs = self._logits(task, x, classes)
        return outputs if self._population else outputs[0]

    def storage(self) -> dict[str, Any]:
        """Bytes kept: {"main": …, "tasks": {task: …}}; main is what all remembered tasks share, heads included."""
        state = self._method.state
        tasks = {task: sum(t.nbytes for t in task_tensors(state, task).values()) for task in state.ledger}
        return {"main": sum(t.nbytes for t in main_tensors(state).values()), "tasks": tasks}

    def digest(self) -> str:
        """SHA-256 of the whole learned state: equal for equal states, whatever their history."""
        return self._snapshot().digest()

    def state(self) -> Snapshot:
        """Everything learned, as tensors and JSON; `state().to_bytes()` is one safetensors file."""
        live = self._snapshot()
        return Snapshot(live.meta, {name: tensor.clone() for name, tensor in live.tensors.items()})

    def _snapshot(self) -> Snapshot:
        blueprint = self._method.blueprint
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "method": self._method.name,
            "network": blueprint.name,
            "start": blueprint.start(),
            "settings": self.settings,
            "seeds": list(self.seeds),
            "population": self._population,
            **state_meta(self._method.state),
        }
        return Snapshot(meta, state_tensors(self._method.state))

    @classmethod
    def from_state(
        cls,
        state: Snapshot | bytes | bytearray | memoryview,
        *,
        network: nn.Module | None = None,
        method: type[Method] | None = None,
        device: str | torch.device = "cpu",
        threads: int = 1,
        progress: Callable[[Progress], None] | None = None,
    ) -> Agent:
        """An agent that goes on exactly where the saved one stopped.

        Code is not saved: hand in the module again if the agent had one of your own, and the method's class
        if it is not registered.
        """
        if isinstance(state, (bytes, bytearray, memoryview)):
            state = Snapshot.from_bytes(bytes(state))
        if not isinstance(state, Snapshot):
            raise BadState(f"expected bytes or a state, got {type(state).__name__}")
        snapshot = state
        meta = snapshot.meta
        if meta.get("format") != FORMAT or meta.get("version") != VERSION:
            found = f"{meta.get('format')!r:.40} {meta.get('version')!r:.40}"
            raise BadState(f"expected a {FORMAT} state of version {VERSION}, got {found}")
        try:
            if meta.keys() != cls(method or meta["method"]).state().meta.keys():
                raise TypeError(f"unexpected entries {sorted(meta.keys())}")
            name, seeds, settings = meta["network"], meta["seeds"], meta["settings"]
            if not (isinstance(name, str) and isinstance(seeds, list) and isinstance(settings, dict)):
                raise TypeError("network must be a name, seeds a list and settings an object")
            if (name == "module") != (network is not None):
                raise BadState(f"the saved agent's network is {name!r:.40}; hand in network= only if it is your own")
            options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
            agent = cls(
                method or meta["method"],
                network if network is not None else name,
                seeds=seeds,
                device=device,
                threads=threads,
                progress=progress,
                **options,
            )
        except (BadSetting, KeyError, TypeError) as error:
            raise BadState(f"the saved description cannot be used: {error!s:.300}") from None
        if agent.method != meta["method"]:
            raise BadState(f"the saved agent's method is {meta['method']!r:.40}, the one handed in is {agent.method!r}")
        if agent._method.blueprint.start() != meta["start"]:
            raise BadState("the module handed in does not start from the weights that the saved agent's module had")
        agent._population = meta["population"] is True
        agent._method.state = read_state(agent._method, snapshot)
        return agent

    def copy(self) -> Agent:
        """An independent agent in the same state; cheap, because networks and memories are never changed in place."""
        other = object.__new__(Agent)
        other.progress, other._population, other._request = self.progress, self._population, None
        other.threads = self.threads
        method = self._method
        other._method = type(method)(method.settings, method.blueprint, method.seeds, other._report)
        other._method.state = method.state.copy()
        return other

    def __repr__(self) -> str:
        tasks = " ".join(f"{task!r}:{status}" for task, status in self.tasks.items()) or "no tasks"
        return f"<Agent {self.method} on {self._method.blueprint.name}, seeds {list(self.seeds)}, {tasks}>"

    # Inside

    @contextmanager
    def _all_or_nothing(self, request: Request) -> Iterator[None]:
        if self._request is not None:
            raise BadRequest(f"the agent is busy with {self._request}; it takes one request at a time")
        before = self._method.state
        self._method.state, self._request = before.copy(), request
        try:
            # Whatever the caller has switched on or off.
            with torch.inference_mode(False), torch.enable_grad(), self._computing():
                yield
        except BaseException:
            self._method.state = before
            raise
        finally:
            self._request = None

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """In full precision and with the agent's threads, whatever the caller uses."""
        with computing_with(self.threads), torch.autocast(self._method.device.type, enabled=False):
            yield

    def _report(self, phase: str, step: int, steps: int) -> None:
        if self.progress is not None and self._request is not None:
            self.progress(Progress(self._request, phase, step, steps))

    def _expectations(self) -> tuple[Any, bool, torch.device]:
        method = self._method
        return method.state.inputs, method.blueprint.module is not None, method.device

    def _logits(self, task: str, x: Any, classes: int | None) -> Tensor:
        method = self._method
        known_classes = len(method.ledger[task].labels) if check_name(task) in method.ledger else classes
        if known_classes is None:
            method.ledger[task]  # refuses
        if classes is not None and (type(classes) is not int or classes != known_classes or not 2 <= classes < 2**31):
            raise BadData(f"task {task!r} has {known_classes} classes, so classes={classes!r:.40} cannot be asked for")
        inputs = read_inputs(x, *self._expectations())
        if method.state.inputs is None:  # nothing is learned: any shape will do, and none is kept
            method = self.copy()._method
            method.state.inputs = describe(inputs)
        network = method.network_of(task)
        head = network.heads.get(task)
        if head is None or head.weight.shape[-1] != known_classes:
            assert known_classes is not None
            head = method.blueprint.head(network.body.features, known_classes, method.seeds, task)
        with self._computing():
            return network.evaluate(head, inputs)

    def _returned(self, values: Tensor, as_tensor: bool) -> Any:
        values = values if self._population else values[0]
        return values if as_tensor else values.cpu().numpy()


def _method_class(method: object) -> type[Method]:
    if isinstance(method, type) and issubclass(method, Method):
        if inspect.isabstract(method) or not isinstance(getattr(method, "name", None), str):
            raise BadSetting(f"{method.__name__} is no whole method: it needs a name and must define learn()")
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise BadSetting(f"method must be one of {', '.join(METHODS)} or a Method class, got {method!r:.80}")
    return METHODS[method]


def _seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    try:
        listed = list(seeds)
    except TypeError:
        raise BadSetting(f"seeds must be a list of whole numbers, got {seeds!r:.80}") from None
    if not listed or any(isinstance(s, bool) or not isinstance(s, (int, np.integer)) for s in listed):
        raise BadSetting(f"seeds must be one or more whole numbers, got {listed!r:.80}")
    if any(abs(int(s)) >= 2**63 for s in listed):
        raise BadSetting("seeds must fit into 64 bits")
    if len(set(listed)) < len(listed):
        raise BadSetting(f"seeds must differ from each other, got {listed!r:.80}")
    return tuple(int(s) for s in listed)


def _device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise BadSetting(f"device {device!r:.40} cannot be used here: {str(error).splitlines()[0]:.200}") from None
    return chosen
