"""Report which rows of a run were computed on which machine."""

from __future__ import annotations

from collections.abc import Sequence

from clpu.machine import Machine
from clpu.runs.recipe import Recipe

NOT_RECORDED = "not recorded"


def computed_on(recipe: Recipe, methods: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Describe each machine and list the methods that it computed.

    Machines with the same CPU that compute alike count as one. If there are several, only the versions in which they
    differ are named. A method whose jobs ran on several machines is listed with each of them, as `part of …`.
    """
    machines: dict[tuple[str, str], Machine | None] = {}
    computed: dict[tuple[str, str], list[str]] = {}
    for method in methods:
        kinds = {(m.key, m.describe()) if m else ("", NOT_RECORDED): m for m in recipe.machines_of(method)}
        machines = {**kinds, **machines}
        for kind in kinds:
            label = recipe.about(method).label
            computed.setdefault(kind, []).append(f"part of {label}" if len(kinds) > 1 else label)
    versions = [machine.versions for machine in machines.values() if machine]
    differing = {name for one in versions for name in one if len({other.get(name) for other in versions}) > 1}
    only = differing if len({key for key, _ in computed}) > 1 else None
    found = [(machines[kind], labels) for kind, labels in computed.items()]
    return [(machine.describe(only) if machine else NOT_RECORDED, labels) for machine, labels in found]


def mixture(recipe: Recipe, methods: Sequence[str]) -> str:
    """Say which rows were computed on which machine; empty if all were computed on machines that compute alike."""
    keys = {m.key if m else NOT_RECORDED for method in methods for m in recipe.machines_of(method)}
    if len(keys) < 2:
        return ""
    listed = ". ".join(
        f"({number}) {', '.join(labels)}: {machine}"
        for number, (machine, labels) in enumerate(computed_on(recipe, methods), 1)
    )
    why = "Computed on different machines, so rows may differ for that reason alone"
    return f"{why}; machines with the same fingerprint and versions compute alike. {listed}."


def keys_of(recipe: Recipe, method: str) -> str:
    """Identify the machines that computed a method, for a table: equal where machines compute alike."""
    return "+".join(dict.fromkeys(m.key if m else NOT_RECORDED for m in recipe.machines_of(method)))
