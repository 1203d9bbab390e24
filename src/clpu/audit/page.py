"""`audit.html`: one self-contained page that explains what was found and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from clpu.audit import figures
from clpu.audit.bitwise import Bits, describe_parts
from clpu.audit.figures import percent
from clpu.audit.findings import Attack, Findings
from clpu.audit.run import Audit
from clpu.audit.tables import caveat
from clpu.audit.verdict import verdict
from clpu.methods import label_of
from clpu.report import formatting
from clpu.report.html import Figure, draw_figure, render
from clpu.report.html_tables import Cell, Line, Table
from clpu.report.recipes import view_recipe
from clpu.requests import Stream

#: For each attack with a figure of effects: the name of its axis, and of the axis' two ends.
_EFFECTS = {
    "outputs": ("separation of the outputs", "no difference", "nothing in common"),
    "side effects": ("separation of the other tasks’ outputs", "no difference", "nothing in common"),
    "membership": ("AUC of the attack on single examples", "chance", "always right"),
    "relearning": ("probability that an actual agent learns it faster", "chance", "always faster"),
    "relapse": ("probability that an actual agent knows more of it later", "chance", "always"),
    "features": ("separation of the features", "no difference", "nothing in common"),
}
_POINTS = (
    "One dot per forget request: the effect, with its 95% interval. Filled: a trace was found. Hollow: consistent with "
    "chance. Hover over a dot for its numbers."
)


def page(audit: Audit) -> str:
    """Return the page of an audit."""
    every = list(audit.findings.values())
    attacked = [findings for findings in every if findings.attacks]
    return render(
        "audit.html",
        title=f"Does {_forgotten(every)} leave a trace? {formatting.benchmark(audit.recipe.benchmark)}",
        runs=len(audit.recipe.seeds),
        stream=Stream(audit.recipe.requests),
        verdicts=[(label_of(findings.method), verdict(findings)) for findings in every],
        caveat=caveat(audit) if every else "",
        bits=_bits(every),
        figures={attack: _effects(every, attack) for attack in _EFFECTS},
        tables=_tables(every),
        membership=[(label_of(f.method), figures.membership(f)) for f in attacked],
        relearning=[
            (label_of(f.method), figures.relearning(f))
            for f in attacked
            if any(attack.name == "relearning" for attack in f.attacks)
        ],
        residue=[(label_of(f.method), f.residue) for f in every if f.residue is not None],
        recipe=view_recipe(audit.recipe, list(audit.findings)),
    )


def _forgotten(every: Sequence[Findings]) -> str:
    scopes = {forget.records[:1] for findings in every for forget in findings.forgets}
    return "a forgotten person" if scopes == {"@"} else "a forgotten task" if scopes <= {""} else "what was forgotten"


def _bits(every: Sequence[Findings]) -> Table:
    head = ("Method", "after request", "state and outputs", "digest", "digest, counterfactual")
    lines = [_bits_line(findings.method, bits) for findings in every for bits in findings.bits]
    return Table(head, lines)


def _bits_line(method: str, bits: Bits) -> Line:
    parts = describe_parts(bits.differing)
    what = "equal" if bits.equal else f"differ: {', '.join(parts[:6])}"
    what += f" and {len(parts) - 6} more" if not bits.equal and len(parts) > 6 else ""
    digests = (Cell(digest[:12]) for digest in (bits.digest, bits.digest_counterfactual))
    return Line(label_of(method), [Cell(str(bits.request)), Cell(what, style="words"), *digests])


def _effects(every: Sequence[Findings], attack: str) -> Figure | None:
    if not any(a.name == attack for f in every for a in f.attacks):
        return None
    axis, *ends = _EFFECTS[attack]
    return draw_figure(lambda width: [figures.effects(every, attack, width, axis, (ends[0], ends[1]))], _POINTS)


def _tables(every: Sequence[Findings]) -> dict[str, Table]:
    """Return the numbers behind the figures, one row per method and forget request."""
    heads = {
        "outputs": (
            *("IJSD: within the counterfactual group", "AJSD: across the groups", "accuracy, actual"),
            *("accuracy, counterfactual", "p", "p, corrected"),
        ),
        "membership": ("attack", "AUC", "true positives at 1% false", "true positives at 0.1% false", "p, corrected"),
        "relearning": ("steps, actual", "steps, counterfactual", "to this accuracy", "AUC", "p, corrected"),
        "relapse": (
            *("actual: right after forgetting", "after another task"),
            *("counterfactual: before", "after another task", "p, corrected"),
        ),
    }
    cells = {"outputs": _outputs, "relearning": _relearning, "relapse": _relapse}
    rows = {name: [(m, t, cells[name](a)) for m, t, a in _each(every, name)] for name in cells}
    rows["membership"] = [
        (method, task, [label, *_membership(attack)])
        for name, label in (("membership", "per example"), ("threshold", "one threshold"))
        for method, task, attack in _each(every, name)
    ]
    return {
        name: Table(
            ("Method", "task", *head),
            [Line(label_of(method), [Cell(text) for text in (task, *texts)]) for method, task, texts in rows[name]],
        )
        for name, head in heads.items()
    }


def _each(every: Sequence[Findings], attack: str) -> list[tuple[str, str, Attack]]:
    return [(f.method, g.what, a) for f in every for g in f.forgets for a in g.attacks if a.name == attack]


def _outputs(one: Attack) -> list[str]:
    d = one.details
    distances = [f"{d[name]:.4f} {_interval(d[f'{name}_interval'], 4)}" for name in ("ijsd", "ajsd")]
    accuracies = [percent(d["accuracy"]), percent(d["accuracy_counterfactual"])]
    return [*distances, *accuracies, f"{one.effect.p:.2g}", f"{one.adjusted:.2g}"]


def _membership(one: Attack) -> list[str]:
    rates = []
    for rate in ("0.01", "0.001"):
        low, high = one.details[f"tpr_at_{rate}_interval"]
        rates.append(f"{percent(one.details[f'tpr_at_{rate}'])} [{percent(low)}, {percent(high)}]")
    auc = f"{one.effect.value:.3f} {_interval([one.effect.low, one.effect.high], 3)}"
    return [auc, *rates, f"{one.adjusted:.2g}"]


def _relearning(one: Attack) -> list[str]:
    d = one.details
    steps = [f"{d['steps']:.1f}", f"{d['steps_counterfactual']:.1f}", percent(d["goal"])]
    return [*steps, f"{one.effect.value:.3f}", f"{one.adjusted:.2g}"]


def _relapse(one: Attack) -> list[str]:
    names = ("before", "accuracy", "before_counterfactual", "accuracy_counterfactual")
    return [*(percent(one.details[name]) for name in names), f"{one.adjusted:.2g}"]


def _interval(pair: Sequence[float], digits: int) -> str:
    return f"[{formatting.number(pair[0], digits)}, {formatting.number(pair[1], digits)}]"
