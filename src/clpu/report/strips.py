"""Figures with one row per method: distances within and across groups, and accuracy on forgotten tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clpu.metrics.learning import Floats
from clpu.report import formatting
from clpu.report.curves import short, task_style
from clpu.report.summary import Row
from clpu.report.svg import Canvas, Scale

#: Below this width a row's name is above the row, not next to it.
NARROW = 520


def distances(rows: Sequence[Row], width: float) -> Canvas:
    """Draw IJSD and AJSD, one dot per pair of replicas, over the range of in-group distances."""
    rows = [row for row in rows if row.ajsd.size]
    frame = Frame(width, len(rows), "Distances between replicas within the counterfactual group and across the groups")
    values = np.concatenate([np.concatenate([row.ijsd, row.ajsd]) for row in rows])
    scale = _distance_scale(values, frame)
    log = scale.kind == "log"
    name = f"Jensen–Shannon divergence on the forgotten tasks, nats{' (logarithmic)' if log else ''}"
    frame.axis(scale, name if width >= NARROW else "divergence, nats" + (" (log)" if log else ""))
    for number, row in enumerate(rows):
        top, middle = frame.row(number, row.label, f"IRR {formatting.number(row.metrics['irr'].value)}")
        if row.ijsd.size:
            edge = scale(float(row.ijsd.max()))
            frame.canvas.rect(frame.left, top, edge - frame.left, frame.height, "range")
            frame.canvas.line(edge, top, edge, top + frame.height, "range-edge")
        _swarm(frame.canvas, scale, row.ijsd, middle - 9, "inner", f"{row.label}: within the group")
        _swarm(frame.canvas, scale, row.ajsd, middle + 9, "across", f"{row.label}: across the groups")
    return frame.canvas


def _distance_scale(values: Floats, frame: Frame) -> Scale:
    positive = values[values > 0]
    if positive.size and positive.max() / positive.min() > 6:
        # The smallest may be rounding errors between equal replicas: the axis must not begin at 1e-17.
        low = max(float(positive.min()) * 0.85, float(positive.max()) * 1e-5)
        return Scale(low, float(positive.max()) * 1.15, frame.left, frame.right, "log")
    return Scale(0, float(values.max()) * 1.1 or 1.0, frame.left, frame.right)


def _swarm(canvas: Canvas, scale: Scale, values: Floats, y: float, style: str, tip: str) -> None:
    """Draw dots at their values, moved off the line where they would overlap, and a tick at the mean."""
    if not values.size:
        return
    radius, placed = 2.6, list[tuple[float, float]]()
    for value in np.sort(values):
        x = scale(float(value))
        offsets = (0.0, -2.5, 2.5, -5.0, 5.0, -7.0, 7.0)
        free = [o for o in offsets if all((x - a) ** 2 + (o - b) ** 2 > (1.6 * radius) ** 2 for a, b in placed[-20:])]
        offset = free[0] if free else offsets[len(placed) % len(offsets)]
        placed.append((x, offset))
        canvas.circle(x, y + offset, radius, f"dot {style}", f"{tip}, {value:.4f}")
    mean = scale(float(values.mean()))
    canvas.line(mean, y - 8, mean, y + 8, f"mean {style}")


def forgotten(rows: Sequence[Row], tasks: Sequence[str], width: float) -> Canvas:
    """Draw the accuracy on each forgotten task right after the forget request, with a diamond for the ideal."""
    rows = [row for row in rows if row.forgotten]
    most = max(len(row.forgotten) for row in rows)
    label = "Accuracy on forgotten tasks right after the forget request, and chance"
    frame = Frame(width, len(rows), label, height=max(40.0, 12.0 * most + 8))
    scale = Scale(0, 100, frame.left, frame.right)
    frame.axis(scale, "accuracy right after the forget request, %")
    bottom = frame.canvas.height - frame.bottom
    chances = sorted({100 * f.chance for row in rows for f in row.forgotten})
    for chance in chances:
        frame.canvas.line(scale(chance), frame.top, scale(chance), bottom, "chance")
        frame.canvas.text(scale(chance), frame.top - 5, f"chance {chance:.3g}%", "tick", "middle")
    for number, row in enumerate(rows):
        mean = 100 * float(np.mean([f.accuracy.mean() for f in row.forgotten]))
        _, middle = frame.row(number, row.label, f"{mean:.1f}%")
        for index, item in enumerate(row.forgotten):
            y = middle + 12 * (index - (len(row.forgotten) - 1) / 2)
            style = task_style(tasks.index(item.task))
            never = 100 * float(item.counterfactual.mean())
            values = 100 * item.accuracy
            frame.canvas.line(scale(float(values.min())), y, scale(float(values.max())), y, f"curve {style}")
            for value in values:
                tip = f"{row.label}, {item.what} after the forget request: {value:.1f}%"
                frame.canvas.circle(scale(float(value)), y, 3, f"dot {style}", tip)
            x = scale(never)
            tip = f"{row.label}, {item.what}, never learned: {never:.1f}%"
            frame.canvas.path([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], "diamond", closed=True, tip=tip)
    return frame.canvas


class Frame:
    """Rows with a name on the left (above, when narrow), a value on the right, and a common axis below."""

    def __init__(self, width: float, rows: int, label: str, height: float = 40) -> None:
        self.narrow = width < NARROW
        self.left, self.right = (8.0, width - 10) if self.narrow else (172.0, width - 84)
        self.top, self.bottom, self.height = 18.0, 40.0, height
        self.step = height + (26 if self.narrow else 6)
        self.canvas = Canvas(width, self.top + rows * self.step + self.bottom, label)

    def axis(self, scale: Scale, name: str) -> None:
        base = self.canvas.height - self.bottom
        for tick in scale.ticks(5 if self.narrow else 8):
            self.canvas.line(scale(tick), self.top, scale(tick), base, "grid")
            self.canvas.text(scale(tick), base + 16, f"{tick:g}", "tick", "middle")
        self.canvas.text((self.left + self.right) / 2, base + 34, name, "axis-name", "middle")

    def row(self, number: int, name: str, value: str) -> tuple[float, float]:
        """Write a row's name and value; return the top and the middle of its strip."""
        begin = self.top + number * self.step
        if self.narrow:
            self.canvas.text(self.left, begin + 15, name, "row-name")
            self.canvas.text(self.right, begin + 15, value, "row-value", "end")
            top = begin + 22
        else:
            top = begin + (self.step - self.height) / 2
            self.canvas.text(self.left - 12, top + self.height / 2 + 4, short(name, 20), "row-name", "end")
            self.canvas.text(self.right + 12, top + self.height / 2 + 4, value, "row-value")
        return top, top + self.height / 2
