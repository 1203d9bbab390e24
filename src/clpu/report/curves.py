"""Accuracy after each request: one small panel per method, one line per task, and an ✕ where a task is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clpu.report.svg import Canvas, Scale, spread_out, text_width
from clpu.requests import Instruction, Stream
from clpu.results import Result

COLOURS = 8
_WIDTH, _HEIGHT = 350.0, 216.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 52.0, 10.0, 34.0


def task_style(index: int) -> str:
    """Return the CSS class of a task's colour."""
    return f"task{index % COLOURS}"


def short(text: str, longest: int = 8) -> str:
    """Cut a name to fit next to a line."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def lowest_percent(results: Sequence[Result]) -> float:
    """Return the lower end of the axis: 0, or 40 if nothing is lower (two classes per task)."""
    return 40.0 if all(result.accuracy.min() > 0.45 for result in results) else 0.0


def accuracy_panel(result: Result, label: str, chance: Sequence[float], low: float = 0.0) -> Canvas:
    """Draw one method's accuracy in percent on every task after each request, from when the task is learned."""
    canvas = Canvas(_WIDTH, _HEIGHT, f"{label}: accuracy on each task after each request")
    stream = Stream(" ".join(result.requests))
    x = Scale(0, max(1, len(stream) - 1), _LEFT + 10, _WIDTH - _RIGHT - 10)
    y = Scale(low, 100, _HEIGHT - _BOTTOM, _TOP)
    _axes(canvas, stream, x, y, chance)
    mean, spread = 100 * result.accuracy.mean(axis=2), 100 * result.accuracy.std(axis=2)
    labels: list[tuple[float, str, str]] = []
    for index, task in enumerate(result.tasks):
        style = task_style(index)
        for begin, end in lives(result.alive, task):
            points = [(x(t), y(mean[t, index])) for t in range(begin, end + 1)]
            upper = [(x(t), y(mean[t, index] + spread[t, index])) for t in range(begin, end + 1)]
            lower = [(x(t), y(mean[t, index] - spread[t, index])) for t in range(begin, end + 1)]
            if len(points) > 1:
                canvas.path([*upper, *reversed(lower)], f"band {style}", closed=True)
                canvas.path(points, f"curve {style}")
            for t, (px, py) in enumerate(points, begin):
                tip = f"task {task} after {result.requests[t]}: {mean[t, index]:.1f}% ± {spread[t, index]:.1f}"
                canvas.circle(px, py, 2.4, f"dot {style}", tip)
            if end + 1 == len(stream):
                labels.append((points[-1][1], task, style))
            else:
                _ending(canvas, x, y, mean[:, index], end, task, style, _next_life(result.alive, task, end))
    placed = spread_out([position for position, _, _ in labels], 12, _TOP + 4, _HEIGHT - _BOTTOM)
    for (_, task, style), position in zip(labels, placed):
        canvas.text(
            _WIDTH - _RIGHT - 4, position + 4, f"task {task}" if len(task) < 3 else short(task), f"name {style}"
        )
    return canvas


def lives(alive: Sequence[Sequence[str]], task: str) -> list[tuple[int, int]]:
    """Return the first and last request of each period in which a task is active, counted from 0.

    >>> lives([["1"], ["1", "2"], ["1"], ["1", "2"]], "2")
    [(1, 1), (3, 3)]
    """
    stretches: list[tuple[int, int]] = []
    for t, tasks in enumerate(alive):
        if task in tasks:
            begin = stretches.pop()[0] if stretches and stretches[-1][1] == t - 1 else t
            stretches.append((begin, t))
    return stretches


def _next_life(alive: Sequence[Sequence[str]], task: str, end: int) -> int:
    return next((t for t in range(end + 1, len(alive)) if task in alive[t]), len(alive))


def _ending(canvas: Canvas, x: Scale, y: Scale, mean: np.ndarray, end: int, task: str, style: str, until: int) -> None:
    """Draw the fall at a forget request, an ✕ right after it, and a faint line for the accuracy from then on."""
    after = [(x(t), y(mean[t])) for t in range(end + 1, until)]
    canvas.path([(x(end), y(mean[end])), after[0]], f"fall {style}")
    if len(after) > 1:
        canvas.path(after, f"gone {style}")
    canvas.cross(*after[0], 4, f"cross {style}", f"task {task} forgotten: {mean[end + 1]:.1f}% right after")


def _axes(canvas: Canvas, stream: Stream, x: Scale, y: Scale, chance: Sequence[float]) -> None:
    for tick in y.ticks(5):
        canvas.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid")
        canvas.text(_LEFT - 6, y(tick) + 4, f"{tick:g}%" if tick == 100 else f"{tick:g}", "tick", "end")
    # Forget requests first: if there are too many requests, their names are shown.
    shown: list[tuple[float, float]] = []
    for forget in (True, False):
        for t, request in enumerate(stream):
            named = str(request.scope) if request.forgets_records else request.task
            text = short(named, 4) + request.instruction.value
            half = text_width(text, 10) / 2 + 3
            left, right = x(t) - half, x(t) + half
            if (request.instruction is Instruction.FORGET) is forget and all(left > b or right < a for a, b in shown):
                shown.append((left, right))
                canvas.text(x(t), _HEIGHT - _BOTTOM + 15, text, "tick forget" if forget else "tick", "middle")
    for level in sorted({round(100 * c, 3) for c in chance}):
        canvas.line(_LEFT, y(level), _WIDTH - _RIGHT, y(level), "chance")
    canvas.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 3, "request", "axis-name", "middle")
