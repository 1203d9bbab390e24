"""`audit.html`: one self-contained page that explains what was found and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from clpu.audit import figures
from clpu.audit.bitwise import describe_parts
from clpu.audit.findings import Attack, Findings
from clpu.audit.run import Audit
from clpu.audit.tables import caveat
from clpu.audit.verdict import EXACT, NONE, TRACE, verdict
from clpu.methods import label_of
from clpu.report import formatting
from clpu.report.html import document, figure, key, request_list
from clpu.report.recipes import recipe_section
from clpu.requests import Stream
from clpu.results import Run

_STYLE = """
.verdicts { display: grid; gap: 10px; margin: 1.2rem 0; padding: 0; list-style: none; }
.verdicts li { background: var(--soft); border-left: 5px solid var(--muted); border-radius: 6px; padding: 10px 16px; }
.verdicts .exact { border-color: var(--t2); } .verdicts .trace { border-color: var(--across); }
.verdicts b { margin-right: .6em; }
.tag { font-weight: 600; } .exact .tag { color: var(--t2); } .trace .tag { color: var(--across); }
.verdicts p { margin: .2rem 0 0; max-width: 95ch; }
dl.says { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: .8rem 0; max-width: 85ch; }
dl.says dt { color: var(--muted); } dl.says dd { margin: 0; }
svg .hollow { fill: var(--ground); stroke: var(--muted); stroke-width: 1.6; }
svg .line-inner { stroke: var(--inner); } svg .line-across { stroke: var(--across); }
td.words, th.words { white-space: normal; text-align: left !important; min-width: 16em; }
@media (max-width: 820px) { dl.says { grid-template-columns: 1fr; } dl.says dd { margin-bottom: .5rem; } }
"""

_CLASSES = {EXACT: "exact", NONE: "none", TRACE: "trace"}

_POINTS = (
    "One dot per forget request: the effect, with its 95% interval. Filled: a trace was found. Hollow: consistent with "
    "chance. Hover over a dot for its numbers."
)


def page(audit: Audit) -> str:
    """The page of an audit."""
    title = f"Does a forgotten task leave a trace? {formatting.benchmark(audit.recipe.stream)}"
    every = list(audit.findings.values())
    body = [f"<h1>{escape(title)}</h1>", _lead(audit)]
    if every:
        body += [_verdicts(every), f'<p class="note">{escape(caveat(audit))}</p>', _bits(every)]
        body += [_outputs(every), _side_effects(every), _membership(every), _relearning(every), _relapse(every)]
        body += [_features(every), _residue(every), _limits()]
    body.append(recipe_section(Run(audit.name, audit.recipe, {}), list(audit.findings)))
    return document(title, body, _STYLE)


def _lead(audit: Audit) -> str:
    runs = len(audit.recipe.seeds)
    return (
        f'<p class="lead">For each method, {runs} agents handled the requests below (actual), and {runs} others the '
        "same requests without those of the forgotten tasks (counterfactual). If forgetting is perfect, nobody can "
        "distinguish the two groups. This page shows which attacks can.</p>"
        + request_list(Stream(audit.recipe.requests))
    )


def _verdicts(every: Sequence[Findings]) -> str:
    items = ""
    for findings in every:
        said = verdict(findings)
        items += (
            f'<li class="{_CLASSES[said.kind]}"><b>{escape(label_of(findings.method))}</b>'
            f'<span class="tag">{escape(said.title)}</span><p>{escape(said.explanation)}</p></li>'
        )
    return (
        f'<h2>Verdicts</h2>\n<ul class="verdicts">{items}</ul>\n<p><b>Exact</b> is a proof for these requests, seeds '
        "and this machine. <b>No trace found</b> is not a proof: it says that these attacks, with this many agents, "
        "found nothing. <b>Trace found</b> means that an attack distinguishes the two groups better than chance "
        "allows.</p>\n<p class=note>Separation: 0 for groups that do not differ, 1 for groups that have nothing in "
        "common. AUC: how often the attack is right when it is shown one agent of each group; 0.5 is chance. In "
        "brackets: 95% intervals, from resampling the agents.</p>"
    )


def _explanation(means: str, ideal: str, cannot: str) -> str:
    pairs = (("What it means", means), ("What would be ideal", ideal), ("What it cannot show", cannot))
    return '<dl class="says">' + "".join(f"<dt>{a}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


def _bits(every: Sequence[Findings]) -> str:
    rows = ""
    for findings in every:
        for bits in findings.bits:
            parts = describe_parts(bits.differing)
            what = "equal" if bits.equal else f"differ: {', '.join(parts[:6])}"
            what += f" and {len(parts) - 6} more" if not bits.equal and len(parts) > 6 else ""
            rows += (
                f"<tr><th scope=row>{escape(label_of(findings.method))}</th><td>{bits.request}</td>"
                f'<td class="words">{escape(what)}</td><td><code>{bits.digest[:12]}</code></td>'
                f"<td><code>{bits.digest_counterfactual[:12]}</code></td></tr>"
            )
    head = '<th>Method</th><th>after request</th><th class="words">state and outputs</th>'
    head += "<th>digest</th><th>digest, counterfactual</th>"
    return (
        "<h2>Bit for bit</h2>\n"
        f'<div class="scroll"><table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n'
        + _explanation(
            "Agents with the same seeds were trained on the requests and on the counterfactual, each from the start in "
            "a process of its own. Their states and outputs are compared bit for bit, and so is what the method keeps "
            "outside the state.",
            "Equal: then there is nothing left that could be found, by anyone, ever.",
            "That a different stream, machine or version of torch gives the same result; nor what a method writes to "
            "files.",
        )
    )


def _effects(every: Sequence[Findings], attack: str, axis: str, ends: tuple[str, str]) -> str:
    if not any(a.name == attack for f in every for a in f.attacks):
        return '<p class="note">Not measured: no other task was active.</p>'
    return figure(lambda width: [figures.effects(every, attack, width, axis, ends)], _POINTS)


def _outputs(every: Sequence[Findings]) -> str:
    rows = ""
    for method, task, one in _each(every, "outputs"):
        f = one.details
        rows += _row(
            method,
            task,
            f"{f['ijsd']:.4f} {_interval(f['ijsd_interval'], 4)}",
            f"{f['ajsd']:.4f} {_interval(f['ajsd_interval'], 4)}",
            figures.percent(f["accuracy"]),
            figures.percent(f["accuracy_counterfactual"]),
            f"{one.effect.p:.2g}",
            f"{one.adjusted:.2g}",
        )
    head = ["IJSD: within the counterfactual group", "AJSD: across the groups", "accuracy, actual"]
    head += ["accuracy, counterfactual", "p", "p, corrected"]
    return (
        "<h2>Answers for the forgotten task</h2>\n"
        + _effects(every, "outputs", "separation of the outputs", ("no difference", "nothing in common"))
        + _explanation(
            "How much more the answers differ between the two groups than within each group.",
            "0, within the interval: a different seed makes as much of a difference as the forgotten task.",
            "What is in the network but not in these answers. Equal outputs never prove that something is unlearned.",
        )
        + _table(head, rows)
    )


def _side_effects(every: Sequence[Findings]) -> str:
    return (
        "<h2>Answers for the other tasks</h2>\n"
        + _effects(
            every, "side effects", "separation of the other tasks’ outputs", ("no difference", "nothing in common")
        )
        + _explanation(
            "The same comparison, of the answers for the active tasks on the forgotten task’s images.",
            "0, within the interval.",
            "Anything about single examples. A large value may come from a harmless rearrangement of the network as "
            "well as from memory, but it still reveals that the task was there.",
        )
    )


def _membership(every: Sequence[Findings]) -> str:
    panels = "".join(
        f"<div><h4>{escape(label_of(f.method))}</h4>{figures.membership(f)}</div>" for f in every if f.attacks
    )
    rows = ""
    for name, label in (("membership", "per example"), ("threshold", "one threshold")):
        for method, task, one in _each(every, name):
            cells = [f"{one.effect.value:.3f} {_interval([one.effect.low, one.effect.high], 3)}"]
            for rate in ("0.01", "0.001"):
                low, high = one.details[f"tpr_at_{rate}_interval"]
                cells.append(
                    f"{figures.percent(one.details[f'tpr_at_{rate}'])} "
                    f"[{figures.percent(low)}, {figures.percent(high)}]"
                )
            rows += _row(method, task, label, *cells, f"{one.adjusted:.2g}")
    head = ("attack", "AUC", "true positives at 1% false", "true positives at 0.1% false", "p, corrected")
    return (
        "<h2>Was this example among the training data?</h2>\n"
        + _effects(every, "membership", "AUC of the attack on single examples", ("chance", "always right"))
        + key([("curve line-across", "per example (U-LiRA)"), ("curve line-inner", "one threshold for all")])
        + f'<figure><div class="panels">{panels}</div><figcaption>True-positive rate (learned and forgotten '
        "examples that are recognised) against false-positive rate (never-seen examples wrongly recognised). The "
        "dashed line is random guessing.</figcaption></figure>"
        + _explanation(
            "An attacker who has trained agents of both groups looks at how confident an agent is of single training "
            "examples of the forgotten task, and guesses whether it once learned them.",
            "AUC 0.5, and no more true than false positives: random guessing.",
            "Stronger attacks may exist, and it cannot tell whether one example or the whole task gives the agent "
            "away. The single-threshold attack is included because it is the most widely used; it can miss what the "
            "per-example attack finds.",
        )
        + _table(head, rows)
    )


def _relearning(every: Sequence[Findings]) -> str:
    panels = "".join(
        f"<div><h4>{escape(label_of(f.method))}</h4>{figures.relearning(f)}</div>" for f in every if f.attacks
    )
    rows = ""
    for method, task, one in _each(every, "relearning"):
        f = one.details
        steps = (f"{f['steps']:.1f}", f"{f['steps_counterfactual']:.1f}", figures.percent(f["goal"]))
        rows += _row(method, task, *steps, f"{one.effect.value:.3f}", f"{one.adjusted:.2g}")
    head = ("steps, actual", "steps, counterfactual", "to this accuracy", "AUC", "p, corrected")
    return (
        "<h2>Is it learned again faster?</h2>\n"
        + key([("curve line-across", "actual"), ("curve line-inner", "counterfactual")])
        + f'<figure><div class="panels">{panels}</div><figcaption>Test accuracy in percent while the forgotten task is '
        "learned again by plain gradient descent; one line per forget request.</figcaption></figure>"
        + _effects(
            every, "relearning", "probability that an actual agent learns it faster", ("chance", "always faster")
        )
        + _explanation(
            "Both groups are trained on the task with the same steps. A trace gives the actual group a head start.",
            "The same curves, and a probability of 0.5 of being faster.",
            "Traces that do not help with learning, nor what the method’s own training would show.",
        )
        + _table(head, rows)
    )


def _relapse(every: Sequence[Findings]) -> str:
    rows = ""
    for method, task, one in _each(every, "relapse"):
        cells = [
            figures.percent(one.details[k])
            for k in ("before", "accuracy", "before_counterfactual", "accuracy_counterfactual")
        ]
        rows += _row(method, task, *cells, f"{one.adjusted:.2g}")
    head = (
        "actual: right after forgetting",
        "after another task",
        "counterfactual: before",
        "after another task",
        "p, corrected",
    )
    return (
        "<h2>Does it come back?</h2>\n"
        + _effects(every, "relapse", "probability that an actual agent knows more of it later", ("chance", "always"))
        + _explanation(
            "After the forget request, another task is learned permanently; then the accuracy on the forgotten one is "
            "measured again.",
            "A probability of 0.5: the actual agents know as much or as little of it as the counterfactual ones.",
            "What further learning, of different tasks, may bring back.",
        )
        + _table(head, rows)
    )


def _features(every: Sequence[Findings]) -> str:
    return (
        "<h2>Features of the network</h2>\n"
        + _effects(every, "features", "separation of the features", ("no difference", "nothing in common"))
        + _explanation(
            "The features for the forgotten task’s images, compared by which images the network treats as similar "
            "(linear CKA), because a fresh output layer can hide what the body remembers.",
            "0, within the interval: features differ no more than those of different seeds.",
            "What is left in layers before the last, and single examples: like any distance, it averages.",
        )
    )


def _residue(every: Sequence[Findings]) -> str:
    scanned = [f for f in every if f.residue is not None]
    if not scanned:
        return '<h2>On disk</h2>\n<p class="note">No store was scanned in this audit.</p>'
    items = "".join(
        f"<li>{escape(label_of(f.method))}: {escape('; '.join(f.residue or ()) or 'nothing found')}</li>"
        for f in scanned
    )
    return f"<h2>On disk</h2>\n<ul>{items}</ul>"


def _limits() -> str:
    return (
        "<h2>What no such audit can show</h2>\n<p>Attacks can find a trace, but finding none does not prove that "
        "there is none. The same outputs, and even the same weights, can be reached with and without the data (Thudi "
        "et al. 2022, <i>On the necessity of auditable algorithmic definitions for machine unlearning</i>), so "
        "unlearning is a property of how a state came about. That is why only the comparison of bits with a process "
        "that never saw the task is called a proof here.</p>"
    )


def _each(every: Sequence[Findings], attack: str) -> list[tuple[str, str, Attack]]:
    return [(f.method, g.task, a) for f in every for g in f.forgets for a in g.attacks if a.name == attack]


def _row(method: str, task: str, *cells: str) -> str:
    name = f"<tr><th scope=row>{escape(label_of(method))}</th><td>{escape(task)}</td>"
    return name + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _table(head: Sequence[str], rows: str) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in ("Method", "task", *head))
    table = f'<table class="plain"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<details><summary>Numbers</summary><div class="scroll">{table}</div></details>'


def _interval(pair: Sequence[float], digits: int) -> str:
    return f"[{formatting.number(pair[0], digits)}, {formatting.number(pair[1], digits)}]"
