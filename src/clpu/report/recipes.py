"""How the numbers were made, for the page: the recipe of a run, and where the recipes of several runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from clpu.report import names
from clpu.report.machines import NOT_RECORDED, computed_on, keys_of
from clpu.results import Recipe, Run


def recipe_section(run: Run, finished: Sequence[str] | None = None) -> str:
    """Everything that is needed to make the run again; `finished` are the methods that have results."""
    recipe, data = run.recipe, run.recipe.data
    classes = sorted(set(data.classes))
    entries = [
        ("Command", f"<code>{escape(recipe.command)}</code>" if recipe.command else "–"),
        ("Requests", f"<code>{escape(recipe.requests)}</code>"),
        ("Seeds", escape(f"{_listed(recipe.seeds)}; counterfactual runs {_listed(recipe.counterfactual_seeds)}")),
        (
            "Data",
            escape(
                f"{data.name}: {data.tasks} tasks of {' or '.join(map(str, classes))} classes, "
                f"{data.train:,} training and {data.test:,} test images, seed {data.seed}"
            ),
        ),
        ("SHA-256", f"<code>{escape(_plain(data.sha256))}</code>"),
        ("Network", f"<code>{escape(_plain(recipe.network))}</code>"),
        ("Versions", escape(", ".join(f"{k} {v}" for k, v in sorted(recipe.versions.items()))) or "–"),
        ("Machine", escape(", ".join(f"{k} {v}" for k, v in sorted(recipe.machine.items()))) or "–"),
        ("Computed on", "<br>".join(map(escape, _computed_on(recipe, run.results if finished is None else finished)))),
    ]
    if data.tasks_sha256:
        entries.insert(5, ("of the tasks as used", f"<code>{escape(data.tasks_sha256)}</code>"))
    if recipe.started:
        took = f", took {names.duration(recipe.seconds)}" if recipe.seconds is not None else ""
        entries.append(("Started", escape(recipe.started + took)))
    listed = "".join(f"<dt>{term}</dt><dd>{text}</dd>" for term, text in entries)
    return f'<h3>The recipe</h3>\n<dl class="recipe">{listed}</dl>\n{_settings(recipe)}'


def _computed_on(recipe: Recipe, methods: Iterable[str]) -> list[str]:
    """The machines, one in a line; if there are several, with the methods that each computed."""
    made = computed_on(recipe, list(methods))
    if len(made) < 2:
        return [machine for machine, _ in made] or [NOT_RECORDED]
    return [f"{', '.join(labels)}: {machine}" for machine, labels in made]


def _settings(recipe: Recipe) -> str:
    common, own = split_settings(recipe.settings)
    lines = f"<dt>every method</dt><dd><code>{escape(_assignments(common))}</code></dd>" if common else ""
    for method, values in own.items():
        if values:
            lines += f"<dt>{escape(names.method(method))}</dt><dd><code>{escape(_assignments(values))}</code></dd>"
    return f'<details><summary>Settings</summary><dl class="recipe">{lines}</dl></details>' if lines else ""


def split_settings(
    settings: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all methods have in common, and what is each one's own.

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


def differences(runs: Sequence[Run]) -> str:
    """A table of what the recipes of several runs do not have in common."""
    facts = [_facts(run) for run in runs]
    every = {key: [one.get(key, "–") for one in facts] for key in dict.fromkeys(key for one in facts for key in one)}
    rows = {key: values for key, values in every.items() if len(set(values)) > 1}
    rows |= _different_settings([run.recipe for run in runs])
    head = "<tr><th></th>" + "".join(f"<th>{escape(run.name)}</th>" for run in runs) + "</tr>"
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th>' + "".join(f"<td>{escape(value)}</td>" for value in values) + "</tr>"
        for key, values in rows.items()
    )
    if not body:
        return '<p class="note">The runs have the same recipe.</p>'
    return f'<div class="scroll"><table class="plain wrap"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _facts(run: Run) -> dict[str, str]:
    """What decides a run's numbers besides its settings. Times, names of machines and commands differ anyway."""
    recipe = run.recipe
    return {
        "stream": recipe.stream,
        "requests": recipe.requests,
        "profile": recipe.profile,
        "methods": ", ".join(map(names.method, sorted(recipe.methods, key=_place))),
        "seeds": f"{_listed(recipe.seeds)}; counterfactual runs {_listed(recipe.counterfactual_seeds)}",
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


def _place(method: str) -> tuple[int, str]:
    """Where a method stands in tables: the paper's in its order, then others by name."""
    known = list(names.METHODS)
    return (known.index(method), "") if method in known else (len(known), method)


def _different_settings(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Settings that differ, one row each: for all methods of a run if they agree within each run, else by method."""
    rows: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for recipe in recipes for values in recipe.settings.values() for key in values):
        found = [{m: _plain(v[key]) for m, v in recipe.settings.items() if key in v} for recipe in recipes]
        if all(len(set(one.values())) <= 1 for one in found):
            rows[key] = [next(iter(one.values()), "–") for one in found]
            continue
        for method in dict.fromkeys(m for one in found for m in one):
            rows[f"{names.method(method)}: {key}"] = [one.get(method, "–") for one in found]
    return {name: values for name, values in rows.items() if len(set(values) - {"–"}) > 1}


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_plain(value)}" for key, value in values.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _listed(seeds: Sequence[int]) -> str:
    """Seeds in short: `0–4` for a run of them."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds)) or "none"
