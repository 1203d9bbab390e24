"""The agent: handles requests one by one, and predicts."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clpu import tables
from clpu.errors import (
    AlreadyLearned,
    BadData,
    BadNetwork,
    BadRequest,
    BadSetting,
    BadState,
    CannotForget,
    UnknownTask,
)
from clpu.handler import Handler
from clpu.holdout import check_share
from clpu.inputs import left_in
from clpu.intake import RequestData
from clpu.labels import decode, encode, read_labels
from clpu.learning.randomness import check_seeds
from clpu.methods import Method, find_method, inputs_of
from clpu.networks.blueprint import Blueprint
from clpu.networks.network import Network
from clpu.networks.precision import check_device
from clpu.outcome import Outcome
from clpu.requests import Instruction, Label, Request, Scope, check_name, meaning, unknown
from clpu.restoring import check_about, check_restored, read_about, read_state
from clpu.settings import DEFAULT_METHOD, make, refuse_unknown, setting_fields, to_json
from clpu.state import State, Task
from clpu.threads import check_threads
from clpu.workers import Workers, as_workers


@dataclass(frozen=True)
class Progress:
    """The progress of a request: step `step` of `steps` in one of its phases (learn, warm-up, merge, forget)."""

    request: Request
    phase: str
    step: int
    steps: int


class Agent:
    """Learns tasks permanently or temporarily, forgets them on request, and predicts.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(40, 5)); y = x[:, 0] > 0
    >>> agent = Agent(hidden=(8,), epochs=1)
    >>> outcome = agent.learn("clinic", x, y, temporary=True)
    >>> agent.tasks
    {'clinic': 'T'}
    >>> agent.forget("clinic")
    >>> agent.digest() == Agent(hidden=(8,), epochs=1).digest()
    True

    `method` is a name (see `clpu.METHODS`) or a `Method` class; `network` is "mlp", "resnet18", a base such as
    "base:random", a network registered with `clpu.register_network`, or a `torch.nn.Module` that maps inputs to
    features; by default what suits the method. With `seeds` the agent is a
    population: independent replicas trained in lockstep, and everything it returns has a replica axis in front.
    Further keyword arguments are settings of training, method and network. `progress` is called with a
    `Progress` after every step; if it raises, the request is undone. Everything is computed with `threads`
    threads, whatever the process uses otherwise; a different count may give a different digest. `workers` processes,
    or `clpu.Workers` on a cluster, share the work of making features; they never change a bit.
    """

    def __init__(
        self,
        method: str | type[Method] = DEFAULT_METHOD,
        network: str | nn.Module | None = None,
        seed: int = 0,
        *,
        seeds: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        threads: int = 1,
        workers: int | Workers = 1,
        progress: Callable[[Progress], None] | None = None,
        **settings: Any,
    ) -> None:
        self._method_class = find_method(method)
        if progress is not None and not callable(progress):
            raise BadSetting(f"progress must be a function that takes a clpu.Progress, got {progress!r:.80}")
        network = self._method_class.default_network if network is None else network
        if not self._method_class.takes(network):
            raise BadNetwork(
                f"{self._method_class.name} builds on features that are never trained: a base, such as "
                f"network='base:random', or your own module; got {network!r:.80}"
            )
        of_network = setting_fields(Blueprint.settings_class(network))
        of_method = setting_fields(self._method_class.Settings)
        refuse_unknown(settings, {**of_method, **of_network})
        self._blueprint = Blueprint(
            network, {k: v for k, v in settings.items() if k in of_network}, check_device(device)
        )
        self._chosen: Any = make(self._method_class.Settings, {k: v for k, v in settings.items() if k in of_method})
        self._seeds = check_seeds([seed] if seeds is None else seeds)
        self.progress = progress
        self.threads = check_threads(threads)
        self.workers = as_workers(workers)
        self._busy = threading.Lock()
        self._request: Request | None = None
        self._state = State(
            {
                "method": self._method_class.name,
                "forgets": self._method_class.forgets,
                "network": self._blueprint.name,
                "start": self._blueprint.start(self._seeds),
                "settings": to_json(self.settings),
                "seeds": list(self._seeds),
                "population": seeds is not None,
            }
        )

    # Requests

    def learn(
        self,
        task: str,
        x: Any,
        y: Any = None,
        *,
        temporary: bool = False,
        holdout: float = 0.0,
        ignore: Sequence[str] = (),
        text: Sequence[str] | None = None,
        people: Any = None,
        records: Any = None,
        **settings: Any,
    ) -> Outcome:
        """Learn a new task, permanently (R) or, with `temporary`, temporarily (T).

        `x` may be a torch Dataset of pairs, a DataLoader, or a data frame: then `y` may name the column of labels,
        `ignore` names columns to leave out, and `text` those that hold text, which are not guessed where single records
        can be forgotten. With `holdout=0.1` about a tenth of the data is not learned from but used to say how good the
        task was learned.

        For methods that forget records: `people` says who each record is about, one id or a list of ids per record,
        and `records` gives each an id; of a data frame, both may be names of columns. Further keyword
        arguments are settings for this task, in place of the agent's: `epochs=50`, `lr=0.01`. Returns how that
        changed the remembered tasks, and the held-out accuracy.
        """
        request = Request(check_name(task), Instruction.TEMPORARY if temporary else Instruction.REMEMBER)
        with self._handling(request) as state:
            if self._meaning(request) != "learn":
                raise AlreadyLearned(
                    f"task {task!r} already exists (status {self.tasks[task]}); call keep() to make a temporary task "
                    "permanent, or relearn() to replace what it was learned from"
                )
            given = RequestData(x, y, people, records, ignore, text)
            return self._learn(state, request, given, holdout, settings)

    def relearn(
        self,
        task: str,
        x: Any,
        y: Any = None,
        *,
        holdout: float = 0.0,
        ignore: Sequence[str] = (),
        text: Sequence[str] | None = None,
        people: Any = None,
        records: Any = None,
        **settings: Any,
    ) -> Outcome:
        """Replace what an active task was learned from, as if it had been learned from these data only.

        The task stays permanent or temporary. For tasks that the agent's method can forget exactly.
        """
        entry = self._task(self._state, task)
        if not self._method_class.forgets_exactly():
            raise CannotForget(f"{self.method} does not forget exactly, so it cannot learn task {task!r} anew")
        self._meaning(Request(task, Instruction.FORGET))
        request = Request(task, Instruction(entry.status))
        with self._handling(request) as state:
            given = RequestData(x, y, people, records, ignore, text)
            return self._learn(state.without(task), request, given, holdout, settings)

    def _learn(
        self, state: State, request: Request, given: RequestData, holdout: float, settings: dict[str, Any]
    ) -> Outcome:
        share, temporary = check_share(holdout), request.instruction is Instruction.TEMPORARY
        new, outcome = self._handler.learn(state, request.task, temporary, given, share, settings)
        self._commit(new, request)
        return outcome

    def add(self, task: str, x: Any, y: Any = None, *, people: Any = None, records: Any = None) -> None:
        """Add records to an active task, for methods that forget records; an id that already exists is refused."""
        request = Request(check_name(task), Instruction.ADD)
        with self._handling(request) as state:
            self._meaning(request)
            self._commit(self._handler.add(state, task, RequestData(x, y, people, records)), request)

    def keep(self, task: str) -> Outcome:
        """Make a temporary task permanent (R after T); nothing happens if it is permanent already.

        Returns what that did to the remembered tasks.
        """
        request = Request(check_name(task), Instruction.REMEMBER)
        with self._handling(request) as state:
            if task not in state.tasks:
                raise UnknownTask(unknown(task, state.tasks))
            if self._meaning(request) == "nothing":
                return self._handler.outcome(state, state, task)
            new, outcome = self._handler.keep(state, task)
            self._commit(new, request)
        return outcome

    def forget(
        self,
        task: str | None = None,
        *,
        person: str | int | None = None,
        labels: Sequence[Label] | None = None,
        records: Sequence[str | int] | None = None,
    ) -> None:
        """Forget a task (F). With an exact method: as if it had never been learned.

        Methods that forget records also forget a `person` (in every task, or in one), `labels` or `records` of a task;
        of several conditions, all must hold. A record about several people goes with any of them.
        """
        request = Request.forgetting(_scope(task, person, labels, records))
        with self._handling(request) as state:
            self._meaning(request)
            self._commit(self._handler.forget(state, request), request)

    def handle(
        self, request: str | Request, x: Any = None, y: Any = None, *, people: Any = None, records: Any = None
    ) -> Outcome | None:
        """Handle a request given as in a stream, such as "5T" or "5@p17F"; data come with R, T and A only.

        What a request to learn leaves out, as "5@p17R" does, is taken from the data first. Returns what
        `learn` or `keep` does; `None` for requests to add or forget.
        """
        request = request if isinstance(request, Request) else Request.parse(request)
        what = self._meaning(request)
        if what in ("learn", "add"):
            if x is None:
                raise BadData(f"request {request} brings new records, so it needs data: handle({str(request)!r}, x, y)")
            if request.parts:
                x, y, people, records = left_in(request.parts, x, y, people, records)
                if not len(y):  # as if the request had not been
                    return None
            if what == "add":
                self.add(request.task, x, y, people=people, records=records)
                return None
            temporary = request.instruction is Instruction.TEMPORARY
            return self.learn(request.task, x, y, temporary=temporary, people=people, records=records)
        if x is not None or y is not None:
            raise BadRequest(f"request {request} takes no data: the task already exists")
        if what == "forget":
            self.forget(**request.scope.keywords())
            return None
        return self.keep(request.task)

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

    def labels(self, task: str | None) -> tuple[Any, ...]:
        """The labels of a task, as they were given, in the order of `predict`'s columns.

        Without a task: all pairs (task, label), and `None` for "none of these".
        """
        state = self._state
        return self._task(state, task).labels if task is not None else _pairs(state)

    def predict(self, task: str | None, x: Any) -> Any:
        """Class probabilities (n, classes), columns in the order of `labels`; a tensor for a tensor, else an array.

        Without a task (`None`): probabilities of all pairs (task, label) and, in the last column, of "none of these".
        """
        state = self._state
        probabilities = F.softmax(self._outputs(state, task, x), -1)
        values = probabilities if self._population else probabilities[0]
        return values if isinstance(x, Tensor) else values.cpu().numpy()

    def classify(self, task: str | None, x: Any) -> Any:
        """The most likely label of each input, as it was given, in an array.

        Without a task (`None`): a list of the most likely pairs (task, label), or `None` where an input is less
        familiar to every task than 95% of the task's own data. A population's answer has a replica axis.
        """
        state = self._state
        outputs = self._outputs(state, task, x).double().cpu()
        if task is not None:
            found = decode(outputs.argmax(-1).numpy(), self._task(state, task).labels)
            return found if self._population else found[0]
        # First the task, then the label: a task with many labels is not less likely for it.
        sizes = [len(entry.labels) for entry in state.tasks.values()] + [1]
        parts = outputs.split(sizes, -1)
        best = torch.stack([part.logsumexp(-1) for part in parts], -1).argmax(-1)
        first = [sum(sizes[:number]) for number in range(len(sizes))]
        within = torch.stack([part.argmax(-1) + start for part, start in zip(parts, first)], -1)
        columns, pairs = within.gather(-1, best.unsqueeze(-1)).squeeze(-1).tolist(), _pairs(state)
        answers = [[pairs[column] for column in row] for row in columns]
        return answers if self._population else answers[0]

    def accuracy(self, task: str, x: Any, y: Any) -> Any:
        """The share of inputs whose most probable label is the given one: a float, or an array over replicas."""
        state = self._state
        if isinstance(y, str) and tables.is_table(x):
            x, y, *_ = tables.take(x, y)
        logits = self._logits(state, task, x)
        expected = encode(read_labels(y, logits.shape[1]), self._task(state, task).labels, task)
        share = (logits.argmax(-1).cpu() == torch.from_numpy(expected)).double().mean(-1).numpy()
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
        inputs = self._handler.intake.inputs(state, check_name(task), x)
        return self._handler.build_for(state, task).network(state, task, inputs_of(inputs))

    def new_method(self, task: str | None = None) -> Method:
        """The agent's method, built anew as for each request, with the settings of a task; it holds no state."""
        return self._handler.build_for(self._state, task)

    def show(self, task: str | None = None, *, person: str | int | None = None) -> dict[str, Any]:
        """Return what is held about a person, in one task or in all, or in one task about everybody.

        By task: how many records, of which labels, and the ids that they were given. `NothingHeld` if there are none.
        Only methods that forget records know who a record is about.
        """
        state, scope = self._state, _scope(task, person, None, None)
        if task is not None:
            self._task(state, task)
        return state.shown(scope)

    def storage(self) -> dict[str, Any]:
        """Bytes kept: {"main": …, "tasks": {task: …}}; main is what all remembered tasks share."""
        state = self._state
        main = 0 if state.shared is None else state.shared.size
        return {"main": main, "tasks": {name: task.size for name, task in state.tasks.items()}}

    def digest(self) -> str:
        """SHA-256 of the complete learned state: equal for equal states, whatever their history."""
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
        workers: int | Workers = 1,
        progress: Callable[[Progress], None] | None = None,
    ) -> Agent:
        """An agent that continues exactly where the saved one stopped.

        Code is not saved: hand in the module again if the agent was made with one, and the method's class if it is
        not registered.
        """
        state = read_state(state)
        try:
            name, seeds, settings = read_about(state.about, network is not None)
            agent = cls(
                method or state.about["method"],
                network if network is not None else name,
                seeds=seeds,
                device=device,
                threads=threads,
                workers=workers,
                progress=progress,
                **settings,
            )
        except (BadSetting, KeyError, TypeError) as error:
            raise BadState(f"the saved description cannot be used: {error!s:.300}") from None
        check_about(state.about, agent._state.about)
        check_restored(agent._handler, state)
        agent._state = state
        return agent

    def copy(self) -> Agent:
        """An independent agent in the same state; cheap, because a state is never changed."""
        other = object.__new__(Agent)
        other._method_class, other._blueprint, other._chosen = self._method_class, self._blueprint, self._chosen
        other._seeds, other._state = self._seeds, self._state
        other.progress, other.threads, other.workers = self.progress, self.threads, self.workers
        other._busy, other._request = threading.Lock(), None
        return other

    def __repr__(self) -> str:
        tasks = " ".join(f"{task!r}:{status}" for task, status in self.tasks.items()) or "no tasks"
        return f"<Agent {self.method} on {self._blueprint.name}, seeds {list(self.seeds)}, {tasks}>"

    # Inside

    @property
    def _population(self) -> bool:
        return bool(self._state.about["population"])

    @property
    def _handler(self) -> Handler:
        computing = self.threads, self.workers, self._report
        return Handler(self._method_class, self._blueprint, self._chosen, self._seeds, *computing)

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
        """Swap a complete new state in, with what can be derived from the one before."""
        try:
            self._handler.take_along(self._state, state, request)
        finally:
            self._state = state

    def _meaning(self, request: Request) -> str:
        return meaning(request, self.tasks, self.forgets)

    def _report(self, phase: str, step: int, steps: int) -> None:
        if self.progress is not None and self._request is not None:
            self.progress(Progress(self._request, phase, step, steps))

    def _task(self, state: State, task: str) -> Task:
        if check_name(task) not in state.tasks:
            raise UnknownTask(unknown(task, state.tasks))
        return state.tasks[task]

    def _logits(self, state: State, task: str, x: Any, classes: int | None = None) -> Tensor:
        if classes is None:
            self._task(state, task)
        elif check_name(task) in state.tasks and classes != len(state.tasks[task].labels):
            have = len(state.tasks[task].labels)
            raise BadData(f"task {task!r} has {have} classes, so classes={classes!r:.40} cannot be asked for")
        if classes is not None and (type(classes) is not int or not 1 <= classes < 2**31):
            raise BadData(f"classes must be a positive integer, got {classes!r:.40}")
        return self._handler.logits(state, task, x, classes)

    def _outputs(self, state: State, task: str | None, x: Any) -> Tensor:
        """Outputs before the softmax: for a task's labels or, without a task, for all pairs and "none"."""
        return self._handler.scores(state, x) if task is None else self._logits(state, task, x)


def _scope(task: Any, person: Any, labels: Any, records: Any) -> Scope:
    if task is None and (person is None or labels is not None or records is not None):
        raise BadRequest("name a task; only a person is forgotten, or shown, in every task")
    scope = Scope(task, person, () if labels is None else labels, () if records is None else records)
    if (labels is not None and not scope.labels) or (records is not None and not scope.records):
        raise BadRequest("an empty list of labels or records names nothing")
    return scope


def _pairs(state: State) -> tuple[tuple[str, Any] | None, ...]:
    """The columns of a prediction without a task."""
    return (*((name, label) for name, task in state.tasks.items() for label in task.labels), None)
