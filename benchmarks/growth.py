"""Measure how the cost of learning grows with replicas, tasks and data; draws docs/growth.svg on request.

Each curve is the best of several rounds in one process with one thread; the points of a curve take turns.

    python benchmarks/growth.py [--draw docs/growth.svg]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

import clpu
from clpu.report.svg import Canvas, Scale

METHODS = {"seq": "a", "der++": "b", "clpu-der++": "c"}
ROUNDS = 3
RNG = np.random.default_rng(0)
Curves = dict[str, dict[int, float]]


def task(images: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(RNG.integers(0, 256, (images, 784), dtype=np.uint8)), torch.arange(images) % 10


SOME = task(1600)


def best(sides: Mapping[int, Callable[[], float]]) -> dict[int, float]:
    """The best of several rounds of each, taking turns."""
    found = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for size, side in sides.items():
            found[size] = min(found[size], side())
    return found


def learning(agent: clpu.Agent, name: str, images: int = 1600) -> Callable[[], float]:
    """Seconds to learn one more task permanently."""

    def run() -> float:
        copy = agent.copy()
        start = time.perf_counter()
        copy.learn(name, SOME[0][:images], SOME[1][:images])
        return time.perf_counter() - start

    return run


def with_tasks(method: str, count: int, replicas: int = 5) -> clpu.Agent:
    """An agent that remembers this many tasks."""
    agent = clpu.Agent(method, seeds=range(replicas), epochs=1)
    for i in range(count):
        agent.learn(str(i), SOME[0][:320], SOME[1][:320])
    return agent


def by_replicas(method: str) -> dict[int, float]:
    """Microseconds a step and model, for the second task."""
    sizes = (1, 2, 5, 10, 20, 40)
    seconds = best({k: learning(with_tasks(method, 1, k), "next") for k in sizes})
    return {k: 1e6 * s / 50 / k for k, s in seconds.items()}


def by_tasks(method: str) -> dict[int, float]:
    """Microseconds per step and model while this many tasks are remembered."""
    seconds = best({n: learning(with_tasks(method, n), "next") for n in (0, 1, 2, 4, 8, 16, 32)})
    return {n: 1e6 * s / 50 / 5 for n, s in seconds.items()}


def by_data(method: str) -> dict[int, float]:
    """Seconds to learn a second task of this many images, five replicas."""
    global SOME
    agent = with_tasks(method, 1)
    SOME = task(16_000)
    return best({n: learning(agent, "next", n) for n in (1000, 2000, 4000, 8000, 16_000)})


def draw(panels: Sequence[tuple[str, str, Curves]]) -> str:
    """Three panels side by side, for light and dark pages."""
    canvas = Canvas(960, 300, "how the cost of learning grows with replicas, tasks and images")
    for i, (title, below, curves) in enumerate(panels):
        left, right = 60 + 320 * i, 300 + 320 * i
        sizes = [n for curve in curves.values() for n in curve]
        top = max(value for curve in curves.values() for value in curve.values())
        across = Scale(0, max(sizes), left, right)
        up = Scale(0, 1.1 * top, 230, 40)
        canvas.text(left - 40, 20, title, "title")
        for tick in up.ticks(4):
            canvas.line(left, up(tick), right, up(tick), "grid")
            canvas.text(left - 6, up(tick) + 4, f"{tick:g}", "tick", "end")
        for tick in across.ticks(4):
            canvas.text(across(tick), 248, f"{tick:,g}", "tick", "middle")
        canvas.text((left + right) / 2, 268, below, "tick", "middle")
        for method, curve in curves.items():
            canvas.path([(across(n), up(v)) for n, v in curve.items()], f"line {METHODS[method]}")
            for n, value in curve.items():
                canvas.circle(across(n), up(value), 3, f"dot {METHODS[method]}", f"{method}, {n:,}: {value:.3g}")
    for i, (method, style) in enumerate(METHODS.items()):
        canvas.line(60 + 130 * i, 290, 84 + 130 * i, 290, f"line {style}")
        canvas.text(90 + 130 * i, 294, method, "tick")
    style = (
        "<style>text{font:12px sans-serif;fill:#444}.title{font-weight:600;fill:#111}.grid{stroke:#8884}"
        ".line{fill:none;stroke-width:2}.a{stroke:#0072b2}.b{stroke:#d55e00}.c{stroke:#009e73}"
        ".dot.a{fill:#0072b2}.dot.b{fill:#d55e00}.dot.c{fill:#009e73}"
        "@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}}</style>"
    )
    return str(canvas).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", ">" + style, 1)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    panels = []
    for title, below, measure in (
        ("µs a step and model", "replicas in one population", by_replicas),
        ("µs a step and model", "tasks remembered before", by_tasks),
        ("seconds for five replicas", "images of the task", by_data),
    ):
        curves = {method: measure(method) for method in METHODS}
        panels.append((title, below, curves))
        print(f"{title}, by {below}")
        for method, curve in curves.items():
            print(f"  {method:12} " + "  ".join(f"{n:,}: {value:.3g}" for n, value in curve.items()), flush=True)
    if arguments[:1] == ["--draw"]:
        Path(arguments[1]).write_text(draw(panels) + "\n", encoding="utf-8")
    alone, together = panels[0][2]["der++"][1], panels[0][2]["der++"][10]
    print(f"ratio {alone / together:.2f} (der++, a model's step alone against one of ten)")


if __name__ == "__main__":
    main(sys.argv[1:])
