"""`report.html`: one page with nothing outside it, for a wide or a narrow screen, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from clpu.metrics import irr_resolution
from clpu.metrics.forgetting import ENOUGH_RUNS
from clpu.report import curves, names, pareto, strips
from clpu.report.grids import comparison_table, main_table, more_table, request_tables
from clpu.report.html import document, figure, key, request_list
from clpu.report.recipes import differences, recipe_section
from clpu.report.summary import Row
from clpu.report.tables import Group, caveats, profile
from clpu.requests import Stream
from clpu.results import Run

_WIDE, _NARROW = 1060.0, 358.0


def page(groups: Sequence[Group]) -> str:
    """The whole page for one run or several."""
    streams = list(dict.fromkeys(names.stream(run.recipe.stream) for run, _ in groups))
    title = f"Continual learning and private unlearning: {', '.join(streams)}"
    several = len(groups) > 1
    body = [f"<h1>{escape(title)}</h1>", _comparison(groups) if several else ""]
    body += [_run(run, rows, number if several else 0) for number, (run, rows) in enumerate(groups, 1)]
    return document(title, body)


def _comparison(groups: Sequence[Group]) -> str:
    links = "".join(
        f'<li><a href="#run-{number}">{escape(names.stream(run.recipe.stream))}: {escape(run.name)}</a></li>'
        for number, (run, _) in enumerate(groups, 1)
    )
    return (
        f'<nav aria-label="Runs"><ul>{links}</ul></nav>\n<h2>The runs beside each other</h2>\n'
        + differences([run for run, _ in groups])
        + comparison_table(groups)
    )


def _run(run: Run, rows: Sequence[Row], number: int) -> str:
    recipe = run.recipe
    seeds = f"{len(recipe.seeds)} seed{'s' if len(recipe.seeds) != 1 else ''}"
    lead = f"Run <b>{escape(run.name)}</b>, profile {escape(profile(recipe))}, {seeds}"
    lead += f", {names.duration(recipe.seconds)}" if recipe.seconds is not None else ""
    heading = f'<h2 id="run-{number}">{escape(names.stream(recipe.stream))}</h2>' if number else ""
    parts = [heading, f'<p class="lead">{lead}.</p>', request_list(Stream(recipe.requests))]
    if not rows:
        return "\n".join([*parts, '<p class="note">No method has finished yet.</p>', recipe_section(run)])
    parts += [_findings(rows), "<h3>The table</h3>", main_table(rows)]
    parts += [f'<p class="note">{escape(note)}</p>' for note in caveats(run, rows)]
    parts += [_accuracies(run, rows)]
    if any(row.ajsd.size for row in rows):
        parts += [_distances(rows)]
    parts += [_pareto(rows)]
    if any(row.forgotten for row in rows):
        parts += [_forgotten(run, rows)]
    parts += ["<h3>Transfer and cost</h3>", more_table(rows), request_tables(run, rows), recipe_section(run)]
    return "\n".join(part for part in parts if part)


def _findings(rows: Sequence[Row]) -> str:
    rivals = [row for row in rows if row.method != names.UPPER_BOUND] or list(rows)
    learns = max(rivals, key=lambda row: row.figures["acc"].value)
    least = min(rivals, key=lambda row: row.bytes)
    facts = [
        ("Knows most", learns.label, f"ACC {names.number(learns.figures['acc'].value)} %, upper bound aside"),
        ("Keeps least", least.label, f"at most {names.size(least.bytes)}"),
    ]
    if any(row.forgotten for row in rows):
        facts.insert(1, _forgetting(rows))
    items = "".join(
        f"<div><dt>{escape(term)}</dt><dd><strong>{escape(value)}</strong><br>"
        f'<span class="note">{escape(detail)}</span></dd></div>'
        for term, value, detail in facts
    )
    return f'<dl class="findings">{items}</dl>'


def _forgetting(rows: Sequence[Row]) -> tuple[str, str, str]:
    question = "Not told apart from never having learned: IRR\N{NO-BREAK SPACE}≥\N{NO-BREAK SPACE}0.9"
    resolution = irr_resolution(min(row.seeds for row in rows))
    if resolution.coarse:
        return question, "too few seeds to say", f"with {resolution.runs}, exact forgetting itself may miss it"
    rates = [(row.label, row.figures["irr"].value) for row in rows]
    inside = [label for label, rate in rates if rate >= 0.9]
    between = [f"{label} {names.number(rate)}" for label, rate in rates if 0.2 <= rate < 0.9]
    outside = [label for label, rate in rates if rate < 0.2]
    details = [f"between: {', '.join(between)}"] if between else []
    details += [f"below 0.2: {', '.join(outside)}"] if outside else []
    details += (
        [] if resolution.runs > ENOUGH_RUNS else ["with so few seeds exact forgetting misses 0.9 four times in ten"]
    )
    return question, ", ".join(inside) or "none", "; ".join(details)


def _accuracies(run: Run, rows: Sequence[Row]) -> str:
    results = [run.results[row.method] for row in rows]
    chance = [1 / classes for classes in run.recipe.data.classes]
    low = curves.lowest_percent(results)
    panels = "".join(
        f"<div><h4>{escape(names.method(result.method))}</h4>{curves.accuracy_panel(result, chance, low)}</div>"
        for result in results
    )
    styles = [(f"curve {curves.task_style(i)}", f"task {task}") for i, task in enumerate(results[0].tasks)]
    styles += [("gone", "✕ forgotten; dotted: what is left of it"), ("chance", "chance")]
    return (
        f"<h3>Accuracy over the requests</h3>\n{key(styles)}\n"
        f'<figure><div class="panels">{panels}</div><figcaption>Test accuracy in percent after each request, mean over '
        "seeds; the band is one standard deviation. A line begins when its task is learned and ends with ✕ when it is "
        "forgotten; the ✕ lies where the accuracy is right after.</figcaption></figure>"
    )


def _distances(rows: Sequence[Row]) -> str:
    return (
        "<h3>Can forgetting be seen?</h3>\n<p>Each dot is a pair of runs. If runs that forgot differ from runs that "
        "never learned no more than the latter differ among themselves, the two rows of dots overlap.</p>\n"
        + key(
            [
                ("mean inner", "IJSD: two runs that never learned the task"),
                ("mean across", "AJSD: one that forgot it, one that never learned it"),
            ]
        )
        + figure(
            lambda width: [strips.distances(rows, width)],
            "By definition: outputs on the forgotten task, mean over the forgets. The shaded range ends at the largest "
            "in-group distance; IRR is the share of across-group distances inside it. Upright ticks are means.",
        )
    )


def _pareto(rows: Sequence[Row]) -> str:
    return "<h3>Knowledge, space and privacy</h3>\n" + figure(
        lambda width: pareto.panels(rows, width if width < strips.NARROW else 520),
        "Filled: no other method is at least as good in accuracy, bytes kept and JS-ratio at once and better in one; "
        "Ind, the upper bound, takes no part in that. "
        "Bytes are those of one agent, the most it kept after any request. Whiskers: 95 % bootstrap over seeds.",
        style="pair",
    )


def _forgotten(run: Run, rows: Sequence[Row]) -> str:
    tasks = list(run.results[rows[0].method].tasks)
    gone = list(dict.fromkeys(item.task for row in rows for item in row.forgotten))
    return (
        "<h3>What is still known of the forgotten tasks</h3>\n"
        + key([(f"curve {curves.task_style(tasks.index(task))}", f"task {task}") for task in gone])
        + figure(
            lambda width: [strips.forgotten(rows, tasks, width)],
            "Accuracy on a forgotten task right after its forget, a dot a seed; the diamond is the mean of runs that "
            "never learned it, and the honest target. Above it the agent still knows the task; below it, it avoids the "
            "right answers, which shows just as well.",
        )
    )
