"""`audit.html`: one self-contained page that says, to anyone, what was found and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from clpu.audit import figures
from clpu.audit.bitwise import plainly
from clpu.audit.findings import Attack, Findings
from clpu.audit.run import Audit
from clpu.audit.tables import caveat
from clpu.audit.verdict import EXACT, NONE, TRACE, verdict
from clpu.report import names
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
    "A dot is the effect at one forget, the line its 95 % interval; filled: a trace was found, hollow: nothing that "
    "chance would not give. Hover over a dot for its numbers."
)


def page(audit: Audit) -> str:
    """The whole page of an audit."""
    title = f"Does a forgotten task leave a trace? {names.stream(audit.recipe.stream)}"
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
        f'<p class="lead">For each method, {runs} agents handled the requests below, and {runs} others the same '
        "requests without those of the forgotten tasks (marked). If forgetting is perfect, nobody can tell the two "
        "kinds apart. This page shows who could, and by what.</p>" + request_list(Stream(audit.recipe.requests))
    )


def _verdicts(every: Sequence[Findings]) -> str:
    items = ""
    for findings in every:
        said = verdict(findings)
        items += (
            f'<li class="{_CLASSES[said.kind]}"><b>{escape(names.method(findings.method))}</b>'
            f'<span class="tag">{escape(said.title)}</span><p>{escape(said.words)}</p></li>'
        )
    return (
        f'<h2>The verdicts</h2>\n<ul class="verdicts">{items}</ul>\n<p><b>Exact</b> is a proof for these requests, '
        "seeds and this machine. <b>No trace found</b> is not a proof: it says that these attacks, with this many "
        "agents, found nothing. <b>Trace found</b> means that an attack tells the two kinds of agents apart more "
        "surely than chance allows.</p>\n<p class=note>Separation: 0 where two kinds of agents are alike, 1 where they "
        "have nothing in common. AUC: how often the attack is right when it is shown one agent of each kind; 0.5 is a "
        "coin toss. In brackets: 95 % intervals, from drawing the agents anew.</p>"
    )


def _says(means: str, ideal: str, cannot: str) -> str:
    pairs = (("What it means", means), ("What would be ideal", ideal), ("What it cannot show", cannot))
    return '<dl class="says">' + "".join(f"<dt>{a}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


def _bits(every: Sequence[Findings]) -> str:
    rows = ""
    for findings in every:
        for bits in findings.bits:
            parts = plainly(bits.differing)
            what = "equal" if bits.equal else f"differ: {', '.join(parts[:6])}"
            what += f" and {len(parts) - 6} more" if not bits.equal and len(parts) > 6 else ""
            rows += (
                f"<tr><th scope=row>{escape(names.method(findings.method))}</th><td>{bits.request}</td>"
                f'<td class="words">{escape(what)}</td><td><code>{bits.digest[:12]}</code></td>'
                f"<td><code>{bits.digest_without[:12]}</code></td></tr>"
            )
    head = '<th>Method</th><th>after request</th><th class="words">state and outputs</th>'
    head += "<th>digest</th><th>without the tasks</th>"
    return (
        "<h2>Bit by bit</h2>\n"
        f'<div class="scroll"><table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n'
        + _says(
            "Agents with the same seeds went through the requests and through those without the forgotten tasks, each "
            "from the start; all they hold and answer is compared bit by bit.",
            "Equal: then there is nothing left that could be found, by anyone, ever.",
            "That another stream, machine or version of torch would come out the same; and what a method hides outside "
            "its own objects.",
        )
    )


def _effects(every: Sequence[Findings], attack: str, axis: str, ends: tuple[str, str]) -> str:
    if not any(a.name == attack for f in every for a in f.attacks):
        return '<p class="note">Not measured: no task was alive beside the forgotten ones.</p>'
    return figure(lambda width: [figures.effects(every, attack, width, axis, ends)], _POINTS)


def _outputs(every: Sequence[Findings]) -> str:
    rows = ""
    for method, task, one in _each(every, "outputs"):
        f = one.figures
        rows += _row(
            method,
            task,
            f"{f['ijsd']:.4f} {_interval(f['ijsd_interval'], 4)}",
            f"{f['ajsd']:.4f} {_interval(f['ajsd_interval'], 4)}",
            figures.percent(f["accuracy"]),
            figures.percent(f["accuracy_never"]),
            f"{one.effect.p:.2g}",
            f"{one.adjusted:.2g}",
        )
    head = ["IJSD: among those that never learned", "AJSD: across the two kinds", "right answers, forgot"]
    head += ["right answers, never learned", "p", "p, corrected"]
    return (
        "<h2>Answers for the forgotten task</h2>\n"
        + _effects(every, "outputs", "separation of the outputs", ("alike", "completely apart"))
        + _says(
            "How much further the answers of agents that forgot lie from those of agents that never learned than the "
            "answers within each kind lie from one another.",
            "0, within the interval: another seed makes as much of a difference as the forgotten task does.",
            "What lies in the network but not in these answers; equal outputs never prove that something is unlearned.",
        )
        + _table(head, rows)
    )


def _side_effects(every: Sequence[Findings]) -> str:
    return (
        "<h2>Answers of the other tasks</h2>\n"
        + _effects(every, "side effects", "separation of the other tasks’ outputs", ("alike", "completely apart"))
        + _says(
            "The same question, put to the tasks that are still alive, about the forgotten task’s images.",
            "0, within the interval.",
            "Anything about single examples; and a large value may come from harmless rearrangement as well as from "
            "memory, though an outsider could still tell by it that the task was there.",
        )
    )


def _membership(every: Sequence[Findings]) -> str:
    panels = "".join(
        f"<div><h4>{escape(names.method(f.method))}</h4>{figures.membership(f)}</div>" for f in every if f.attacks
    )
    rows = ""
    for name, label in (("membership", "an example at a time"), ("threshold", "one threshold")):
        for method, task, one in _each(every, name):
            cells = [f"{one.effect.value:.3f} {_interval([one.effect.low, one.effect.high], 3)}"]
            for rate in ("0.01", "0.001"):
                low, high = one.figures[f"tpr_at_{rate}_interval"]
                cells.append(
                    f"{figures.percent(one.figures[f'tpr_at_{rate}'])} "
                    f"[{figures.percent(low)}, {figures.percent(high)}]"
                )
            rows += _row(method, task, label, *cells, f"{one.adjusted:.2g}")
    head = ("attack", "AUC", "true at 1 % false positives", "true at 0.1 % false positives", "p, corrected")
    return (
        "<h2>Was this example among the training data?</h2>\n"
        + _effects(every, "membership", "AUC of the attack on single examples", ("a coin toss", "always right"))
        + key([("curve line-across", "an example at a time (U-LiRA)"), ("curve line-inner", "one threshold for all")])
        + f'<figure><div class="panels">{panels}</div><figcaption>How many of the examples that were learned and '
        "forgotten are recognised (upwards), if so many that were never seen are taken for such (to the right). On the "
        "dashed line the attack guesses.</figcaption></figure>"
        + _says(
            "An attacker who trained agents of both kinds looks at how confident an agent is of single training "
            "examples of the forgotten task, and says whether it once learned them.",
            "AUC 0.5, and no more true than false positives: the attacker guesses.",
            "That no cleverer attack exists; nor whether it is this example that shows or its whole task. One "
            "threshold for all examples is shown because it is the best known; it can miss what the other finds.",
        )
        + _table(head, rows)
    )


def _relearning(every: Sequence[Findings]) -> str:
    panels = "".join(
        f"<div><h4>{escape(names.method(f.method))}</h4>{figures.relearning(f)}</div>" for f in every if f.attacks
    )
    rows = ""
    for method, task, one in _each(every, "relearning"):
        f = one.figures
        steps = (f"{f['steps']:.1f}", f"{f['steps_never']:.1f}", figures.percent(f["goal"]))
        rows += _row(method, task, *steps, f"{one.effect.value:.3f}", f"{one.adjusted:.2g}")
    head = ("steps, forgot", "steps, never learned", "to this accuracy", "AUC", "p, corrected")
    return (
        "<h2>Is it learned again faster?</h2>\n"
        + key([("curve line-across", "forgot the task"), ("curve line-inner", "never learned it")])
        + f'<figure><div class="panels">{panels}</div><figcaption>Test accuracy in percent while the forgotten task is '
        "learned again with plain steps of gradient descent, a line for each forget.</figcaption></figure>"
        + _effects(every, "relearning", "chance that an agent that forgot learns it faster", ("even", "always faster"))
        + _says(
            "Agents that forgot a task and agents that never learned it are taught it with the same steps; a trace "
            "gives the former a start.",
            "The same curve, and an even chance (0.5) of being faster.",
            "Traces that do not help with learning; and what the method’s own way of learning would show.",
        )
        + _table(head, rows)
    )


def _relapse(every: Sequence[Findings]) -> str:
    rows = ""
    for method, task, one in _each(every, "relapse"):
        cells = [figures.percent(one.figures[k]) for k in ("before", "accuracy", "before_never", "accuracy_never")]
        rows += _row(method, task, *cells, f"{one.adjusted:.2g}")
    head = (
        "forgot: right after",
        "after another task",
        "never learned: at first",
        "after another task",
        "p, corrected",
    )
    return (
        "<h2>Does it come back?</h2>\n"
        + _effects(every, "relapse", "chance that an agent that forgot knows more of it later", ("even", "always"))
        + _says(
            "After the forget, another task is learned for good; then the forgotten one is asked for again.",
            "An even chance (0.5): as much or as little is known of it as by agents that never learned it.",
            "What further learning, of other tasks, may bring back.",
        )
        + _table(head, rows)
    )


def _features(every: Sequence[Findings]) -> str:
    return (
        "<h2>What the network sees</h2>\n"
        + _effects(every, "features", "separation of the features", ("alike", "completely apart"))
        + _says(
            "The inner features for the forgotten task’s images, compared by which images a network holds alike "
            "(linear CKA), because a fresh output layer can hide what the body remembers.",
            "0, within the interval: features differ no more than those of other seeds.",
            "What is left in layers before the last, and single examples; like any distance, it averages.",
        )
    )


def _residue(every: Sequence[Findings]) -> str:
    scanned = [f for f in every if f.residue is not None]
    if not scanned:
        return '<h2>On disk</h2>\n<p class="note">No store was scanned in this audit.</p>'
    items = "".join(
        f"<li>{escape(names.method(f.method))}: {escape('; '.join(f.residue or ()) or 'nothing found')}</li>"
        for f in scanned
    )
    return f"<h2>On disk</h2>\n<ul>{items}</ul>"


def _limits() -> str:
    return (
        "<h2>What no such audit can show</h2>\n<p>Attacks can find a trace; that they find none does not prove that "
        "there is none. The same outputs, and even the same weights, can be reached with and without the data (Thudi "
        "et al. 2022, <i>On the necessity of auditable algorithmic definitions for machine unlearning</i>), so "
        "unlearning is a property of how a state came about. That is why only the comparison of bits, with a process "
        "that never saw the task, is called a proof here.</p>"
    )


def _each(every: Sequence[Findings], attack: str) -> list[tuple[str, str, Attack]]:
    return [(f.method, g.task, a) for f in every for g in f.forgets for a in g.attacks if a.name == attack]


def _row(method: str, task: str, *cells: str) -> str:
    name = f"<tr><th scope=row>{escape(names.method(method))}</th><td>{escape(task)}</td>"
    return name + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _table(head: Sequence[str], rows: str) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in ("Method", "task", *head))
    table = f'<table class="plain"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<details><summary>The numbers</summary><div class="scroll">{table}</div></details>'


def _interval(pair: Sequence[float], digits: int) -> str:
    return f"[{names.number(pair[0], digits)}, {names.number(pair[1], digits)}]"
