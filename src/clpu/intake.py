"""A request's data as the method sees them: read, checked against the active tasks, held out, and scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clpu import tables
from clpu.errors import BadData, BadRequest, BadSetting
from clpu.holdout import chosen, with_every_class
from clpu.inputs import read_examples, read_ids, read_inputs, read_people
from clpu.labels import listed
from clpu.learning.batches import Examples
from clpu.methods import Method
from clpu.methods.networks import inputs_of_state
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.scaling import Scaling, fixed, fixed_columns
from clpu.state import State
from clpu.workers import Workers

_NAMED = "the active tasks were learned from named columns"
_UNNAMED = "the active tasks were learned from arrays without column names; hand in an array with columns in that order"


@dataclass(frozen=True)
class RequestData:
    """A request's data as handed in: inputs, labels, people and ids; of a table, columns to ignore and of text."""

    x: Any
    y: Any
    people: Any = None
    records: Any = None
    ignore: Sequence[str] = ()
    text: Sequence[str] | None = None

    def columns_taken(self) -> RequestData:
        """The same after labels, people and ids that are columns of a table were taken out of it."""
        x, y, people, records = tables.take(self.x, self.y, self.ignore, self.people, self.records)
        return RequestData(x, y, people, records)


@dataclass(frozen=True)
class NewTask:
    """A new task's data as the method sees them."""

    data: Examples
    held_out: Examples | None
    #: Facts of the task about its inputs: scaling, shape as given, columns.
    facts: dict[str, Any]


@dataclass(frozen=True)
class Intake:
    """Reads data for a method on a network, and checks that they agree with the active tasks'."""

    method: type[Method]
    blueprint: Blueprint
    workers: Workers

    @property
    def single(self) -> bool:
        """Whether single records can leave a task."""
        return self.method.forgets == "records"

    def new_task(self, state: State, task: str, given: RequestData, holdout: float, seed: int) -> NewTask:
        """Read the data of a new task, of which a share is held out."""
        kind = self._kind_of_scaling()
        given, columns = self._new_columns(state, given)
        data = self._examples(state, given, kind)
        taught, held = self._split(data, holdout, seed, task)
        scaling = self._new_scaling(kind, taught.x)
        if kind == "fixed" and any(
            (one.facts.get("scaling") is None) != (scaling is None) for one in state.tasks.values()
        ):
            raise BadData(
                "with scaling='fixed', the inputs of all tasks are bytes, which stand for pixels, or none are"
            )
        base = self.blueprint.base
        # The features that a method sees do not say what shape inputs have.
        shape = Inputs(data.shape).to_json() if base is not None and base.one_shape else None
        facts = {"scaling": scaling, "given": shape, "columns": columns}
        return NewTask(
            replace(taught, x=scaled(taught.x, scaling)),
            None if held is None else replace(held, x=scaled(held.x, scaling)),
            {name: value for name, value in facts.items() if value},
        )

    def more(self, state: State, task: str, given: RequestData) -> Examples:
        """Read further records of an active task."""
        if tables.is_table(given.x):
            given = given.columns_taken()
            given = replace(given, x=_by_name(state, task, given.x))
        scaling = state.tasks[task].facts.get("scaling")
        data = self._examples(state, given, "none" if scaling is None else "fixed")
        data = replace(data, x=_scaled_as(task, data.x, scaling))
        known, new = state.tasks[task].labels[0], data.labels[0]
        if type(known) is not type(new):
            raise BadData(f"labels of task {task!r} are of type {type(known).__name__}, got {type(new).__name__}")
        return data

    def inputs(self, state: State, task: str, x: Any) -> Tensor:
        """Inputs as the method sees them for a task; unscaled if the task is not active."""
        x = _by_name(state, task, x)
        scaling = state.tasks[task].facts.get("scaling") if task in state.tasks else None
        return _scaled_as(task, self._read(state, x, wide=scaling is not None), scaling)

    def inputs_by_task(self, state: State, x: Any) -> dict[str, Tensor]:
        """The same inputs as the method sees them for each active task."""
        if self.blueprint.base is None:
            return {name: self.inputs(state, name, x) for name in state.tasks}
        features = self._read(state, _by_name(state, "", x), wide=False)  # the same for all tasks
        return {name: scaled(features, task.facts.get("scaling")) for name, task in state.tasks.items()}

    def _read(self, state: State, x: Any, wide: bool) -> Tensor:
        """Inputs, checked, or a base's features of them."""
        base = self.blueprint.base
        wide = base.one_shape if base else wide
        read = read_inputs(base.encoded(x) if base else x, *self._expectations(state), wide=wide)
        return self.blueprint.features_of(read, self.workers)

    def _examples(self, state: State, given: RequestData, kind: str = "none") -> Examples:
        """A request's data, checked, before a kind of scaling."""
        people, records = given.people, given.records
        if not self.single and (people is not None or records is not None):
            raise BadRequest(
                f"{self.method.name} learns all records of a task together and cannot forget single ones, so it takes "
                "no people and no record ids; 'ridge' does"
            )
        base = self.blueprint.base
        x = base.encoded(given.x) if base else given.x
        wide, fewest = base.one_shape if base else kind != "none", 1 if self.single else 2
        data = read_examples(x, given.y, *self._expectations(state), wide=wide, fewest=fewest)
        return replace(
            data,
            x=self.blueprint.features_of(data.x, self.workers),
            shape=tuple(data.x.shape[1:]),
            people=() if people is None else read_people(people, len(data)),
            records=() if records is None else read_ids(records, len(data)),
        )

    def _split(self, data: Examples, share: float, seed: int, task: str) -> tuple[Examples, Examples | None]:
        """Split data into what is learned from and what is held out, if anything."""
        if not share:
            return data, None
        held = chosen(data.x, share, seed, task)
        if not self.single:  # where single records can leave, no record's part depends on the others
            held = with_every_class(held, data.y.cpu().numpy())
        elif len(np.unique(data.y.cpu().numpy()[~held])) < data.classes:
            raise BadData(f"holdout={share} leaves a class of task {task!r} without examples to learn from")
        return (data.chosen(~held), data.chosen(held)) if held.any() else (data, None)

    def _expectations(self, state: State) -> tuple[Inputs | None, bool, torch.device]:
        """Return the inputs that the active tasks lead us to expect, whether integers are tokens, and the device."""
        base = self.blueprint.base
        if base is not None:
            given = next((task.facts.get("given") for task in state.tasks.values()), None)
            return None if given is None else Inputs.from_json(given), base.integer, self.blueprint.device
        inputs = inputs_of_state(state)
        if inputs is not None and any(task.facts.get("scaling") == "fixed" for task in state.tasks.values()):
            inputs = Inputs(fixed_columns(inputs.shape))
        return inputs, self.blueprint.users, self.blueprint.device

    def _kind_of_scaling(self) -> str:
        """Return how the numbers of new tasks are scaled: "task", "fixed" or "none"."""
        kind: str = getattr(self.blueprint.settings, "scaling", "auto")
        if kind == "task" and self.single:
            raise BadSetting("constants fitted to a task would remember people who leave it: use scaling='fixed'")
        if kind != "auto":
            return kind
        if self.blueprint.users or self.single:  # a base makes small integers by itself
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
        return Scaling.fitted(x, self.blueprint.name).to_json()

    def _new_columns(self, state: State, given: RequestData) -> tuple[RequestData, list[list[str]]]:
        """A new task's data as arrays and, of a table, its columns, which must be the active tasks'."""
        before = [task.facts.get("columns") for task in state.tasks.values()]
        if not tables.is_table(given.x):
            names = (given.y, given.people, given.records)
            if given.ignore or given.text or any(isinstance(name, str) for name in names):
                got = f"got {type(given.x).__name__}"
                raise BadData(f"only a table has columns to name: a data frame, or a dictionary of columns; {got}")
            if any(before):
                raise BadData(f"{_NAMED}; hand in a table with the columns {listed(n for n, _ in before[0] or [])}")
            return given, []
        if before and not before[0]:
            raise BadData(_UNNAMED)
        text = given.text
        if text is None and self.single:  # not guessed: one record would decide
            text = tables.text_columns(state.tasks)
        given = given.columns_taken()
        array, columns = tables.encode(given.x, text=text)
        differs = tables.disagreement(before[0] or [], columns) if before else ""
        if differs:
            raise BadData(f"the columns differ from those of the active tasks: {differs}")
        return replace(given, x=array), [list(column) for column in columns]


def scaled(x: Tensor, scaling: Any) -> Tensor:
    """Scale inputs as a task's facts say: by constants, by the fixed transform, or not at all."""
    if scaling is None:
        return x
    return fixed(x) if scaling == "fixed" else Scaling.from_json(scaling)(x)


def _scaled_as(task: str, x: Tensor, scaling: Any) -> Tensor:
    """Scale inputs as those that a task was learned from; bytes are refused if those were numbers."""
    if scaling is not None and not x.is_floating_point():
        raise BadData(
            f"task {task!r} was learned from numbers and these are bytes, which stand for pixels; "
            "hand them in as the task's data were: x.astype(float), or x / 255"
        )
    return scaled(x, scaling)


def _by_name(state: State, task: str, x: Any) -> Any:
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
