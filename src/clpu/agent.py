"""The agent: handles requests one by one, and predicts."""

from __future__ import annotations

import dataclasses
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clpu.errors import AlreadyLearned, BadData, BadRequest, BadSetting, BadState, UnknownTask
from clpu.inputs import describe, read_examples, read_inputs, read_labels
from clpu.methods import METHODS, Method
from clpu.methods.networks import inputs_of_state
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.network import Network
from clpu.requests import Instruction, Request, check_name, meaning, unknown
from clpu.settings import make, refuse_unknown, setting_fields
from clpu.state import State, Task
from clpu.state.schema import check_state
from clpu.threads import check_threads, computing_with


@dataclass(frozen=True)
class Progress:
    """How far a request is: step `step` of `steps` in one phase of it (learn, warm-up, merge, forget)."""

    request: Request
    phase: str
    step: int
    steps: int


class Agent:
    """Learns tasks permanently or temporarily, forgets them on request, and predicts.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(40, 5)); y = x[:, 0] > 0
    >>> agent = Agent("clpu-der++", hidden=(8,), epochs=1)
    >>> agent.learn("clinic", x, y, temporary=True)
    >>> agent.tasks
    {'clinic': 'T'}
    >>> agent.forget("clinic")
    >>> agent.digest() == Agent("clpu-der++", hidden=(8,), epochs=1).digest()
    True

    `method` is a name (see `clpu.METHODS`) or a `Method` class; `network` is "mlp", "resnet18", a network registered
    with `clpu.register_network`, or a `torch.nn.Module` that maps inputs to features. With `seeds` the agent is a
    population: independent replicas trained in lockstep, and everything it returns has a replica axis in front.
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
        self._method_class = _method_class(method)
        if progress is not None and not callable(progress):
            raise BadSetting(f"progress must be a function that takes a clpu.Progress, got {progress!r:.80}")
        of_network = setting_fields(Blueprint.settings_class(network))
        of_method = setting_fields(self._method_class.Settings)
        refuse_unknown(settings, {**of_method, **of_network})
        self._blueprint = Blueprint(network, {k: v for k, v in settings.items() if k in of_network}, _device(device))
        self._chosen: Any = make(self._method_class.Settings, {k: v for k, v in settings.items() if k in of_method})
        self._seeds = _seeds([seed] if seeds is None else seeds)
        self.progress = progress
        self.threads = check_threads(threads)
        self._busy = threading.Lock()
        self._request: Request | None = None
        self._state = State(
            {
                "method": self._method_class.name,
                "forgets": self._method_class.forgets,
                "network": self._blueprint.name,
                "start": self._blueprint.start(self._seeds),
                "settings": _plain(self.settings),
                "seeds": list(self._seeds),
                "population": seeds is not None,
            }
        )

    # Requests

    def learn(self, task: str, x: Any, y: Any = None, *, temporary: bool = False) -> None:
        """Learn a new task, permanently (R) or, with `temporary`, temporarily (T). `x` may be a Dataset of pairs."""
        request = Request(check_name(task), Instruction.TEMPORARY if temporary else Instruction.REMEMBER)
        with self._handling(request) as state:
            if self._meaning(request) != "learn":
                raise AlreadyLearned(
                    f"task {task!r} already exists (status {self.tasks[task]}); "
                    "call keep() to make a temporary task permanent"
                )
            data = read_examples(x, y, *self._expectations(state))
            inputs = describe(data.x)
            self._blueprint.features(inputs, self._seeds)
            if getattr(self._chosen, "augment", "none") != "none" and len(inputs.shape) != 3:
                raise BadData(
                    f"augmentation needs images (channels, height, width), got inputs of shape {inputs.shape}"
                )
            with self._computing():
                new = self.new_method().learn(state, task, data, temporary)
            self._commit(new, request)

    def keep(self, task: str) -> None:
        """Make a temporary task permanent (R after T); nothing happens if it is permanent already."""
        request = Request(check_name(task), Instruction.REMEMBER)
        with self._handling(request) as state:
            if task not in state.tasks:
                raise UnknownTask(unknown(task, state.tasks))
            if self._meaning(request) == "nothing":
                return
            with self._computing():
                new = self.new_method().keep(state, task)
            self._commit(new.with_task(task, dataclasses.replace(new.tasks[task], status="R")), request)

    def forget(self, task: str) -> None:
        """Forget a task (F). With an exact method: as if it had never been learned."""
        request = Request(check_name(task), Instruction.FORGET)
        with self._handling(request) as state:
            self._meaning(request)
            with self._computing():
                new = self.new_method().forget(state, task)
            self._commit(new, request)

    def handle(self, request: str | Request, x: Any = None, y: Any = None) -> None:
        """Handle a request given as in a stream, such as "5T"; data come with the learning of a new task only."""
        request = request if isinstance(request, Request) else Request.parse(request)
        what = self._meaning(request)
        if what == "learn":
            if x is None:
                raise BadData(f"request {request} learns a new task, so it needs data: handle({str(request)!r}, x, y)")
            self.learn(request.task, x, y, temporary=request.instruction is Instruction.TEMPORARY)
        elif x is not None or y is not None:
            raise BadRequest(f"request {request} takes no data: the task already exists")
        elif what == "forget":
            self.forget(request.task)
        else:
            self.keep(request.task)

    # Questions; none of them changes the agent, and each sees one complete state.

    @property
    def tasks(self) -> dict[str, str]:
        """The active tasks by name: "R" remembered, "T" temporary."""
        return {name: task.status for name, task in self._state.tasks.items()}

    @property
    def method(self) -> str:
        return self._method_class.name

    @property
    def forgets(self) -> str:
        """What the method forgets exactly: "nothing", "temporary" tasks, any "tasks", or any "records"."""
        return self._method_class.forgets

    @property
    def seeds(self) -> tuple[int, ...]:
        return self._seeds

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of training, method and network."""
        return {**dataclasses.asdict(self._chosen), **dataclasses.asdict(self._blueprint.settings)}

    def labels(self, task: str) -> tuple[int, ...]:
        """The labels of a task in the order of `predict`'s columns."""
        return self._task(self._state, task).labels

    def predict(self, task: str, x: Any) -> Any:
        """Class probabilities (n, classes), columns in the order of `labels`; a tensor for a tensor, else an array."""
        probabilities = F.softmax(self._logits(self._state, task, x, None), -1)
        values = probabilities if self._population else probabilities[0]
        return values if isinstance(x, Tensor) else values.cpu().numpy()

    def accuracy(self, task: str, x: Any, y: Any) -> Any:
        """The share of inputs whose most probable label is the given one: a float, or an array over replicas."""
        state = self._state
        logits = self._logits(state, task, x, None)
        labels = torch.tensor(self._task(state, task).labels, device=logits.device)
        right = labels[logits.argmax(-1)] == read_labels(y, logits.shape[1]).to(logits.device)
        share = right.double().mean(-1).cpu().numpy()
        return share if self._population else float(share[0])

    def logits(self, task: str, x: Any, classes: int | None = None) -> Tensor:
        """The outputs before the softmax, for any task.

        A task that is not active, because it was never learned or was forgotten, answers through a fresh head
        drawn for (seed, task) with as many `classes` as given. That is what the metrics compare.
        """
        outputs = self._logits(self._state, task, x, classes)
        return outputs if self._population else outputs[0]

    def network(self, task: str, x: Any) -> Network | None:
        """The network that answers for a task, active or not, for inputs like x: for whoever looks inside.

        `None` if the method has none.
        """
        state = self._state
        inputs = read_inputs(x, *self._expectations(state))
        return self.new_method().network(state, check_name(task), describe(inputs))

    def new_method(self) -> Method:
        """The agent's method, built anew as for each request; it holds no state."""
        return self._method_class(self._chosen, self._blueprint, self._seeds, self._report)

    def storage(self) -> dict[str, Any]:
        """Bytes kept: {"main": …, "tasks": {task: …}}; main is what all remembered tasks share."""
        state = self._state
        main = 0 if state.shared is None else state.shared.size
        return {"main": main, "tasks": {name: task.size for name, task in state.tasks.items()}}

    def digest(self) -> str:
        """SHA-256 of the whole learned state: equal for equal states, whatever their history."""
        return self._state.digest()

    def state(self) -> State:
        """Everything learned: an immutable tree; `state().to_bytes()` is one safetensors file."""
        return self._state

    @classmethod
    def from_state(
        cls,
        state: State | bytes | bytearray | memoryview,
        *,
        network: nn.Module | None = None,
        method: type[Method] | None = None,
        device: str | torch.device = "cpu",
        threads: int = 1,
        progress: Callable[[Progress], None] | None = None,
    ) -> Agent:
        """An agent that continues exactly where the saved one stopped.

        Code is not saved: hand in the module again if the agent was made with one, and the method's class if it is
        not registered.
        """
        if isinstance(state, (bytes, bytearray, memoryview)):
            state = State.from_bytes(bytes(state))
        if not isinstance(state, State):
            raise BadState(f"expected bytes or a state, got {type(state).__name__}")
        about = state.about
        try:
            name, seeds, settings = about["network"], about["seeds"], about["settings"]
            if not (isinstance(name, str) and isinstance(seeds, list) and isinstance(settings, dict)):
                raise TypeError("network must be a name, seeds a list and settings an object")
            if (name == "module") != (network is not None):
                raise BadState(f"the saved agent's network is {name!r:.40}; hand in network= only if it is your own")
            options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
            agent = cls(
                method or about["method"],
                network if network is not None else name,
                seeds=seeds,
                device=device,
                threads=threads,
                progress=progress,
                **options,
            )
        except (BadSetting, KeyError, TypeError) as error:
            raise BadState(f"the saved description cannot be used: {error!s:.300}") from None
        expected = {**agent._state.about, "population": about.get("population") is True}
        if agent.method != about["method"]:
            raise BadState(
                f"the saved agent's method is {about['method']!r:.40}, the one handed in is {agent.method!r}"
            )
        if about.get("start") != expected["start"]:
            raise BadState("the network does not start from the weights that the saved agent's network had")
        if dict(about) != expected:
            raise BadState(f"unexpected entries in the description: {sorted({*about} ^ {*expected})}")
        check_state(agent.new_method(), state)
        agent._check_probes(state)
        agent._state = state
        return agent

    def copy(self) -> Agent:
        """An independent agent in the same state; cheap, because a state is never changed."""
        other = object.__new__(Agent)
        other._method_class, other._blueprint, other._chosen = self._method_class, self._blueprint, self._chosen
        other._seeds, other._state = self._seeds, self._state
        other.progress, other.threads = self.progress, self.threads
        other._busy, other._request = threading.Lock(), None
        return other

    def __repr__(self) -> str:
        tasks = " ".join(f"{task!r}:{status}" for task, status in self.tasks.items()) or "no tasks"
        return f"<Agent {self.method} on {self._blueprint.name}, seeds {list(self.seeds)}, {tasks}>"

    # Inside

    @property
    def _population(self) -> bool:
        return bool(self._state.about["population"])

    @contextmanager
    def _handling(self, request: Request) -> Iterator[State]:
        """Lets one request in at a time; a second one is refused, and so is one from inside `progress`."""
        if not self._busy.acquire(blocking=False):
            raise BadRequest(f"the agent is busy with {self._request}; it takes one request at a time")
        self._request = request
        try:
            yield self._state
        finally:
            self._request = None
            self._busy.release()

    def _commit(self, state: State, request: Request) -> None:
        """Swap a complete new state in."""
        self._state = state

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """In full precision, with the agent's threads and with gradients, whatever the caller uses."""
        precision = torch.autocast(self._blueprint.device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), computing_with(self.threads), precision:
            yield

    def _meaning(self, request: Request) -> str:
        return meaning(request, self.tasks, self.forgets)

    def _report(self, phase: str, step: int, steps: int) -> None:
        if self.progress is not None and self._request is not None:
            self.progress(Progress(self._request, phase, step, steps))

    def _task(self, state: State, task: str) -> Task:
        if check_name(task) not in state.tasks:
            raise UnknownTask(unknown(task, state.tasks))
        return state.tasks[task]

    def _expectations(self, state: State) -> tuple[Inputs | None, bool, torch.device]:
        return inputs_of_state(state), self._blueprint.users, self._blueprint.device

    def _logits(self, state: State, task: str, x: Any, classes: int | None) -> Tensor:
        if classes is None:
            self._task(state, task)
        elif check_name(task) in state.tasks and classes != len(state.tasks[task].labels):
            have = len(state.tasks[task].labels)
            raise BadData(f"task {task!r} has {have} classes, so classes={classes!r:.40} cannot be asked for")
        if classes is not None and (type(classes) is not int or not 2 <= classes < 2**31):
            raise BadData(f"classes must be an integer of 2 or more, got {classes!r:.40}")
        inputs = read_inputs(x, *self._expectations(state))
        with torch.no_grad(), self._computing(), torch.no_grad():
            return self.new_method().logits(state, task, inputs, classes)

    def _check_probes(self, state: State) -> None:
        """Refuse a module that starts from the saved weights but computes something else with them."""
        for task in state.tasks.values():
            inputs = Inputs.from_json(task.facts.get("inputs"))
            now, then = self._blueprint.probe(inputs, self._seeds), task.facts.get("probe", [])
            same = isinstance(then, list) and len(now) == len(then)
            if not same or not all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5) for a, b in zip(now, then)):
                raise BadState("the network has the saved weights but computes different outputs: its code has changed")
            return


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _method_class(method: object) -> type[Method]:
    if isinstance(method, type) and issubclass(method, Method):
        if inspect.isabstract(method) or not isinstance(getattr(method, "name", None), str):
            raise BadSetting(f"{method.__name__} is not a complete method: it needs a name and a learn()")
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise BadSetting(f"method must be one of {', '.join(METHODS)} or a Method class, got {method!r:.80}")
    return METHODS[method]


def _seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    try:
        listed = list(seeds)
    except TypeError:
        raise BadSetting(f"seeds must be a list of integers, got {seeds!r:.80}") from None
    if not listed or any(isinstance(s, bool) or not isinstance(s, (int, np.integer)) for s in listed):
        raise BadSetting(f"seeds must be one or more integers, got {listed!r:.80}")
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
