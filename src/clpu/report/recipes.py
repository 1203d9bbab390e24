"""Show how the numbers were computed: the recipe of a run, and the differences between the recipes of several runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clpu.report.html_tables import Cell, Line, Table
from clpu.report.machines import NOT_RECORDED, computed_on, keys_of
from clpu.results import Run
from clpu.runs.recipe import Recipe
from clpu.terminal import duration


@dataclass(frozen=True)
class Entry:
    """A term of the recipe and its text, one line or several; `code` is set in a typewriter face."""

    term: str
    lines: Sequence[str]
    code: bool = False


@dataclass(frozen=True)
class RecipeView:
    """A recipe as the page shows it; `settings` are pairs of a method and its assignments."""

    entries: Sequence[Entry]
    settings: Sequence[tuple[str, str]]


def view_recipe(recipe: Recipe, finished: Iterable[str]) -> RecipeView:
    """Return everything that is needed to reproduce a run; `finished` are the methods that have results."""
    data = recipe.data
    classes = " or ".join(map(str, sorted(set(data.classes))))
    entries = [
        Entry("Command", [recipe.command or "–"], code=bool(recipe.command)),
        Entry("Requests", [recipe.requests], code=True),
        Entry("Seeds", [_seeds(recipe)]),
        Entry(
            "Data",
            [
                f"{data.name}: {data.tasks} tasks of {classes} classes, {data.train:,} training and {data.test:,} test "
                f"images, seed {data.seed}"
            ],
        ),
        Entry("SHA-256", [_plain(data.sha256)], code=True),
    ]
    if data.tasks_sha256:
        entries.append(Entry("of the tasks as used", [data.tasks_sha256], code=True))
    entries += [
        Entry("Network", [_plain(recipe.network)], code=True),
        Entry("Versions", [", ".join(f"{k} {v}" for k, v in sorted(recipe.versions.items())) or "–"]),
        Entry("Machine", [", ".join(f"{k} {v}" for k, v in sorted(recipe.machine.items())) or "–"]),
        Entry("Computed on", _computed_on(recipe, finished)),
    ]
    if recipe.started:
        took = f", took {duration(recipe.seconds)}" if recipe.seconds is not None else ""
        entries.append(Entry("Started", [recipe.started + took]))
    entries += [Entry("Note", [note]) for note in recipe.notes]
    return RecipeView(entries, _settings(recipe))


def _computed_on(recipe: Recipe, methods: Iterable[str]) -> list[str]:
    """Return the machines, one per line; if there are several, with the methods that each computed."""
    computed = computed_on(recipe, list(methods))
    if len(computed) < 2:
        return [machine for machine, _ in computed] or [NOT_RECORDED]
    return [f"{', '.join(labels)}: {machine}" for machine, labels in computed]


def _settings(recipe: Recipe) -> list[tuple[str, str]]:
    common, own = split_settings(recipe.settings)
    lines = [("all methods", _assignments(common))] if common else []
    return lines + [(recipe.about(method).label, _assignments(values)) for method, values in own.items() if values]


def split_settings(
    settings: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Separate the settings that all methods share from those of each method.

    >>> split_settings({"er": {"lr": 0.1, "memory": 200}, "seq": {"lr": 0.1}})
    ({'lr': 0.1}, {'er': {'memory': 200}, 'seq': {}})
    """
    if not settings:
        return {}, {}
    every = list(settings.values())
    common = {
        key: value for key, value in every[0].items() if all(key in one and one[key] == value for one in every[1:])
    }
    own = {method: {k: v for k, v in one.items() if k not in common} for method, one in settings.items()}
    return common, own


def differences(runs: Sequence[Run]) -> Table | None:
    """Return a table of what differs between the recipes of several runs, or None if nothing does."""
    facts = [_facts(run) for run in runs]
    every = {key: [one.get(key, "–") for one in facts] for key in dict.fromkeys(key for one in facts for key in one)}
    rows = {key: values for key, values in every.items() if len(set(values)) > 1}
    rows |= _different_settings([run.recipe for run in runs])
    if not rows:
        return None
    lines = [Line(key, [Cell(value) for value in values]) for key, values in rows.items()]
    return Table(["", *(run.name for run in runs)], lines, style="plain wrap")


def _facts(run: Run) -> dict[str, str]:
    """Return what determines a run's numbers besides its settings; times, machine names and commands always differ."""
    recipe = run.recipe
    return {
        "benchmark": recipe.benchmark,
        "requests": recipe.requests,
        "profile": recipe.profile,
        "methods": ", ".join(recipe.about(method).label for method in recipe.in_order(recipe.methods)),
        "seeds": _seeds(recipe),
        "network": _plain(recipe.network),
        "data": recipe.data.name,
        "tasks": f"{recipe.data.tasks}, seed {recipe.data.seed}",
        "training images": f"{recipe.data.train:,}",
        "test images": f"{recipe.data.test:,}",
        "SHA-256 of the data": _plain(recipe.data.sha256),
        "computed on": ", ".join(dict.fromkeys(keys_of(recipe, method) for method in run.results)) or NOT_RECORDED,
        "device": str(recipe.machine.get("device", "cpu")),
        **{
            name: str(version) for name, version in recipe.versions.items() if name not in ("numpy", "python", "pillow")
        },
    }


def _different_settings(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the settings that differ: one row for all methods if they agree within each run, else one per method."""
    rows: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for recipe in recipes for values in recipe.settings.values() for key in values):
        found = [{m: _plain(v[key]) for m, v in recipe.settings.items() if key in v} for recipe in recipes]
        if all(len(set(one.values())) <= 1 for one in found):
            rows[key] = [next(iter(one.values()), "–") for one in found]
            continue
        for method in dict.fromkeys(m for one in found for m in one):
            label = next(recipe.about(method).label for recipe, one in zip(recipes, found) if method in one)
            rows[f"{label}: {key}"] = [one.get(method, "–") for one in found]
    return {name: values for name, values in rows.items() if len(set(values) - {"–"}) > 1}


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_plain(value)}" for key, value in values.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _seeds(recipe: Recipe) -> str:
    return f"{_listed(recipe.seeds)}; counterfactual replicas {_listed(recipe.counterfactual_seeds)}"


def _listed(seeds: Sequence[int]) -> str:
    """Abbreviate seeds: `0–4` for consecutive ones."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds)) or "none"
