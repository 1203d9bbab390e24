"""Which rows of a run come from which machine."""

from __future__ import annotations

from collections.abc import Sequence

from clpu.machine import Machine
from clpu.recipe import Recipe
from clpu.report import names

NOT_RECORDED = "not recorded"


def computed_on(recipe: Recipe, methods: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each machine in words, with the methods that it computed; machines that compute alike count as one.

    If there are several, only those versions are told that they do not have in common. A method of which several
    machines computed some jobs each stands with all of them, as `part of …`.
    """
    machines: dict[str, Machine | None] = {}
    made: dict[str, list[str]] = {}
    for method in methods:
        by = {machine.key if machine else "": machine for machine in recipe.machines_of(method)}
        machines = {**by, **machines}
        for key in by:
            made.setdefault(key, []).append(("part of " if len(by) > 1 else "") + names.method(method))
    known = [machine.versions for machine in machines.values() if machine]
    differing = {name for one in known for name in one if len({other.get(name) for other in known}) > 1}
    only = differing if len(made) > 1 else None
    found = [(machines[key], labels) for key, labels in made.items()]
    return [(machine.describe(only) if machine else NOT_RECORDED, labels) for machine, labels in found]


def mixture(recipe: Recipe, methods: Sequence[str]) -> str:
    """A sentence that says which rows come from which machine; empty if all come from one."""
    made = computed_on(recipe, methods)
    if len(made) < 2:
        return ""
    listed = ". ".join(f"({number}) {', '.join(labels)}: {machine}" for number, (machine, labels) in enumerate(made, 1))
    return f"Computed on different machines, so rows may differ for that reason alone. {listed}."


def keys_of(recipe: Recipe, method: str) -> str:
    """What computed a method in short, for a table: equal where machines compute alike."""
    return "+".join(dict.fromkeys(m.key if m else NOT_RECORDED for m in recipe.machines_of(method)))
