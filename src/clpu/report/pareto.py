"""The paper's Figure 1 from measured data: accuracy against size, and against what forgetting reveals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from clpu.report import formatting
from clpu.report.summary import Row
from clpu.report.svg import Canvas, Labels, Scale

_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 14.0, 14.0, 44.0
_FAR = 24.0


def front(rows: Sequence[Row]) -> set[str]:
    """Return the Pareto front: no other method is at least as good in accuracy, size and JS-ratio and better in one.

    The upper bound is excluded, as in `summary.best`.
    """

    def costs(row: Row) -> tuple[float, float, float]:
        ratio = row.metrics["js_ratio"].value
        return -row.metrics["acc"].value, row.bytes, math.inf if math.isnan(ratio) else ratio

    every = {row.method: costs(row) for row in rows if not row.about.upper_bound}
    return {
        method
        for method, mine in every.items()
        if not any(other != mine and all(o <= m for o, m in zip(other, mine)) for other in every.values())
    }


def panels(rows: Sequence[Row], width: float, height: float = 330) -> list[Canvas]:
    """Draw accuracy against peak size and against JS-ratio; the Pareto front is filled."""
    unbeaten = front(rows)
    kept = [float(row.bytes) for row in rows]
    result = []
    if min(kept) > 0:
        wide = max(kept) / min(kept) > 4
        room = 1.35 if wide else 1.1
        scale = Scale(min(kept) / room, max(kept) * room, _LEFT + 12, width - _RIGHT - 12, "log" if wide else "linear")
        title = "peak size of one agent" + (" (logarithmic)" if wide else "")
        result.append(_panel(rows, unbeaten, width, height, scale, title, lambda row: float(row.bytes), _size))
    ratios = [row.metrics["js_ratio"].value for row in rows]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    if finite:
        top = max(finite) * (1.25 if math.inf in ratios else 1.1) or 1.0
        scale = Scale(0, top, _LEFT + 12, width - _RIGHT - 12, "sqrt")
        result.append(
            _panel(
                [row for row in rows if not math.isnan(row.metrics["js_ratio"].value)],
                unbeaten,
                width,
                height,
                scale,
                "JS-ratio (square-root scale)",
                lambda row: row.metrics["js_ratio"].value,
                lambda value: f"{value:g}",
            )
        )
    return result


def _size(count: float) -> str:
    return formatting.size(count).replace(".0 ", " ")


def _panel(
    rows: Sequence[Row],
    unbeaten: set[str],
    width: float,
    height: float,
    x: Scale,
    title: str,
    value: Callable[[Row], float],
    write: Callable[[float], str],
) -> Canvas:
    canvas = Canvas(width, height, f"Accuracy against {title}")
    accuracies = [row.metrics["acc"].value for row in rows]
    room = max(1.0, 0.12 * (max(accuracies) - min(accuracies)))
    y = Scale(
        max(0, min(accuracies) - room), min(100, max(accuracies) + room), height - _BOTTOM - 8, _TOP + 8, "linear"
    )
    for tick in y.ticks(5):
        canvas.line(_LEFT, y(tick), width - _RIGHT, y(tick), "grid")
        canvas.text(_LEFT - 6, y(tick) + 4, f"{tick:g}", "tick", "end")
    for tick in x.ticks(5):
        canvas.line(x(tick), _TOP, x(tick), height - _BOTTOM, "grid")
        canvas.text(x(tick), height - _BOTTOM + 16, write(tick), "tick", "middle")
    canvas.text((_LEFT + width - _RIGHT) / 2, height - 8, title, "axis-name", "middle")
    canvas.text(11, (_TOP + height - _BOTTOM) / 2, "ACC, %", "axis-name", "middle", turn=True)
    labels = Labels(_LEFT, _TOP, width - _RIGHT, height - _BOTTOM)
    points = [(row, x(value(row)), y(row.metrics["acc"].value)) for row in rows]
    for _, px, py in points:
        labels.block(px, py, 6)
    canvas.text(_LEFT + 6, _TOP + 14, "↖ better", "hint")
    labels.taken.append((_LEFT, _TOP, _LEFT + 60, _TOP + 18))
    for row, px, py in points:
        acc = row.metrics["acc"]
        if not math.isnan(acc.low):
            canvas.line(px, y(acc.low), px, y(acc.high), "whisker")
        style = "bound" if row.about.upper_bound else "front" if row.method in unbeaten else "beaten"
        tip = f"{row.label}: ACC {acc.value:.2f}%, peak size {formatting.size(row.bytes)}"
        tip += f", JS-ratio {formatting.number(row.metrics['js_ratio'].value)}"
        canvas.circle(px, py, 5, f"point {style}", tip)
    # The most crowded first.
    for row, px, py in sorted(points, key=lambda p: -sum(math.hypot(p[1] - q[1], p[2] - q[2]) < 60 for q in points)):
        lx, ly, anchor = labels.place(px, py, 5, row.label)
        if abs(ly - py) > _FAR:  # a line leads from the point to a label that is far from it
            side = {"start": 4, "middle": 0, "end": -4}[anchor]
            canvas.line(px, py, lx + side, ly - (10 if ly > py else -2), "leader")
        canvas.text(lx, ly, row.label, "point-name" if row.method in unbeaten else "point-name beaten-name", anchor)
    return canvas
