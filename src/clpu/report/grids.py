"""The tables of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from clpu.report import names
from clpu.report.summary import FIGURES, PRIVACY, Figure, Row, best
from clpu.report.tables import ARROWS, FINE_DIGITS, LABELS, WITH_SPREAD, Group
from clpu.results import Result, Run


def main_table(rows: Sequence[Row]) -> str:
    """The paper's table from our runs, the paper's value and the difference under each of ours that can be compared."""
    compared = any(row.paper for row in rows)
    head = '<tr class="groups"><th></th><th colspan="2"><span>learning</span></th>'
    head += '<th colspan="4"><span>privacy, by definition</span></th>'
    head += '<th colspan="4"><span>privacy, as published</span></th></tr>' if compared else "</tr>"
    columns = [*FIGURES, *(PRIVACY if compared else ())]
    head += "<tr><th>Method</th>" + "".join(f"<th>{_title(key)}</th>" for key in columns) + "</tr>"
    winners = {key: best(rows, key, FINE_DIGITS[key]) for key in FIGURES}
    again = {key: best(rows, key, FINE_DIGITS[key], published=True) for key in PRIVACY}
    body = ""
    for row in rows:
        cells = ""
        for key in FIGURES:
            below = _beside_paper(row, key) if key in ("acc", "fm") else ""
            below = _interval(row.figures[key], FINE_DIGITS[key]) + below
            cells += _cell(key, row.figures[key], row.method in winners[key], below, _title(key))
        for key in PRIVACY if compared else ():
            label = f"{_title(key)}, as published"
            below = _interval(row.published[key], FINE_DIGITS[key]) + _beside_paper(row, key)
            cells += _cell(key, row.published[key], row.method in again[key], below, label)
        kind = "upper-bound" if row.method == names.UPPER_BOUND else "ours" if row.method.startswith("clpu") else ""
        body += f'<tr class="{kind}"><th scope="row">{escape(row.label)}</th>{cells}</tr>'
    note = (
        "Mean ± standard deviation; in brackets a 95 % bootstrap interval over seeds (that of IRR leans downwards: a "
        "resample can only lower the largest in-group distance). Best values bold, the upper bound Ind aside. ACC "
        "and FM in percent, IJSD and AJSD in nats."
    )
    if compared:
        note += (
            " The printed privacy figures sum over other tasks than the definition says, so they are compared with "
            "ours computed in that same way (as published). Δ is ours less the paper's; ✓ marks ACC and FM within the "
            "larger of 0.7 points and twice the paper's standard deviation."
        )
    table = f'<table class="main"><thead>{head}</thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>\n<p class="note">{escape(note)}</p>'


def _title(key: str) -> str:
    return f"{LABELS[key]} {ARROWS.get(key, '')}".strip()


def _cell(key: str, figure: Figure, winner: bool, below: str, label: str) -> str:
    text = names.number(figure.value, FINE_DIGITS[key])
    text = f"<b>{text}</b>" if winner else text
    if key in WITH_SPREAD and not math.isnan(figure.spread):
        text += f' <span class="spread">± {names.number(figure.spread, FINE_DIGITS[key])}</span>'
    return f'<td data-label="{escape(label)}">{text}{below}</td>'


def _interval(figure: Figure, digits: int) -> str:
    if math.isnan(figure.low):
        return ""
    return f"<small>[{names.number(figure.low, digits)}, {names.number(figure.high, digits)}]</small>"


def _beside_paper(row: Row, key: str) -> str:
    if key not in row.paper:
        return ""
    difference = row.difference(key)
    near = ""
    if key in ("acc", "fm") and abs(difference) <= max(0.7, 2 * row.paper[f"{key}_std"]):
        near = " ✓"
    delta = names.number(difference, sign=True)
    return f"<small>paper {names.number(row.paper[key])}</small><small>Δ {delta}{near}</small>"


def comparison_table(groups: Sequence[Group]) -> str:
    """ACC, FM, JS-ratio and IRR of every method in every run; runs of one stream less the first of that stream."""
    keys = ("acc", "fm", "js_ratio", "irr")
    methods = list(dict.fromkeys(row.method for _, rows in groups for row in rows))
    order = [m for m in names.METHODS if m in methods] + [m for m in methods if m not in names.METHODS]
    head = '<tr class="groups"><th></th>'
    head += "".join(f'<th colspan="4"><span>{escape(run.name)}</span></th>' for run, _ in groups) + "</tr>"
    head += "<tr><th>Method</th>" + "".join(f"<th>{_title(key)}</th>" for _ in groups for key in keys) + "</tr>"
    first: dict[str, dict[str, Row]] = {}
    body = ""
    by_run = [{row.method: row for row in rows} for _, rows in groups]
    for (run, _), found in zip(groups, by_run):
        first.setdefault(run.recipe.stream, found)
    for method in order:
        cells = ""
        for (run, _), found in zip(groups, by_run):
            base = first[run.recipe.stream]
            for key in keys:
                cells += f"<td>{_compared(found.get(method), base.get(method), key)}</td>"
        body += f'<tr><th scope="row">{escape(names.method(method))}</th>{cells}</tr>'
    return (
        f'<div class="scroll"><table class="plain compare"><thead>{head}</thead><tbody>{body}</tbody></table></div>\n'
        '<p class="note">By definition. Small: less the first run of the same stream.</p>'
    )


def _compared(row: Row | None, base: Row | None, key: str) -> str:
    if row is None:
        return "–"
    text = names.number(row.figures[key].value, FINE_DIGITS[key])
    if base is None or base is row:
        return text
    change = row.figures[key].value - base.figures[key].value
    return f"{text}<small>{names.number(change, FINE_DIGITS[key], sign=True)}</small>"


def more_table(rows: Sequence[Row]) -> str:
    """Transfer, what is left of forgotten tasks, bytes and seconds."""
    head = "<tr><th>Method</th><th>backward transfer</th><th>forward transfer</th><th>forgotten tasks, ACC</th>"
    head += "<th>never learned, ACC</th><th>bytes kept at most</th><th>seconds, all seeds</th></tr>"
    body = ""
    for row in rows:
        cells = [_signed(row.backward), _signed(row.forward)]
        cells += [_left(row)]
        cells += [_percents([100 * float(item.counterfactual.mean()) for item in row.forgotten])]
        cells += [names.size(row.bytes), f"{row.seconds:.1f}"]
        body += f'<tr><th scope="row">{escape(row.label)}</th>' + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"
    note = (
        "Backward transfer: how the tasks alive at the end changed since they were learned, in points of accuracy. "
        "Forward transfer: how much better or worse a task is learned after others than by Ind alone. Forgotten tasks: "
        "accuracy right after each forget, in order, beside that of runs that never learned the task. In brackets 95 % "
        "bootstrap intervals over seeds."
    )
    table = f'<table class="plain"><thead>{head}</thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>\n<p class="note">{escape(note)}</p>'


def _left(row: Row) -> str:
    """What is left of each forgotten task with its interval; of many, their mean."""
    if len(row.forgotten) > 3:
        return f"{row.left.value:.1f} % on average{_interval(row.left, 1)}"
    if any(math.isnan(f.figure.low) for f in row.forgotten):
        return _percents([f.figure.value for f in row.forgotten])
    return "".join(f"<div>{f.figure.value:.1f} %{_interval(f.figure, 1)}</div>" for f in row.forgotten) or "–"


def _percents(values: Sequence[float]) -> str:
    if len(values) > 3:
        return f"{sum(values) / len(values):.1f} % on average"
    return ", ".join(f"{value:.1f} %" for value in values) or "–"


def _signed(figure: Figure) -> str:
    if math.isnan(figure.value):
        return "–"
    spread = "" if math.isnan(figure.spread) else f' <span class="spread">± {names.number(figure.spread)}</span>'
    return names.number(figure.value, sign=True) + spread + _interval(figure, 2)


def request_tables(run: Run, rows: Sequence[Row]) -> str:
    """Accuracy of each task after each request, bytes kept then, and seconds for it, folded away."""
    results = [run.results[row.method] for row in rows]
    requests = "".join(f"<th>{escape(request)}</th>" for request in results[0].requests)
    parts = [_matrices(results)]
    for title, values in (
        ("Bytes kept after each request, one agent", [[names.size(b) for b in r.bytes] for r in results]),
        ("Seconds for each request, all seeds together", [[f"{s:.1f}" for s in r.seconds] for r in results]),
    ):
        body = "".join(
            f'<tr><th scope="row">{escape(row.label)}</th>' + "".join(f"<td>{v}</td>" for v in line) + "</tr>"
            for row, line in zip(rows, values)
        )
        table = f'<table class="plain"><thead><tr><th>Method</th>{requests}</tr></thead><tbody>{body}</tbody></table>'
        parts.append(f'<details><summary>{title}</summary><div class="scroll">{table}</div></details>')
    return "\n".join(parts)


def _matrices(results: Sequence[Result]) -> str:
    """Every task after every request, also unknown and forgotten ones, which are set in grey."""
    requests = "".join(f"<th>{escape(request)}</th>" for request in results[0].requests)
    body = ""
    for result in results:
        percent = 100 * result.accuracy.mean(axis=2)
        for column, task in enumerate(result.tasks):
            cells = "".join(
                f"<td{'' if task in alive else ' class=dead'}>{percent[i, column]:.1f}</td>"
                for i, alive in enumerate(result.alive)
            )
            name = f"{escape(names.method(result.method))}, task {escape(task)}"
            body += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    table = f'<table class="plain"><thead><tr><th>After</th>{requests}</tr></thead><tbody>{body}</tbody></table>'
    title = "Accuracy of each task after each request, in percent; grey: not known, or forgotten"
    return f'<details><summary>{title}</summary><div class="scroll">{table}</div></details>'
