"""Saved states, checked before an agent continues from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from clpu import tables
from clpu.errors import BadSetting, BadState
from clpu.handler import Handler
from clpu.networks.blueprint import Inputs
from clpu.scaling import Scaling, fixed_columns
from clpu.settings import from_json
from clpu.state import State
from clpu.state.schema import check_state


def read_state(state: Any) -> State:
    """A state, or the one that bytes hold."""
    if isinstance(state, (bytes, bytearray, memoryview)):
        return State.from_bytes(bytes(state))
    if not isinstance(state, State):
        raise BadState(f"expected bytes or a state, got {type(state).__name__}")
    return state


def read_about(about: Mapping[str, Any], own_network: bool) -> tuple[str, list[Any], dict[str, Any]]:
    """The network's name, seeds and settings of a saved agent; a user's module must be handed in, and nothing else."""
    name, seeds, settings = about["network"], about["seeds"], about["settings"]
    if not (isinstance(name, str) and isinstance(seeds, list) and isinstance(settings, dict)):
        raise TypeError("network must be a name, seeds a list and settings an object")
    if (name == "module") != own_network:
        raise BadState(f"the saved agent's network is {name!r:.40}; hand in network= only if it is your own")
    return name, seeds, from_json(settings)


def check_about(saved: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Refuse a description that is not that of the agent made from it."""
    if saved.get("method") != made["method"]:
        raise BadState(
            f"the saved agent's method is {saved.get('method')!r:.40}, the one handed in is {made['method']!r}"
        )
    if saved.get("start") != made["start"]:
        raise BadState("the network does not start from the weights that the saved agent's network had")
    if dict(saved) != {**made, "population": saved.get("population") is True}:
        raise BadState(f"unexpected entries in the description: {sorted({*saved} ^ {*made})}")


def check_restored(handler: Handler, state: State) -> None:
    """Refuse a state that no requests to such an agent can have left."""
    for name, task in state.tasks.items():
        try:
            given = task.facts.get("settings", {})
            handler.settings_for(from_json(given))
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
    check_state(handler.build_for(state), state)
    _check_probe(handler, state)


def _check_probe(handler: Handler, state: State) -> None:
    """Refuse a module that starts from the saved weights but computes something else with them."""
    task = next(iter(state.tasks.values()), None)
    if task is None:
        return
    now = handler.blueprint.probe(Inputs.from_json(task.facts.get("inputs")), handler.seeds)
    then = task.facts.get("probe", [])
    same = isinstance(then, list) and len(now) == len(then)
    if not same or not all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5) for a, b in zip(now, then)):
        raise BadState("the network has the saved weights but computes different outputs: its code has changed")
