"""`report.html`: one self-contained page, for wide and narrow screens, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clpu.metrics import irr_resolution
from clpu.metrics.forgetting import ENOUGH_REPLICAS
from clpu.report import curves, formatting, pareto, strips
from clpu.report.html import Figure, draw_figure, render
from clpu.report.html_tables import comparison_table, extra_table, main_table, request_tables
from clpu.report.recipes import differences, view_recipe
from clpu.report.summary import Row
from clpu.report.tables import Group, caveats, excluding, profile
from clpu.requests import Stream
from clpu.results import Run
from clpu.terminal import duration


def page(groups: Sequence[Group]) -> str:
    """Return the complete page for one run or several."""
    benchmarks = list(dict.fromkeys(formatting.benchmark(run.recipe.benchmark) for run, _ in groups))
    comparison = None
    if len(groups) > 1:
        comparison = {"differences": differences([run for run, _ in groups]), "results": comparison_table(groups)}
    return render(
        "report.html",
        title=f"Continual learning and private unlearning: {', '.join(benchmarks)}",
        comparison=comparison,
        runs=[_run(run, rows) for run, rows in groups],
    )


def _run(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    recipe = run.recipe
    seeds = f"{len(recipe.seeds)} seed{'s' if len(recipe.seeds) != 1 else ''}"
    took = f", {duration(recipe.seconds)}" if recipe.seconds is not None else ""
    view: dict[str, Any] = {
        "name": run.name,
        "benchmark": formatting.benchmark(recipe.benchmark),
        "lead": f"profile {profile(recipe)}, {seeds}{took}",
        "requests": Stream(recipe.requests),
        "recipe": view_recipe(recipe, run.results),
        "tables": None,
    }
    if not rows:
        return view
    return view | {
        "tiles": _tiles(rows),
        "tables": {"main": main_table(rows), "extra": extra_table(rows), "details": request_tables(run, rows)},
        "caveats": caveats(run, rows),
        "accuracy": _accuracy(run, rows),
        "distances": _distances(rows) if any(row.ajsd.size for row in rows) else None,
        "pareto": _pareto(rows),
        "forgotten": _forgotten(run, rows) if any(row.forgotten for row in rows) else None,
    }


def _tiles(rows: Sequence[Row]) -> list[dict[str, str]]:
    rivals = [row for row in rows if not row.about.upper_bound] or list(rows)
    learns = max(rivals, key=lambda row: row.metrics["acc"].value)
    smallest = min(rivals, key=lambda row: row.bytes)
    accuracy = f"ACC {formatting.number(learns.metrics['acc'].value)}%{excluding(rows)}"
    tiles = [
        {"term": "Best accuracy", "value": learns.label, "detail": accuracy},
        {"term": "Smallest state", "value": smallest.label, "detail": f"peak size {formatting.size(smallest.bytes)}"},
    ]
    if any(row.forgotten for row in rows):
        tiles.insert(1, _forgetting(rows))
    return tiles


def _forgetting(rows: Sequence[Row]) -> dict[str, str]:
    if any(row.forgets for row in rows):
        always = [row.label for row in rows if row.same_digests == row.forgets]
        counts = ", ".join(f"{row.label} {row.same_digests} of {row.forgets} requests" for row in rows)
        return {"term": "Digest of never having had them", "value": ", ".join(always) or "none", "detail": counts}
    term = "Indistinguishable from never having learned (IRR\N{NO-BREAK SPACE}≥\N{NO-BREAK SPACE}0.9)"
    resolution = irr_resolution(min(row.seeds for row in rows))
    if resolution.coarse:
        seeds = f"{resolution.replicas} seed{'s' if resolution.replicas != 1 else ''}"
        detail = f"with {seeds} even exact forgetting can fall below 0.9"
        return {"term": term, "value": "too few seeds to say", "detail": detail}
    rates = [(row.label, row.metrics["irr"].value) for row in rows]
    inside = [label for label, rate in rates if rate >= 0.9]
    between = [f"{label} {formatting.number(rate)}" for label, rate in rates if 0.2 <= rate < 0.9]
    outside = [label for label, rate in rates if rate < 0.2]
    details = [f"between: {', '.join(between)}"] if between else []
    details += [f"below 0.2: {', '.join(outside)}"] if outside else []
    exact = [row.label for row in rows if row.about.exact and row.label not in inside]
    details += [f"exact by design: {', '.join(exact)}"] if exact else []
    if resolution.replicas <= ENOUGH_REPLICAS:
        details.append(f"with {resolution.replicas} seeds exact forgetting falls below 0.9 four times out of ten")
    return {"term": term, "value": ", ".join(inside) or "none", "detail": "; ".join(details)}


def _accuracy(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    results = [run.results[row.method] for row in rows]
    chance = [1 / classes for classes in run.recipe.data.classes]
    low = curves.lowest_percent(results)
    tasks = [(f"curve {curves.task_style(i)}", f"task {task}") for i, task in enumerate(results[0].tasks)]
    return {
        "key": [*tasks, ("gone", "✕ forgotten; dotted: accuracy afterwards"), ("chance", "chance")],
        "panels": [
            (row.label, curves.accuracy_panel(result, row.label, chance, low)) for row, result in zip(rows, results)
        ],
    }


def _distances(rows: Sequence[Row]) -> Figure:
    return draw_figure(
        lambda width: [strips.distances(rows, width)],
        "As the paper defines it: outputs on the forgotten task, mean over forget requests. The shaded range ends at "
        "the largest in-group distance; IRR is the share of across-group distances inside it. Upright ticks are means.",
    )


def _pareto(rows: Sequence[Row]) -> Figure:
    upper_bounds = [row.label for row in rows if row.about.upper_bound]
    excluded = f"The upper bound ({', '.join(upper_bounds)}, dashed) is not compared. " if upper_bounds else ""
    return draw_figure(
        lambda width: pareto.panels(rows, width if width < strips.NARROW else 520),
        "Filled: no other method is at least as good in accuracy, peak size and JS-ratio and better in one of them. "
        f"{excluded}Peak size: the largest size of one agent after any request. Whiskers: 95% bootstrap intervals over "
        "seeds.",
        style="pair",
    )


def _forgotten(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    tasks = list(run.results[rows[0].method].tasks)
    gone = list(dict.fromkeys(item.task for row in rows for item in row.forgotten))
    return {
        "key": [(f"curve {curves.task_style(tasks.index(task))}", f"task {task}") for task in gone],
        "figure": draw_figure(
            lambda width: [strips.forgotten(rows, tasks, width)],
            "Accuracy on each forgotten task, or on the test records of a forgotten person, right after the forget "
            "request; one dot per seed. The diamond, the mean of replicas that never learned it, is the ideal. Above "
            "it the agent still knows the task; below it the agent avoids the right answers, which is just as "
            "revealing.",
        ),
    }
