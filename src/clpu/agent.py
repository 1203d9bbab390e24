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

from clpu import auto, tables
from clpu.errors import (
    AlreadyLearned,
    BadData,
    BadNetwork,
    BadRequest,
    BadSetting,
    BadState,
    CannotForget,
    Diverged,
    UnknownTask,
)
from clpu.holdout import check_share, measured, with_every_class
from clpu.holdout import chosen as held_out_rows
from clpu.inputs import describe, left_in, read_examples, read_ids, read_inputs, read_people
from clpu.labels import decode, encode, listed, read_labels
from clpu.learning.batches import Examples
from clpu.methods import METHODS, Method, familiarity
from clpu.methods.networks import inputs_of_state
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.network import Network
from clpu.outcome import Change, Outcome
from clpu.requests import Instruction, Label, Request, Scope, check_name, meaning, unknown
from clpu.scaling import Scaling, fixed, fixed_columns
from clpu.settings import DEFAULT_METHOD, make, refuse_unknown, setting_fields
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


_NAMED = "the active tasks were learned from named columns"
_UNNAMED = "the active tasks were learned from arrays without column names; hand in an array with columns in that order"


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
    threads, whatever the process uses otherwise; a different count may give a different digest.
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
        progress: Callable[[Progress], None] | None = None,
        **settings: Any,
    ) -> None:
        self._method_class = _method_class(method)
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

    def learn(
        self,
        task: str,
        x: Any,
        y: Any = None,
        *,
        temporary: bool = False,
        holdout: float = 0.0,
        ignore: Sequence[str] = (),
        people: Any = None,
        records: Any = None,
        **settings: Any,
    ) -> Outcome:
        """Learn a new task, permanently (R) or, with `temporary`, temporarily (T).

        `x` may be a torch Dataset of pairs, a DataLoader, or a data frame: then `y` may name the column of labels, and
        `ignore` names columns to leave out. With `holdout=0.1` about a tenth of the data is not learned from but used
        to say how good the task was learned.

        For methods that forget records: `people` says who each record is about, one id or a list of ids per record,
        and `records` gives each an id of its own; of a data frame, both may be names of columns. Further keyword
        arguments are settings for this task, in place of the agent's: `epochs=50`, `lr=0.01`. Returns what that did to
        the remembered tasks, and the figure.
        """
        request = Request(check_name(task), Instruction.TEMPORARY if temporary else Instruction.REMEMBER)
        with self._handling(request) as state:
            if self._meaning(request) != "learn":
                raise AlreadyLearned(
                    f"task {task!r} already exists (status {self.tasks[task]}); call keep() to make a temporary task "
                    "permanent, or relearn() to replace what it was learned from"
                )
            about = {"ignore": ignore, "people": people, "records": records}
            return self._learn(state, request, x, y, holdout, about, settings)

    def relearn(
        self,
        task: str,
        x: Any,
        y: Any = None,
        *,
        holdout: float = 0.0,
        ignore: Sequence[str] = (),
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
            about = {"ignore": ignore, "people": people, "records": records}
            return self._learn(state.without(task), request, x, y, holdout, about, settings)

    def _learn(
        self,
        state: State,
        request: Request,
        x: Any,
        y: Any,
        holdout: float,
        about: dict[str, Any],
        settings: dict[str, Any],
    ) -> Outcome:
        """Learn a task that the state does not have."""
        task, share = request.task, check_share(holdout)
        chosen, kind = self._settings_for(settings), self._kind_of_scaling()
        x, y, people, records, columns = self._new_columns(state, x, y, **about)
        taught, held = self._split(self._examples(state, x, y, people, records, kind), share, task)
        scaling = self._new_scaling(kind, taught.x)
        data = dataclasses.replace(taught, x=self._scaled(taught.x, scaling))
        inputs = describe(data.x)
        self._blueprint.features(inputs, self._seeds)
        if getattr(chosen, "augment", "none") != "none" and len(inputs.shape) != 3:
            raise BadData(f"augmentation needs images (channels, height, width), got inputs of shape {inputs.shape}")
        found = auto.resolved(dataclasses.asdict(chosen), len(data), data.x[0].numel(), self._blueprint.name)

        def work(method: Method) -> State:
            return method.learn(state, task, data, request.instruction is Instruction.TEMPORARY)

        with self._computing():
            new, used = self._trained(work, dataclasses.replace(chosen, **found), "lr" in found)
            named = {name: getattr(used, name) for name in sorted({*settings, *found})}
            base = self._blueprint.base
            # What a method sees of a base does not tell what inputs look like.
            shape = Inputs(data.shape).to_json() if base is not None and base.one_shape else None
            facts = {"settings": _plain(named), "scaling": scaling, "given": shape, "columns": columns}
            new = _with_facts(new, task, **{name: value for name, value in facts.items() if value})
            new = self._calibrated(new, task, data.x)
            figure = None
            if held is not None:
                with torch.no_grad():
                    logits = self._built(used).logits(new, task, self._scaled(held.x, scaling))
                figure = measured(logits, held.y, data.y)
                if self.forgets != "records":  # without a person, the figure would have been another
                    new = _with_facts(new, task, held_out=figure.to_json())
            outcome = dataclasses.replace(self._outcome(state, new, task), held_out=figure)
        self._commit(new, request)
        return outcome

    def _split(self, data: Examples, share: float, task: str) -> tuple[Examples, Examples | None]:
        """What is learned from, and what is held out, if anything."""
        if not share:
            return data, None
        held = held_out_rows(data.x, share, self._seeds[0], task)
        if self.forgets != "records":  # where single records can leave, no record's part depends on the others
            held = with_every_class(held, data.y.cpu().numpy())
        elif len(np.unique(data.y.cpu().numpy()[~held])) < data.classes:
            raise BadData(f"holdout={share} leaves a class of task {task!r} without examples to learn from")
        return (data.chosen(~held), data.chosen(held)) if held.any() else (data, None)

    def add(self, task: str, x: Any, y: Any = None, *, people: Any = None, records: Any = None) -> None:
        """Add records to an active task, for methods that forget records; one whose id is there already is refused."""
        request = Request(check_name(task), Instruction.ADD)
        with self._handling(request) as state:
            self._meaning(request)
            if tables.is_table(x):
                x, y, people, records = tables.take(x, y, (), people, records)
                x = self._by_name(state, task, x)
            data = self._examples(state, x, y, people, records)
            known, new = state.tasks[task].labels[0], data.labels[0]
            if type(known) is not type(new):
                raise BadData(f"labels of task {task!r} are of type {type(known).__name__}, got {type(new).__name__}")
            with self._computing():
                after = self.new_method().add(state, task, data)
            self._commit(after, request)

    def keep(self, task: str) -> Outcome:
        """Make a temporary task permanent (R after T); nothing happens if it is permanent already.

        Returns what that did to the remembered tasks.
        """
        request = Request(check_name(task), Instruction.REMEMBER)
        with self._handling(request) as state:
            if task not in state.tasks:
                raise UnknownTask(unknown(task, state.tasks))
            with self._computing():
                if self._meaning(request) == "nothing":
                    return self._outcome(state, state, task)
                adapts = getattr(self._chosen, "lr", None) == "auto"
                new, _ = self._trained(lambda method: method.keep(state, task), self._settings_of(state, task), adapts)
                new = new.with_task(task, dataclasses.replace(new.tasks[task], status="R"))
                outcome = self._outcome(state, new, task)
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
        request = Request.forgetting(Scope.asked(task, person, labels, records))
        with self._handling(request) as state:
            self._meaning(request)
            with self._computing():
                method = self.new_method(task)
                if request.parts:
                    new = method.forget_records(state, request.scope)
                else:
                    new = method.forget(state, request.task)
            self._commit(new, request)

    def handle(
        self, request: str | Request, x: Any = None, y: Any = None, *, people: Any = None, records: Any = None
    ) -> Outcome | None:
        """Handle a request given as in a stream, such as "5T" or "5@p17F"; data come with R, T and A only.

        What a request to learn leaves out, as "5@p17R" does, is taken from the data first. Returns what
        `learn` or `keep` does; `None` for an add or a forget.
        """
        request = request if isinstance(request, Request) else Request.parse(request)
        what = self._meaning(request)
        if what in ("learn", "add"):
            if x is None:
                raise BadData(f"request {request} brings new records, so it needs data: handle({str(request)!r}, x, y)")
            if request.parts:
                x, y, people, records = left_in(request.parts, x, y, people, records)
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
        familiar to every task than 95 % of the task's own data. A population's answer has a replica axis.
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
        logits = self._logits(state, task, x, None)
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
        inputs = self._inputs(state, check_name(task), x)
        return self.new_method(task).network(state, task, describe(inputs))

    def new_method(self, task: str | None = None) -> Method:
        """The agent's method, built anew as for each request, with the settings of a task; it holds no state."""
        return self._built(self._settings_of(self._state, task))

    def show(self, task: str | None = None, *, person: str | int | None = None) -> dict[str, Any]:
        """What is held about a person, in one task or in all, or in one task about everybody.

        By task: how many records, of which labels, and the ids that they were given. `NothingHeld` if there are none.
        """
        state, scope = self._state, Scope.asked(task, person)
        if task is not None:
            self._task(state, task)
        return state.shown(scope)

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
            agent = cls(
                method or about["method"],
                network if network is not None else name,
                seeds=seeds,
                device=device,
                threads=threads,
                progress=progress,
                **_from_plain(settings),
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
        agent._check_facts(state)
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

    def _outcome(self, before: State, after: State, task: str) -> Outcome:
        """How well the remembered tasks and this one are known in two states, on the examples in memory."""
        method, changes = self.new_method(), {}
        for name in sorted({*after.remembered, task}):
            now = method.memory_accuracy(after, name)
            if now is None:
                continue
            then = method.memory_accuracy(before, name) if name in before.tasks else None
            changes[name] = Change(then, now)
        return Outcome(changes)

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
        """What inputs look like as users hand them in, by the active tasks; whether integers are tokens; the device."""
        base = self._blueprint.base
        if base is not None:
            given = next((task.facts.get("given") for task in state.tasks.values()), None)
            return None if given is None else Inputs.from_json(given), base.integer, self._blueprint.device
        inputs = inputs_of_state(state)
        if inputs is not None and any(task.facts.get("scaling") == "fixed" for task in state.tasks.values()):
            inputs = Inputs(fixed_columns(inputs.shape))
        return inputs, self._blueprint.users, self._blueprint.device

    # What is done to inputs before the method sees them

    def _kind_of_scaling(self) -> str:
        """What is done to numbers: "task", "fixed" or "none"."""
        kind: str = getattr(self._blueprint.settings, "scaling", "auto")
        if kind == "task" and self.forgets == "records":
            raise BadSetting("constants fitted to a task would remember people who leave it: use scaling='fixed'")
        if kind != "auto":
            return kind
        if self._blueprint.users or self.forgets == "records":  # a base makes small integers by itself
            return "none"
        return "task"

    def _new_scaling(self, kind: str, x: Tensor) -> Any:
        """The scaling of a new task with these inputs, as it is in its facts: constants, "fixed", or nothing."""
        if kind == "none" or not x.is_floating_point():
            return None
        if kind == "fixed":
            if x.dim() != 2:
                raise BadData(f"fixed scaling needs inputs of one axis, got {tuple(x.shape[1:])}; use scaling='none'")
            return "fixed"
        return Scaling.fitted(x, self._blueprint.name).to_json()

    def _scaled(self, x: Tensor, scaling: Any) -> Tensor:
        """Inputs as the method sees them, with a task's scaling as it is in its facts."""
        if scaling is None:
            return x
        return fixed(x) if scaling == "fixed" else Scaling.from_json(scaling)(x)

    def _new_columns(
        self, state: State, x: Any, y: Any, ignore: Sequence[str], people: Any, records: Any
    ) -> tuple[Any, Any, Any, Any, list[list[str]]]:
        """A new task's inputs, labels, people, ids and, of a table, columns, which must be the active tasks'."""
        before = [task.facts.get("columns") for task in state.tasks.values()]
        if not tables.is_table(x):
            if ignore or isinstance(y, str) or isinstance(people, str) or isinstance(records, str):
                raise BadData("only a table has columns to name: a data frame, or a dictionary of columns")
            if any(before):
                raise BadData(f"{_NAMED}; hand in a table with the columns {listed(n for n, _ in before[0] or [])}")
            return x, y, people, records, []
        x, y, people, records = tables.take(x, y, ignore, people, records)
        array, columns = tables.encode(x)
        if before and not before[0]:
            raise BadData(_UNNAMED)
        differs = tables.disagreement(before[0] or [], columns) if before else ""
        if differs:
            raise BadData(f"the columns differ from those of the active tasks: {differs}")
        return array, y, people, records, [list(column) for column in columns]

    def _by_name(self, state: State, task: str, x: Any) -> Any:
        """Inputs as an array: a table's columns by the names that a task was learned with, or the active ones were."""
        some = state.tasks.get(task) or next(iter(state.tasks.values()), None)
        columns = None if some is None else some.facts.get("columns")
        if tables.is_table(x):
            if some is not None and not columns:
                raise BadData(_UNNAMED)
            return tables.encode(x, columns)[0]
        if columns:
            raise BadData(f"{_NAMED}; hand in a table with the columns {listed(name for name, _ in columns)}")
        return x

    def _given(self, state: State, x: Any, wide: bool) -> Tensor:
        """Inputs as they were given, checked, or a base's features of them."""
        base = self._blueprint.base
        wide = base.one_shape if base else wide
        read = read_inputs(base.encoded(x) if base else x, *self._expectations(state), wide=wide)
        return self._blueprint.features_of(read)

    def _inputs(self, state: State, task: str, x: Any) -> Tensor:
        """Inputs as the method sees them for a task; as they are, if the task is not active."""
        x = self._by_name(state, task, x)
        scaling = state.tasks[task].facts.get("scaling") if task in state.tasks else None
        given = self._given(state, x, wide=scaling is not None)
        if scaling is not None and not given.is_floating_point():
            raise BadData(
                f"task {task!r} was learned from numbers and these are bytes, which stand for pixels; "
                "hand them in as the task's data were: x.astype(float), or x / 255"
            )
        return self._scaled(given, scaling)

    # Settings

    def _settings_for(self, given: dict[str, Any]) -> Any:
        """The agent's settings of the method with some of them replaced for one request."""
        fields = setting_fields(self._method_class.Settings)
        refuse_unknown(given, fields)
        return (
            make(self._method_class.Settings, {**dataclasses.asdict(self._chosen), **given}) if given else self._chosen
        )

    def _settings_of(self, state: State, task: str | None) -> Any:
        """The settings that a task was learned with; the agent's, if there is no such task."""
        facts = state.tasks[task].facts if task is not None and task in state.tasks else {}
        return self._settings_for(_from_plain(facts.get("settings", {})))

    def _built(self, settings: Any) -> Method:
        return self._method_class(settings, self._blueprint, self._seeds, self._report)

    def _trained(self, work: Callable[[Method], State], settings: Any, adapts: bool) -> tuple[State, Any]:
        """What training gives, and the settings it took: if it diverges, a learning rate that adapts is lowered."""
        for attempt in range(auto.ATTEMPTS):
            try:
                return work(self._built(settings)), settings
            except Diverged:
                if not adapts or attempt == auto.ATTEMPTS - 1:
                    raise
                settings = dataclasses.replace(settings, lr=settings.lr / auto.SLOWER)
        raise AssertionError

    def _examples(self, state: State, x: Any, y: Any, people: Any, records: Any, kind: str = "none") -> Examples:
        """A request's data, checked, before a kind of scaling."""
        single = self.forgets == "records"
        if not single and (people is not None or records is not None):
            raise BadRequest(
                f"{self.method} learns all records of a task together and cannot forget single ones, so it takes no "
                "people and no record ids; 'ridge' does"
            )
        base = self._blueprint.base
        wide, fewest = base.one_shape if base else kind != "none", 1 if single else 2
        given = base.encoded(x) if base else x
        data = read_examples(given, y, *self._expectations(state), wide=wide, fewest=fewest)
        return dataclasses.replace(
            data,
            x=self._blueprint.features_of(data.x),
            shape=tuple(data.x.shape[1:]),
            people=() if people is None else read_people(people, len(data)),
            records=() if records is None else read_ids(records, len(data)),
        )

    def _logits(self, state: State, task: str, x: Any, classes: int | None) -> Tensor:
        if classes is None:
            self._task(state, task)
        elif check_name(task) in state.tasks and classes != len(state.tasks[task].labels):
            have = len(state.tasks[task].labels)
            raise BadData(f"task {task!r} has {have} classes, so classes={classes!r:.40} cannot be asked for")
        if classes is not None and (type(classes) is not int or not 1 <= classes < 2**31):
            raise BadData(f"classes must be a positive integer, got {classes!r:.40}")
        inputs = self._inputs(state, task, x)
        with torch.no_grad(), self._computing(), torch.no_grad():
            return self._built(self._settings_of(state, task)).logits(state, task, inputs, classes)

    def _outputs(self, state: State, task: str | None, x: Any) -> Tensor:
        """What a softmax makes probabilities of: of a task's labels or, without a task, of all pairs and "none"."""
        if task is not None:
            return self._logits(state, task, x, None)
        if not state.tasks:
            raise UnknownTask("no task is active, so there is nothing to tell apart; learn one first")
        with torch.no_grad(), self._computing(), torch.no_grad():
            if self._blueprint.base is not None:  # its features are the same for all tasks
                seen = self._given(state, self._by_name(state, "", x), wide=False)
                inputs = {name: self._scaled(seen, task.facts.get("scaling")) for name, task in state.tasks.items()}
            else:
                inputs = {name: self._inputs(state, name, x) for name in state.tasks}
            return self._built(self._chosen).scores(state, inputs)

    def _calibrated(self, state: State, task: str, x: Tensor) -> State:
        """The state with what a task needs to recognise its own inputs; nothing where single records can be forgotten.

        (The calibration would remember them; such a method brings `scores` of its own.)
        """
        if self.forgets == "records":
            return state
        some = familiarity.sample(x)
        with torch.no_grad():
            logits = self._built(self._settings_of(state, task)).logits(state, task, some)
        return _with_facts(
            state, task, familiar=familiarity.calibration(some, logits, "scaling" in state.tasks[task].facts)
        )

    def _check_facts(self, state: State) -> None:
        """Refuse settings and scaling that no request can have left in a task's facts."""
        for name, task in state.tasks.items():
            try:
                given = task.facts.get("settings", {})
                self._settings_for(_from_plain(given))
                if "auto" in given.values():
                    raise BadSetting("a setting of a task is a value, not auto")
            except (BadSetting, AttributeError, TypeError) as error:
                raise BadState(f"the settings of task {name!r} cannot be used: {error!s:.200}") from None
            scaling, inputs = task.facts.get("scaling"), Inputs.from_json(task.facts.get("inputs"))
            if scaling not in (None, "fixed"):
                Scaling.from_json(scaling).check(inputs.shape)
            shape = fixed_columns(inputs.shape) if scaling == "fixed" else inputs.shape
            if "given" in task.facts:
                shape = Inputs.from_json(task.facts["given"]).shape
            if not tables.are_columns(task.facts.get("columns", []), shape):
                raise BadState(f"task {name!r} has columns that cannot be read")

    def _check_probes(self, state: State) -> None:
        """Refuse a module that starts from the saved weights but computes something else with them."""
        for task in state.tasks.values():
            inputs = Inputs.from_json(task.facts.get("inputs"))
            now, then = self._blueprint.probe(inputs, self._seeds), task.facts.get("probe", [])
            same = isinstance(then, list) and len(now) == len(then)
            if not same or not all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5) for a, b in zip(now, then)):
                raise BadState("the network has the saved weights but computes different outputs: its code has changed")
            return


def _pairs(state: State) -> tuple[tuple[str, Any] | None, ...]:
    """The columns of a prediction without a task."""
    return (*((name, label) for name, task in state.tasks.items() for label in task.labels), None)


def _with_facts(state: State, task: str, **facts: Any) -> State:
    entry = state.tasks[task]
    return state.with_task(task, dataclasses.replace(entry, facts={**entry.facts, **facts}))


def _from_plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings from JSON, which has lists for tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


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
