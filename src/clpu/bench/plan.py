"""The plan of a benchmark: one job per method, group and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clpu.requests import Stream
from clpu.runs.folder import Plan
from clpu.runs.jobs import Job
from clpu.runs.plan import counterfactuals, prepare
from clpu.runs.recipe import Recipe


def plan(*arguments: Any, **options: Any) -> Plan:
    """Check everything that can be checked before the first step, and list the jobs; arguments as for `prepare`."""
    recipe, data = prepare(*arguments, **options)
    return Plan(recipe, data, {method: list(_jobs(method, recipe)) for method in recipe.methods})


def _jobs(method: str, recipe: Recipe) -> Iterator[Job]:
    stream, network = Stream(recipe.requests), str(recipe.network["name"])
    # The MLP's replicas are stacked in one process; those of other networks are spread over processes.
    size = len(recipe.seeds) if network == "mlp" else 1
    groups = [("actual", str(stream), recipe.seeds, tuple(stream.forgets))]
    for text, numbers in counterfactuals(stream).items():
        groups.append((f"counterfactual-{numbers[-1]}", text, recipe.counterfactual_seeds, (len(Stream(text)),)))
    settings = dict(recipe.settings[method])
    where = str(recipe.machine["device"]), int(recipe.machine["threads"])
    for group, text, seeds, outputs in groups:
        for first in range(0, len(seeds), size):
            yield Job(method, group, text, tuple(seeds[first : first + size]), network, settings, outputs, *where)
