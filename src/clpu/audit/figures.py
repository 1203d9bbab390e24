"""The audit's figures: one effect per method next to chance, curves of relearning, curves of membership."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clpu.audit.findings import Attack, Findings
from clpu.methods import label_of
from clpu.report import formatting
from clpu.report.strips import Frame
from clpu.report.svg import Canvas, Scale


def effects(every: Sequence[Findings], attack: str, width: float, axis: str, words: tuple[str, str]) -> Canvas:
    """One row per method: the effect of an attack at each forget request with its interval, and the line of chance.

    `words` name the chance line and the right end of the axis.
    """
    rows = [(f, [(g.what, a) for g in f.forgets for a in g.attacks if a.name == attack]) for f in every]
    rows = [(f, found) for f, found in rows if found]
    most = max(len(found) for _, found in rows)
    frame = Frame(width, len(rows), f"{axis}, by method", height=max(34.0, 13.0 * most + 8))
    every_effect = [a.effect for _, found in rows for _, a in found]
    chance = every_effect[0].chance
    low = min(0.0, *(e.low for e in every_effect)) if chance == 0 else 0.0
    scale = Scale(low, 1.0, frame.left, frame.right)
    frame.axis(scale, axis)
    bottom = frame.canvas.height - frame.bottom
    frame.canvas.line(scale(chance), frame.top, scale(chance), bottom, "chance")
    frame.canvas.text(scale(chance), frame.top - 5, words[0], "tick", "start" if chance == 0 else "middle")
    frame.canvas.text(frame.right, frame.top - 5, words[1], "tick", "end")
    for number, (findings, found) in enumerate(rows):
        best = max((a for _, a in found), key=lambda a: abs(a.effect.value - chance))
        _, middle = frame.row(number, label_of(findings.method), formatting.number(best.effect.value))
        for index, (task, one) in enumerate(found):
            y = middle + 13 * (index - (len(found) - 1) / 2)
            _effect(frame.canvas, scale, y, one, f"{label_of(findings.method)}, task {task} forgotten")
    return frame.canvas


def _effect(canvas: Canvas, scale: Scale, y: float, attack: Attack, tip: str) -> None:
    effect = attack.effect
    numbers = f"{effect.value:.3f} [{effect.low:.3f}, {effect.high:.3f}], corrected p = {attack.adjusted:.2g}"
    canvas.line(scale(effect.low), y, scale(effect.high), y, "whisker")
    style = "dot across" if attack.found else "hollow"
    canvas.circle(scale(effect.value), y, 4.5, style, f"{tip}: {numbers}")


def relearning(findings: Findings, width: float = 330) -> Canvas:
    """Accuracy while the forgotten tasks are learned again, next to runs that learn them for the first time."""
    hits = [a for a in findings.attacks if a.name == "relearning"]
    height, left, right, top, bottom = 190.0, 34.0, width - 8, 10.0, 150.0
    canvas = Canvas(width, height, f"Relearning, {label_of(findings.method)}")
    x = Scale(0, max(h.details["marks"][-1] for h in hits), left, right)
    y = Scale(0, 100, bottom, top)
    _axes(canvas, x, y, "steps", left, right, bottom)
    for hit in hits:
        for curve, style in (("curve_counterfactual", "inner"), ("curve", "across")):
            points = [(x(m), y(100 * v)) for m, v in zip(hit.details["marks"], hit.details[curve])]
            canvas.path(points, f"curve line-{style}")
    return canvas


def membership(findings: Findings, width: float = 330) -> Canvas:
    """True against false positives, both logarithmic: the per-example attack, the threshold, and chance."""
    height, left, right, top, bottom = 200.0, 44.0, width - 8, 10.0, 160.0
    canvas = Canvas(width, height, f"Membership, {label_of(findings.method)}")
    x, y = Scale(0.001, 1, left, right, "log"), Scale(0.001, 1, bottom, top, "log")
    for tick in (0.001, 0.01, 0.1, 1.0):
        canvas.line(x(tick), top, x(tick), bottom, "grid")
        canvas.line(left, y(tick), right, y(tick), "grid")
        canvas.text(x(tick), bottom + 16, f"{100 * tick:g}%", "tick", "middle")
        canvas.text(left - 6, y(tick) + 4, f"{100 * tick:g}%", "tick", "end")
    canvas.text((left + right) / 2, bottom + 34, "false positives", "axis-name", "middle")
    canvas.path([(x(0.001), y(0.001)), (x(1), y(1))], "chance")
    for attack in findings.attacks:
        if attack.name in ("membership", "threshold"):
            points = [(x(rate), y(max(true, 0.001))) for rate, true in attack.details["curve"]]
            canvas.path(points, "curve line-across" if attack.name == "membership" else "curve line-inner")
    return canvas


def _axes(canvas: Canvas, x: Scale, y: Scale, name: str, left: float, right: float, bottom: float) -> None:
    for tick in y.ticks(4):
        canvas.line(left, y(tick), right, y(tick), "grid")
        canvas.text(left - 6, y(tick) + 4, f"{tick:g}", "tick", "end")
    for tick in x.ticks(4):
        canvas.text(x(tick), bottom + 16, f"{tick:g}", "tick", "middle")
    canvas.text((left + right) / 2, bottom + 34, name, "axis-name", "middle")


def percent(value: float) -> str:
    """A share in percent, as precise as makes sense.

    >>> percent(0.976), percent(0.0012)
    ('98%', '0.12%')
    """
    if math.isnan(value):
        return "–"
    return f"{100 * value:.0f}%" if value >= 0.095 else f"{100 * value:.2g}%"
