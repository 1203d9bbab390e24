"""Measure what each part of CLPU-Live contributes, and when a merge costs much: data (CSV) and figures (SVG).

    python reproduction/live_study.py ablation       which part brings how much: rot- and perm-MNIST
    python reproduction/live_study.py memory         loss of the merge against the size of the memory
    python reproduction/live_study.py tasks          against the number of tasks: 20, every third one merged later
    python reproduction/live_study.py relatedness    against the angle between two rotated tasks
    python reproduction/live_study.py audit          how well an audit detects DER++, against that angle
    python reproduction/live_study.py draw           docs/live-*.svg from the CSV files

Everything is at the profile `small` (6,000 training images, ten passes at 0.05, the MLP) with five seeds, measured on
all 10,000 test images, after the choices of `live_choices.py`. A CSV in reproduction/live has one row per measurement.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from figure import style
from live_choices import WithoutLabels

import clpu
from clpu.audit.api import audit
from clpu.data import load, tasks
from clpu.data.benchmarks import _rotation
from clpu.learning.batches import Examples
from clpu.learning.memory import Memory
from clpu.methods.clpu_derpp import Distilled
from clpu.methods.clpu_live import CLPULive, Lessons, LiveSettings
from clpu.methods.derpp import DarkSettings
from clpu.networks.network import Network
from clpu.report.svg import Canvas, Scale
from clpu.state import State

HERE = Path(__file__).parent
FOLDER, FIGURES = HERE / "live", HERE.parent / "docs"
SEEDS = range(5)
SMALL: dict[str, Any] = {"epochs": 10, "lr": 0.05}
METHODS = ("clpu-der++", "clpu-live")
Data = tuple[Any, Any, Any, Any]
Row = Sequence[object]


# What is measured


class WithoutOwnHead(CLPULive):
    """A merge starts from a fresh head; no noise, no labels; 64 blends."""

    name = "live-fresh-head"

    def fit(self, task: str, network: Network, *rest: Any, **options: Any) -> Network:
        if len(rest) > 2 and rest[2] == "merge":
            network = self.with_fresh_head(network, task, network.heads[task].outputs)
        return super().fit(task, network, *rest, **options)

    def lessons(
        self, state: State, teacher: Network, memories: Mapping[str, Memory], task: str, purpose: str
    ) -> Lessons:
        made = super().lessons(state, teacher, memories, task, purpose)
        return WithoutLabels(made.teacher, made.blends, made.examples, made.lr)


class WithOwnHead(WithoutOwnHead):
    """And a merge starts from the temporary network's head."""

    name = "live-own-head"

    def fit(self, *rest: Any, **options: Any) -> Network:
        return CLPULive.fit(self, *rest, **options)


@dataclass(frozen=True)
class MergeSettings(DarkSettings, LiveSettings):
    pass


class MergeOnly(WithoutOwnHead):
    """Teachers in the merge only: tasks are learned as CLPU-DER++ learns them."""

    name = "live-merge-only"
    Settings = MergeSettings
    stores = Distilled.stores
    replay_loss = Distilled.replay_loss

    def train_with_replay(
        self, state: State, task: str, data: Examples, network: Network, past: Mapping[str, Memory]
    ) -> tuple[Network, Memory]:
        return super(CLPULive, self).train_with_replay(state, task, data, network, past)


PARTS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("CLPU-DER++", "clpu-der++", {}),
    ("both networks teach in the merge, on 64 blends", MergeOnly, {"blends": 64, "noise": 0.0}),
    ("the main network teaches while a task is learned", WithoutOwnHead, {"blends": 64, "noise": 0.0}),
    ("the merge starts from the temporary network's head", WithOwnHead, {"blends": 64, "noise": 0.0}),
    ("5% noise", WithOwnHead, {"blends": 64, "noise": 0.05}),
    ("32 examples with labels for half of the blends: CLPU-Live", "clpu-live", {}),
)


def small(train: Any, test: Any) -> Data:
    """A task's data as the profile `small` takes them, and all test data."""
    rows = np.linspace(0, len(train.y) - 1, 6_000).round().astype(np.int64)
    return tuple(torch.from_numpy(np.array(a)) for a in (train.x[rows], train.y[rows], test.x, test.y))  # type: ignore[return-value]


def of_benchmark(name: str, count: int = 5) -> dict[str, Data]:
    return {task.name: small(task.train, task.test) for task in tasks(name, tasks=count)}


def percent(agent: clpu.Agent, task: str, data: Mapping[str, Data]) -> Any:
    """The accuracy of each replica on a task's test images."""
    return 100 * agent.accuracy(task, *data[task][2:])


def ablation() -> Iterable[Row]:
    yield "benchmark", "method", "seed", "task 1", "task 2", "task 4", "task 2 before its merge"
    for benchmark in ("rot-mnist", "perm-mnist"):
        data = of_benchmark(benchmark)
        for name, method, options in PARTS:
            agent, before = streamed(method, data, options)
            found = [percent(agent, task, data) for task in ("1", "2", "4")]
            for seed, *values in zip(SEEDS, *found, before):
                yield benchmark, name, seed, *(f"{v:.2f}" for v in values)


def streamed(method: Any, data: Mapping[str, Data], options: Mapping[str, Any]) -> tuple[clpu.Agent, Any]:
    """An agent after 1R 2T 4R 2R, and its accuracy on task 2 before the merge."""
    agent = clpu.Agent(method, seeds=SEEDS, **SMALL, **options)
    agent.learn("1", *data["1"][:2])
    agent.learn("2", *data["2"][:2], temporary=True)
    before = percent(agent, "2", data)
    agent.learn("4", *data["4"][:2])
    agent.keep("2")
    return agent, before


def memory() -> Iterable[Row]:
    yield "method", "memory", "seed", "mean of tasks 1, 2, 4", "task 2 before its merge", "task 2 after"
    data = of_benchmark("perm-mnist")
    for size in (50, 100, 200, 500):
        for method in METHODS:
            agent, before = streamed(method, data, {"memory": size})
            one, after, four = (percent(agent, task, data) for task in ("1", "2", "4"))
            for seed, *values in zip(SEEDS, (one + after + four) / 3, before, after):
                yield method, size, seed, *(f"{v:.2f}" for v in values)


def tasks_() -> Iterable[Row]:
    """20 tasks; every third one is temporary, and kept when two more have been learned."""
    yield "method", "tasks", "seed", "mean of remembered tasks", "merged task", "before its merge", "after"
    data = of_benchmark("perm-mnist", 20)
    for method in METHODS:
        agent = clpu.Agent(method, seeds=SEEDS, **SMALL)
        for number in range(1, 21):
            agent.learn(str(number), *data[str(number)][:2], temporary=number % 3 == 0)
            merged, before, after = "", [np.nan] * len(SEEDS), [np.nan] * len(SEEDS)
            if number > 3 and number % 3 == 2:
                merged = str(number - 2)
                before = percent(agent, merged, data)
                agent.keep(merged)
                after = percent(agent, merged, data)
            known = [percent(agent, task, data) for task, status in agent.tasks.items() if status == "R"]
            for seed, *values in zip(SEEDS, np.mean(known, 0), before, after):
                mean, then, now = ("" if np.isnan(v) else f"{v:.2f}" for v in values)
                yield method, number, seed, mean, merged, then, now


def by_angle() -> Iterator[tuple[int, dict[str, Data]]]:
    """Two tasks of MNIST, the second one rotated by an angle."""
    digits = load("mnist")
    straight = small(digits.train, digits.test)
    for angle in (0, 15, 30, 45, 60, 75, 90):
        yield angle, {"1": straight, "2": small(rotated(digits.train, angle), rotated(digits.test, angle))}


def relatedness() -> Iterable[Row]:
    """1R 2T 2R, the second task rotated by an angle."""
    yield "method", "angle", "seed", "task 1", "task 2 before its merge", "task 2 after"
    for angle, data in by_angle():
        for method in METHODS:
            agent = clpu.Agent(method, seeds=SEEDS, **SMALL)
            agent.learn("1", *data["1"][:2])
            agent.learn("2", *data["2"][:2], temporary=True)
            before = percent(agent, "2", data)
            agent.keep("2")
            for seed, *values in zip(SEEDS, percent(agent, "1", data), before, percent(agent, "2", data)):
                yield method, angle, seed, *(f"{v:.2f}" for v in values)


def audited() -> Iterable[Row]:
    """What an audit finds of DER++ after 1R 2T 2F: 16 agents per group, 600 images, 5 passes."""
    yield "angle", "attack", "chance", "effect", "low", "high", "adjusted p", "found"
    for angle, data in by_angle():
        few = {name: (x[:600], y[:600], tx[:300], ty[:300]) for name, (x, y, tx, ty) in data.items()}
        result = audit("der++", few, "1R 2T 2F", runs=16, pairs=1, epochs=5, lr=0.05, hidden=(50,))
        for attack in result.findings.attacks:
            effect = attack.effect
            values = (effect.chance, effect.value, effect.low, effect.high, attack.adjusted)
            yield angle, attack.name, *(f"{v:.4f}" for v in values), int(attack.found)


class Turned:
    """A split of a data set with other images."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


def rotated(split: Any, angle: float) -> Turned:
    order, outside = _rotation(*split.x.shape[1:], angle)
    x = np.take(split.x.reshape(len(split.y), -1), order, axis=1)
    x[:, outside] = 0
    return Turned(x.reshape(split.x.shape), split.y)


# What is drawn

WIDTH, HEIGHT = 760, 300
LABELS = {"clpu-der++": "CLPU-DER++", "clpu-live": "CLPU-Live"}
#: Mean and standard deviation by x, for each line.
Lines = Mapping[str, Mapping[float, tuple[float, float]]]


def read(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def lines(rows: Iterable[dict[str, str]], line: str, x: str, y: Callable[[dict[str, str]], float]) -> Lines:
    """Mean and standard deviation over seeds."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        found.setdefault(LABELS.get(row[line], row[line]), {}).setdefault(float(row[x]), []).append(y(row))
    return {
        name: {at: (fmean(v), stdev(v) if len(v) > 1 else 0.0) for at, v in points.items()}
        for name, points in found.items()
    }


def loss(row: dict[str, str]) -> float:
    """How many points a task lost in its merge."""
    names = {"before": ("task 2 before its merge", "before its merge"), "after": ("task 2 after", "after")}
    before, after = (next(float(row[n]) for n in names[k] if n in row) for k in ("before", "after"))
    return before - after


def panel(canvas: Canvas, left: float, title: str, across: str, data: Lines, kind: str = "linear") -> None:
    """One drawing of lines with bands of a standard deviation, its legend on top."""
    right, top, bottom = left + 300, 74, HEIGHT - 44
    xs = sorted({x for points in data.values() for x in points})
    ends = [m + sign * s for points in data.values() for m, s in points.values() for sign in (-1, 1)]
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low)
    x = Scale(xs[0], xs[-1], left + 8, right, kind)
    y = Scale(0 if 0 <= low < high / 2 else low - room, high + room, bottom, top)
    canvas.text(left, 26, title, "title")
    for tick in y.ticks(5):
        canvas.line(left, y(tick), right, y(tick), "grid")
        canvas.text(left - 6, y(tick) + 4, f"{tick:g}", "tick", "end")
    for tick in xs if len(xs) < 9 else x.ticks(6):
        canvas.text(x(tick), bottom + 16, f"{tick:g}", "tick", "middle")
    canvas.text((left + right) / 2, HEIGHT - 8, across, "axis-name", "middle")
    key = left
    for i, (name, points) in enumerate(data.items()):
        colour = f"task{i}"
        at = sorted(points)
        upper, lower = ([(x(t), y(points[t][0] + sign * points[t][1])) for t in at] for sign in (1, -1))
        canvas.path([*upper, *reversed(lower)], f"band {colour}", closed=True)
        canvas.path([(x(t), y(points[t][0])) for t in at], f"curve {colour}")
        for t in at:
            tip = f"{name}, {t:g}: {points[t][0]:.2f} ± {points[t][1]:.2f}"
            canvas.circle(x(t), y(points[t][0]), 2.6, f"dot {colour}", tip)
        canvas.line(key, 48, key + 18, 48, f"curve {colour}")
        canvas.text(key + 23, 52, name, "axis-name")
        key += 44 + 7.2 * len(name)


def drawing(label: str, *panels: tuple[str, str, Lines, str]) -> str:
    """Panels side by side: title, name of the x axis, lines, and the kind of the x axis."""
    canvas = Canvas(WIDTH, HEIGHT, label)
    canvas.rect(0, 0, WIDTH, HEIGHT, "ground")
    for i, (title, across, data, kind) in enumerate(panels):
        panel(canvas, 56 + i * 378, title, across, data, kind)
    size = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
    return str(canvas).replace("<svg ", f"<svg {size} ", 1).replace(">", f">{style()}\n", 1) + "\n"


def drawings() -> Iterator[tuple[str, str]]:
    """The figures by name, from the CSV files."""
    rows = read("memory")
    across = "examples in the memory of each task"
    yield (
        "live-memory",
        drawing(
            "Loss of the merge and accuracy against the size of the memory",
            ("Points that task 2 loses in a merge", across, lines(rows, "method", "memory", loss), "log"),
            (
                "Accuracy after 1R 2T 4R 2R, %",
                across,
                lines(rows, "method", "memory", lambda row: float(row["mean of tasks 1, 2, 4"])),
                "log",
            ),
        ),
    )
    rows = read("tasks")
    merged = [row for row in rows if row["merged task"]]
    yield (
        "live-tasks",
        drawing(
            "Loss of the merge and accuracy against the number of tasks",
            (
                "Points that a task loses in a merge",
                "tasks learned so far",
                lines(merged, "method", "tasks", loss),
                "linear",
            ),
            (
                "Accuracy on remembered tasks, %",
                "tasks learned so far",
                lines(rows, "method", "tasks", lambda row: float(row["mean of remembered tasks"])),
                "linear",
            ),
        ),
    )
    rows, across = read("relatedness"), "degrees between the two tasks"
    both = lines(rows, "method", "angle", lambda row: (float(row["task 1"]) + float(row["task 2 after"])) / 2)
    yield (
        "live-relatedness",
        drawing(
            "Loss of the merge and accuracy against the angle between two tasks",
            ("Points that task 2 loses in a merge", across, lines(rows, "method", "angle", loss), "linear"),
            ("Accuracy after 1R 2T 2R, %", across, both, "linear"),
        ),
    )
    rows = read("audit")

    def effects(*attacks: str) -> Lines:
        chosen = [row for row in rows if row["attack"] in attacks]
        return lines(chosen, "attack", "angle", lambda row: float(row["effect"]))

    yield (
        "live-audit",
        drawing(
            "What an audit finds of DER++ against the angle between two tasks",
            ("Distance to agents that never learned", across, effects("outputs", "features", "side effects"), "linear"),
            ("AUC of attacks (chance: 0.5)", across, effects("relearning", "membership", "threshold"), "linear"),
        ),
    )


MEASURED: dict[str, Callable[[], Iterable[Row]]] = {
    "ablation": ablation,
    "memory": memory,
    "tasks": tasks_,
    "relatedness": relatedness,
    "audit": audited,
}


def main(what: str) -> None:
    if what == "draw":
        for name, text in drawings():
            (FIGURES / f"{name}.svg").write_text(text, encoding="utf-8")
        return
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{what}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in MEASURED[what]():
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
