"""Write the table of a run as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from clpu import metrics
from clpu.report import formatting
from clpu.report.machines import keys_of, mixture
from clpu.report.summary import (
    CLASS_INCREMENTAL,
    METRIC_KEYS,
    PRIVACY,
    Estimate,
    Row,
    best,
    deviation,
    shown_metrics,
)
from clpu.results import Run
from clpu.runs.recipe import Recipe

LABELS = {
    "acc": "ACC",
    CLASS_INCREMENTAL: "CI-ACC",
    "fm": "FM",
    "ijsd": "IJSD",
    "ajsd": "AJSD",
    "js_ratio": "JS-ratio",
    "irr": "IRR",
}
ARROWS = {"acc": "↑", CLASS_INCREMENTAL: "↑", "fm": "↓", "js_ratio": "↓", "irr": "↑"}
PERCENT = ("acc", CLASS_INCREMENTAL, "fm")
#: Digits after the point, as the paper prints.
DIGITS = {"acc": 2, CLASS_INCREMENTAL: 2, "fm": 2, "ijsd": 2, "ajsd": 2, "js_ratio": 2, "irr": 2}
#: One more where small distances would all be printed as 0.01.
FINE_DIGITS = {**DIGITS, "ijsd": 3, "ajsd": 3}
WITH_SPREAD = (*PERCENT, "ijsd", "ajsd")
#: What bold means in every table; see `summary.best`.
BOLD = "Bold: the best value, and values whose 95% intervals overlap that of the best"
#: Metrics beyond the paper's six, each with its spread and interval.
EXTRA_METRICS = ("backward_transfer", "forward_transfer", "forgotten_acc", CLASS_INCREMENTAL)

Group = tuple[Run, Sequence[Row]]


def title(key: str) -> str:
    """Return the title of a metric's column: `ACC ↑`."""
    return f"{LABELS[key]} {ARROWS.get(key, '')}".strip()


def excluding(rows: Sequence[Row]) -> str:
    """Return the end of a sentence about the best value: that upper bounds are excluded, if there are any."""
    labels = [row.label for row in rows if row.about.upper_bound]
    return f", excluding the upper bound ({', '.join(labels)})" if labels else ""


def heading(run: Run) -> str:
    """Describe a run in one line."""
    recipe = run.recipe
    seeds = f"{len(recipe.seeds)} seed{'s' if len(recipe.seeds) > 1 else ''}"
    return f"{formatting.benchmark(recipe.benchmark)}, profile {profile(recipe)}, {seeds}, {recipe.requests}"


def profile(recipe: Recipe) -> str:
    """Return a run's profile and its overrides: `paper with epochs=1`."""
    return recipe.profile + (f" with {', '.join(recipe.overrides)}" if recipe.overrides else "")


def caveats(run: Run, rows: Sequence[Row]) -> list[str]:
    """Return what a reader must know before comparing the numbers."""
    recipe, notes = run.recipe, []
    if run.missing:
        notes.append(f"Not finished: {', '.join(recipe.about(m).label for m in run.missing)}.")
    resolution = metrics.irr_resolution(min(len(recipe.seeds), max(1, len(recipe.counterfactual_seeds))))
    if any(row.forgotten for row in rows):
        alike = all(not row.ijsd.any() and not row.ajsd.any() for row in rows)
        notes.append("All replicas of both groups give the same answers." if alike else str(resolution))
    else:
        notes.append("The requests forget nothing, so there are no privacy metrics.")
    leave = max((row.forgets for row in rows), default=0)
    if leave:
        people = f" ({recipe.data.people} people are learned)" if recipe.data.people else ""
        same = ", ".join(f"{row.label} {row.same_digests} of {row.forgets}" for row in rows)
        times = ", ".join(f"{row.label} {1000 * row.forget_seconds:.0f} ms" for row in rows)
        notes += [
            f"ACC is on the test records of those who are never forgotten{people}, IJSD and AJSD on those of the rest.",
            f"Digest equal to that of an agent with the same seed that never had what was forgotten: {same} requests.",
            f"Mean time of such a request with the next answer: {times}.",
        ]
    if any(row.paper for row in rows):
        if recipe.profile == "medium":
            if not any(text.startswith(("width=", "network=")) for text in recipe.overrides):
                notes.append("Profile medium uses a narrower network than the paper, so numbers may differ.")
        elif recipe.profile != "paper":
            notes.append(
                f"Profile {recipe.profile} trains less than the paper did; differences from its numbers are expected."
            )
        if recipe.overrides and recipe.profile in ("paper", "medium"):
            notes.append(f"Not the paper's settings: {', '.join(recipe.overrides)}.")
        if recipe.requests != "1R 2T 3T 4R 2R 3F 5T 5F":
            notes.append("The paper's numbers come from the requests 1R 2T 3T 4R 2R 3F 5T 5F, not from these.")
    if CLASS_INCREMENTAL in shown_metrics(rows):
        notes.append(scenarios(run))
    if recipe.network.get("name") == "base:efficientnet-lite0":
        notes.append("The base has seen ImageNet; the paper's networks start from scratch.")
    mixed = mixture(recipe, [row.method for row in rows])
    return [*notes, mixed] if mixed else notes


def scenarios(run: Run) -> str:
    """Say what the two accuracies mean, and over which tasks the class-incremental one is measured."""
    result = next(iter(run.results.values()))
    classes = dict(zip(result.tasks, run.recipe.data.classes))
    active = [task for task in result.tasks if task in result.alive[-1]]
    return (
        "ACC is task-incremental: the task of an image is given; mean over all requests. CI-ACC is class-incremental: "
        f"no task is given; measured after the last request, on the {sum(classes[task] for task in active)} classes of "
        f"the task{'s' * (len(active) != 1)} active then ({', '.join(active)})."
    )


def csv_columns() -> list[str]:
    """Return the columns of the paper's table, then ours."""
    columns = ["benchmark", "method"]
    columns += [c for key in METRIC_KEYS for c in ([key, f"{key}_std"] if key in WITH_SPREAD else [key])]
    for key in PRIVACY:
        columns += [f"{key}_as_published"] + ([f"{key}_as_published_std"] if key in WITH_SPREAD else [])
    columns += [f"{key}_{end}" for key in METRIC_KEYS for end in ("low", "high")]
    columns += [f"{key}_as_published_{end}" for key in PRIVACY for end in ("low", "high")]
    columns += [f"{key}{end}" for key in EXTRA_METRICS for end in ("", "_std", "_low", "_high")]
    columns += ["forgotten_acc_counterfactual", "chance"]
    return [*columns, "bytes", "seconds", "seeds", "profile", "overrides", "requests", "run", "machine"]


def to_csv(groups: Sequence[Group]) -> str:
    """Return `table.csv`: numbers with 6 significant digits; empty where a metric does not exist."""
    return _csv(csv_columns(), [_csv_row(run, row) for run, rows in groups for row in rows])


def _csv(columns: Sequence[str], lines: Iterable[Mapping[str, str | float]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in line.items()} for line in lines)
    return out.getvalue()


def _csv_row(run: Run, row: Row) -> dict[str, str | float]:
    values: dict[str, str | float] = {"benchmark": row.benchmark, "method": row.method}
    named = {key: row.metrics[key] for key in METRIC_KEYS} | {
        f"{key}_as_published": estimate for key, estimate in row.published.items()
    }
    for key, estimate in named.items():
        values |= {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
        if key.removesuffix("_as_published") in WITH_SPREAD:
            values[f"{key}_std"] = estimate.spread
    for key, estimate in zip(EXTRA_METRICS, (row.backward, row.forward, row.left, row.metrics[CLASS_INCREMENTAL])):
        values |= {key: estimate.value, f"{key}_std": estimate.spread}
        values |= {f"{key}_low": estimate.low, f"{key}_high": estimate.high}
    return values | {
        "forgotten_acc_counterfactual": _mean(100 * f.counterfactual.mean() for f in row.forgotten),
        "chance": _mean(100 * f.chance for f in row.forgotten),
        "bytes": row.bytes,
        "seconds": row.seconds,
        "seeds": row.seeds,
        "profile": run.recipe.profile,
        "overrides": " ".join(run.recipe.overrides),
        "requests": run.recipe.requests,
        "run": run.name,
        "machine": keys_of(run.recipe, row.method),
    }


def to_matrix(groups: Sequence[Group]) -> str:
    """Return `matrix.csv`: accuracy of each method on every task after every request, mean and deviation in percent.

    One row per request, with the tasks active after it, the size of one agent in bytes and the seconds for all seeds.
    """
    tasks = list(dict.fromkeys(t for run, rows in groups for row in rows for t in run.results[row.method].tasks))
    columns = ["run", "benchmark", "method", "request_number", "request", "alive", "bytes", "seconds"]
    columns += [f"acc_{task}{end}" for task in tasks for end in ("", "_std")]
    lines = []
    for run, rows in groups:
        for row in rows:
            result = run.results[row.method]
            for i, request in enumerate(result.requests):
                values: dict[str, str | float] = {
                    "run": run.name,
                    "benchmark": row.benchmark,
                    "method": row.method,
                    "request_number": i + 1,
                    "request": request,
                    "alive": " ".join(result.alive[i]),
                    "bytes": result.bytes[i],
                    "seconds": result.seconds[i],
                }
                for task, accuracy in zip(result.tasks, 100 * result.accuracy[i]):
                    values |= {f"acc_{task}": float(accuracy.mean()), f"acc_{task}_std": deviation(accuracy)}
                lines.append(values)
    return _csv(columns, lines)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else float("nan")


def _cell(value: str | float) -> str:
    if isinstance(value, str | int):
        return str(value)
    return "" if math.isnan(value) else f"{round(value, 12) + 0.0:.6g}"


def to_markdown(groups: Sequence[Group]) -> str:
    """Return `table.md`: the metrics as the paper defines them, then the comparison with the paper."""
    parts = []
    for run, rows in groups:
        parts.append(f"## {formatting.benchmark(run.recipe.benchmark)}")
        recipe = run.recipe
        parts.append(
            f"Requests {_code(recipe.requests)}, profile {_code(profile(recipe))}, {len(recipe.seeds)} seeds; "
            f"mean ± standard deviation. {BOLD}{_markdown_text(excluding(rows))}."
        )
        parts.append(_markdown_table(rows))
        if any(row.paper for row in rows):
            parts.append(
                "Comparison with the paper: ours / paper (difference). Privacy metrics are computed as in the authors' "
                "script, which produced the printed values."
            )
            parts.append(_markdown_comparison(rows))
        parts.append("\n".join(f"- {_markdown_text(note)}" for note in caveats(run, rows)))
        if run.recipe.command:
            parts.append(f"Made by {_code(run.recipe.command)}.")
    return "\n\n".join(parts) + "\n"


_MARKDOWN = re.compile(r"([\\`*_\[\]<>|])")


def _markdown_text(text: str) -> str:
    r"""Escape text for Markdown.

    >>> print(_markdown_text("my_method | <b>"))
    my\_method \| \<b\>
    """
    return _MARKDOWN.sub(r"\\\1", text)


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _markdown_table(rows: Sequence[Row]) -> str:
    winners = {key: best(rows, key, FINE_DIGITS[key]) for key in shown_metrics(rows)}

    def cell(row: Row, key: str) -> str:
        text = with_spread(row.metrics[key], FINE_DIGITS[key], spread=key in WITH_SPREAD)
        return f"**{text}**" if row.method in winners[key] else text

    return _markdown(rows, winners, cell)


def _markdown_comparison(rows: Sequence[Row]) -> str:
    def cell(row: Row, key: str) -> str:
        ours = formatting.number(row.comparable(key).value)
        return f"{ours} / {formatting.number(row.paper[key])} ({formatting.number(row.difference(key), sign=True)})"

    return _markdown([row for row in rows if row.paper], METRIC_KEYS, cell)


def _markdown(rows: Sequence[Row], keys: Iterable[str], cell: Callable[[Row, str], str]) -> str:
    titles = [title(key) + (" (%)" if key in PERCENT else "") for key in keys]
    lines = ["| Method | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    for row in rows:
        lines.append("| " + " | ".join([_markdown_text(row.label), *(cell(row, key) for key in keys)]) + " |")
    return "\n".join(lines)


def with_spread(estimate: Estimate, digits: int, *, spread: bool) -> str:
    """Format an estimate as `93.48 ± 0.25`."""
    text = formatting.number(estimate.value, digits)
    if not spread or math.isnan(estimate.spread):
        return text
    return f"{text} ± {formatting.number(estimate.spread, digits)}"


_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "∞": r"$\infty$",
    }
)


def tex(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> print(tex("my_method & 50%"))
    my\_method \& 50\%
    """
    return text.translate(_TEX)


def to_latex(groups: Sequence[Group]) -> str:
    """Return `table.tex`: the metrics as the paper defines them, then as in the authors' script; needs booktabs."""
    parts = [r"% Needs \usepackage{booktabs}; made by clpu report."]
    seeds = sorted({len(run.recipe.seeds) for run, _ in groups})
    count = " or ".join(map(str, seeds))
    every = [row for _, rows in groups for row in rows]
    upper_bound = ", excluding the upper bound" if any(row.about.upper_bound for row in every) else ""
    shared = f"Mean and standard deviation over {count} seeds. {tex(BOLD + upper_bound)}."
    if CLASS_INCREMENTAL in shown_metrics(every):
        shared += " ACC is task-incremental; CI-ACC is class-incremental, over the tasks active after the last request."
    if any(mixture(run.recipe, [row.method for row in rows]) for run, rows in groups):
        shared += " Rows were computed on machines that compute differently."
    parts.append(_latex_table(groups, f"Continual learning and private unlearning. {shared}", "tab:clpu", False))
    published = f"The same runs, with IJSD, AJSD, JS-ratio and IRR computed as in the authors' script. {shared}"
    parts.append(_latex_table(groups, published, "tab:clpu-as-published", True))
    return "\n".join(parts)


def _latex_table(groups: Sequence[Group], caption: str, label: str, published: bool) -> str:
    keys = shown_metrics([row for _, rows in groups for row in rows])
    titles = " & ".join(
        LABELS[key] + {"↑": r" $\uparrow$", "↓": r" $\downarrow$"}.get(ARROWS.get(key, ""), "") for key in keys
    )
    # Small enough for one column of an article.
    size, space = ("scriptsize", 1.3) if len(keys) > len(METRIC_KEYS) else ("footnotesize", 3)
    size = f"  \\centering\\{size}\\setlength{{\\tabcolsep}}{{{space}pt}}"
    lines = [r"\begin{table}[t]", size, f"  \\begin{{tabular}}{{@{{}}l{'c' * len(keys)}@{{}}}}", r"    \toprule"]
    for number, (run, rows) in enumerate(groups):
        facts = [profile(run.recipe)] if run.recipe.overrides or len(groups) > 1 else []
        facts += [run.name] if len(groups) > 1 else []
        title = formatting.benchmark(run.recipe.benchmark) + (f" ({', '.join(facts)})" if facts else "")
        lines += [r"    \midrule"] if number else []
        rule = f"    \\cmidrule(lr){{2-{len(keys) + 1}}}"
        lines += [f"    & \\multicolumn{{{len(keys)}}}{{c}}{{{tex(title)}}} \\\\", rule]
        lines += [f"    Method & {titles} \\\\", r"    \midrule"]
        winners = {key: best(rows, key, DIGITS[key], published=published and key in PRIVACY) for key in keys}
        for row in rows:
            name = tex(row.label) + (" (upper bound)" if row.about.upper_bound else "")
            cells = [_latex_cell(row, key, row.method in winners[key], published) for key in keys]
            lines.append(f"    {name} & {' & '.join(cells)} \\\\")
            lines += [rule] if row.about.upper_bound and len(rows) > 1 else []
    lines += [
        r"    \bottomrule",
        r"  \end{tabular}",
        f"  \\caption{{{caption}}}",
        f"  \\label{{{label}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(row: Row, key: str, bold: bool, published: bool) -> str:
    estimate = row.comparable(key) if published else row.metrics[key]
    text = tex(formatting.number(estimate.value, DIGITS[key]))
    text = f"\\textbf{{{text}}}" if bold else text
    if key in WITH_SPREAD and not math.isnan(estimate.spread):
        text += f"{{\\tiny$\\,\\pm${tex(formatting.number(estimate.spread, DIGITS[key]))}}}"
    return text
