"""Checking a saved state: every leaf holds what the method declares, no more and no less."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol

from clpu.errors import BadState
from clpu.state.leaf import Leaf, Spec
from clpu.state.tree import State, Task

#: The tensors that a leaf may hold: types and shapes by name. `*` in a name matches any text without `/`; a `?` at the
#: end of a name marks a tensor that may be missing.
Schema = Mapping[str, Spec | tuple[Spec, ...]]


class Declaring(Protocol):
    """The part of a method that declares what its leaves hold."""

    def shared_schema(self, state: State) -> Schema: ...
    def task_schema(self, state: State, task: Task) -> Schema: ...
    def people_schema(self, state: State, task: Task) -> Schema: ...
    def check(self, state: State) -> None: ...


def check_state(method: Declaring, state: State) -> None:
    """Refuse a state that such a method cannot have made."""
    check_facts(state)
    for name, task in state.tasks.items():
        _check_leaf(f"task {name!r}", task.own, method.task_schema(state, task))
        for people, leaf in task.people.items():
            _check_leaf(f"task {name!r}, people {people}", leaf, method.people_schema(state, task))
    _check_leaf("what tasks share", state.shared, method.shared_schema(state) if state.shared else {})
    for name, task in state.tasks.items():
        _check_familiar(name, task.facts.get("familiar", {}), len(state.about["seeds"]))
    method.check(state)


def check_facts(state: State) -> None:
    """Refuse facts that no method can have written; needs neither torch nor the method."""
    for name, task in state.tasks.items():
        _check_facts(name, task.facts)


def _check_facts(name: str, facts: Mapping[str, Any]) -> None:
    labels, steps = facts.get("labels"), facts.get("steps", 0)
    if not isinstance(facts.get("inputs"), dict):
        raise BadState(f"task {name!r} does not describe its inputs")
    if not isinstance(labels, list) or not labels:
        raise BadState(f"task {name!r} has no list of labels")
    if {type(label) for label in labels} not in ({int}, {bool}, {str}) or labels != sorted(set(labels)):
        raise BadState(f"task {name!r} has labels that are not ascending integers, booleans or texts")
    if type(labels[0]) is int and max(map(abs, labels)) >= 2**63:
        raise BadState(f"task {name!r} has labels that are integers beyond 64 bits")
    _check_columns(name, facts.get("columns", []))
    _check_held_out(name, facts.get("held_out"))
    if type(steps) is not int or not 0 <= steps < 2**53:
        raise BadState(f"task {name!r} was learned in {steps!r:.40} steps")


def _check_columns(name: str, columns: Any) -> None:
    """The columns of a table: pairs of a name and what it holds."""
    if not isinstance(columns, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in columns
    ):
        raise BadState(f"task {name!r} has columns that cannot be read")


def _check_held_out(name: str, held_out: Any) -> None:
    if held_out is None:
        return
    good = isinstance(held_out, dict) and {*held_out} == {"examples", "correct", "most_frequent"}
    if good:
        examples, correct, most = held_out["examples"], held_out["correct"], held_out["most_frequent"]
        good = type(examples) is int and type(most) is int and type(correct) is float
        good = good and examples > 0 and 0 <= correct <= examples and 0 <= most <= examples
    if not good:
        raise BadState(f"task {name!r} has a held-out result that cannot be read")


def _check_familiar(name: str, familiar: Any, replicas: int) -> None:
    """The calibration of a head: pairs of numbers, one for each replica or one for all."""
    counts = {"energy": replicas, "size": 1}
    good = isinstance(familiar, dict) and all(
        part in counts and isinstance(pairs, list) and len(pairs) == counts[part] and all(map(_is_pair, pairs))
        for part, pairs in familiar.items()
    )
    if not good:
        raise BadState(f"task {name!r} has a calibration that is not pairs of numbers")


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(n) is float and isfinite(n) for n in pair)


def _check_leaf(what: str, leaf: Leaf | None, schema: Schema) -> None:
    specs = {} if leaf is None else leaf.specs
    known = {name.removesuffix("?"): spec if isinstance(spec, tuple) else (spec,) for name, spec in schema.items()}
    patterns = {name: _pattern(name) for name in known if "*" in name}
    for name, spec in specs.items():
        declared = name if name in known else next((n for n, p in patterns.items() if p.fullmatch(name)), None)
        allowed = None if declared is None else known[declared]
        if allowed is None:
            raise BadState(f"{what}: unexpected tensor {name!r:.100}")
        if not any(one.admits(spec) for one in allowed):
            raise BadState(f"{what}: {name!r:.100} must be {' or '.join(map(str, allowed))}, got {spec}")
    for name in schema:
        found = any(map(patterns[name].fullmatch, specs)) if name in patterns else name in specs
        if not name.endswith("?") and not found:
            raise BadState(f"{what}: tensor {name!r:.100} is missing")
    if leaf is not None:
        for name, tensor in leaf.tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise BadState(f"{what}: {name!r:.100} holds NaN or infinity")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, name.split("*"))))


__all__ = ["Spec", "check_facts", "check_state"]
