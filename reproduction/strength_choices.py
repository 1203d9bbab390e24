"""The strength of EWC's and LSF's penalty at the profile `medium`, chosen on held-out training images.

The last 2,000 of each task's 10,000 *training* images are held out; test images are not used. Requests are 1R 2R 4R,
so that two penalties add up; all candidates share the first request, which has none. The strength with the highest
mean accuracy over tasks and seeds wins, and becomes a preset ("cifar10 medium") in clpu/methods/ewc.py.

    python reproduction/strength_choices.py split-cifar10 ewc 500 50 10 5 2 0.5 --seeds 1
    python reproduction/strength_choices.py split-cifar10 lsf 500 50 5 --seeds 1

append a row per strength and seed to reproduction/strength-choices.csv: benchmark, profile, method, strength, seed,
accuracy on tasks 1, 2 and 4 after the last request, in percent, and the machine. Existing rows are skipped. A candidate
whose training diverges has empty accuracies. On one core of a Zen 5, a strength and seed takes six minutes for EWC and
twelve for LSF.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import clpu
from clpu import machine
from clpu.data import tasks
from clpu.errors import Diverged
from clpu.runs.plan import known_settings
from clpu.runs.profiles import Profile, profile, with_overrides

OUT = Path(__file__).with_name("strength-choices.csv")
HEAD = ["benchmark", "profile", "method", "strength", "seed", "task 1", "task 2", "task 4", "machine"]
HELD_OUT = 2_000


def split(benchmark: str, size: int | None) -> tuple[dict[str, tuple[Tensor, ...]], dict[str, Any]]:
    """Return each task's training and held-out images with their labels, and the pixel scaling."""
    data, pixels = {}, {}
    for task in tasks(benchmark):
        x, y = torch.from_numpy(task.train.x.copy()), torch.from_numpy(task.train.y.copy())
        used = min(len(x) - HELD_OUT, size or len(x))
        data[task.name] = x[:used], y[:used], x[-HELD_OUT:], y[-HELD_OUT:]
        pixels = {"mean": task.mean, "std": task.std}
    return data, pixels


def existing_rows() -> set[tuple[str, ...]]:
    """The rows in the file: benchmark, profile, method, strength, seed."""
    if not OUT.is_file():
        return set()
    with OUT.open(encoding="utf-8", newline="") as file:
        return {tuple(row[:5]) for row in csv.reader(file)}


def append_row(row: list[str]) -> None:
    new = not OUT.is_file()
    with OUT.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, row] if new else [row])
    print(",".join(row), flush=True)


def try_strengths(benchmark: str, sized: Profile, method: str, seed: int, strengths: list[float]) -> None:
    """Append the rows of one method and seed."""
    name = " ".join([sized.name, *sized.overrides])
    rows = {strength: [benchmark, name, method, f"{strength:g}", str(seed)] for strength in strengths}
    left = {strength: row for strength, row in rows.items() if tuple(row) not in existing_rows()}
    if not left:
        return
    data, pixels = split(benchmark, sized.train)
    options = pixels | sized.for_method(method, known_settings(method, sized.network))
    after_first_task = clpu.Agent(method, sized.network, seed=seed, **options)
    after_first_task.learn("1", *data["1"][:2])
    here = machine.here("cpu", 1).key
    for strength, row in left.items():
        agent = after_first_task.copy()
        try:
            for task in ("2", "4"):
                agent.learn(task, *data[task][:2], strength=strength)
            found = [f"{100 * agent.accuracy(task, *data[task][2:]):.2f}" for task in ("1", "2", "4")]
        except Diverged:
            found = [""] * 3
        append_row([*row, *found, here])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=["split-cifar10", "split-cifar100"])
    parser.add_argument("method", choices=["ewc", "lsf"])
    parser.add_argument("strengths", nargs="+", type=float)
    parser.add_argument("--seeds", type=int, default=2, help="seeds per strength (default: 2)")
    parser.add_argument("--set", action="append", default=[], help="override a profile setting, for a trial run")
    given = parser.parse_args(arguments)
    base = profile(given.benchmark, "medium")
    sized = with_overrides(base, given.set, {given.method: list(known_settings(given.method, base.network))})
    for seed in range(given.seeds):
        try_strengths(given.benchmark, sized, given.method, seed, given.strengths)


if __name__ == "__main__":
    main(sys.argv[1:])
