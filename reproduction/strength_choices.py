"""The strength of EWC's and LSF's penalty at the profile `medium`, chosen on held-out training images.

The last 2,000 of each task's 10,000 *training* images are held out; test images are not looked at. Requests are
1R 2R 4R, so that two penalties add up, and all candidates share the first request, which has none.

    python reproduction/strength_choices.py split-cifar10 ewc 500 50 5

appends a row per strength and seed to reproduction/strength-choices.csv: benchmark, profile, method, strength, seed,
accuracy on tasks 1, 2 and 4 in the end, in percent. Rows that are there already are not computed again. A candidate
whose training diverges has empty accuracies. About half an hour per strength for EWC on one core.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import clpu
from clpu.data import tasks
from clpu.errors import Diverged
from clpu.runs.plan import known_settings
from clpu.runs.profiles import Profile, profile, with_overrides

OUT = Path(__file__).with_name("strength-choices.csv")
HEAD = ["benchmark", "profile", "method", "strength", "seed", "task 1", "task 2", "task 4"]
HELD_OUT = 2_000


def split(benchmark: str, size: int | None) -> tuple[dict[str, tuple[Tensor, ...]], dict[str, Any]]:
    """By task the training images that are used and those that are held out, and how pixels are scaled."""
    data, pixels = {}, {}
    for task in tasks(benchmark):
        x, y = torch.from_numpy(task.train.x.copy()), torch.from_numpy(task.train.y.copy())
        used = slice(0, min(len(x) - HELD_OUT, size or len(x)))
        data[task.name] = x[used], y[used], x[-HELD_OUT:], y[-HELD_OUT:]
        pixels = {"mean": task.mean, "std": task.std}
    return data, pixels


def known() -> set[tuple[str, ...]]:
    """The rows that are there: benchmark, profile, method, strength, seed."""
    if not OUT.is_file():
        return set()
    with OUT.open(encoding="utf-8", newline="") as file:
        return {tuple(row[:5]) for row in csv.reader(file)}


def note(row: list[str]) -> None:
    new = not OUT.is_file()
    with OUT.open("a", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows([HEAD, row] if new else [row])
    print(",".join(row), flush=True)


def try_strengths(benchmark: str, sized: Profile, name: str, method: str, seed: int, strengths: list[float]) -> None:
    """Append the rows of one method and seed."""
    data, pixels = split(benchmark, sized.train)
    rows = {strength: [benchmark, name, method, f"{strength:g}", str(seed)] for strength in strengths}
    left = {strength: row for strength, row in rows.items() if tuple(row) not in known()}
    if not left:
        return
    options = pixels | sized.for_method(method, known_settings(method, sized.network))
    begun = clpu.Agent(method, sized.network, seed=seed, **options)
    begun.learn("1", *data["1"][:2])  # the first task has no penalty
    for strength, row in left.items():
        agent = begun.copy()
        try:
            for task in ("2", "4"):
                agent.learn(task, *data[task][:2], strength=strength)
            found = [f"{100 * agent.accuracy(task, *data[task][2:]):.2f}" for task in ("1", "2", "4")]
        except Diverged:
            found = [""] * 3
        note([*row, *found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=["split-cifar10", "split-cifar100"])
    parser.add_argument("method", choices=["ewc", "lsf"])
    parser.add_argument("strengths", nargs="+", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="override a setting of the profile, to try this out")
    given = parser.parse_args()
    base = profile(given.benchmark, "medium")
    sized = with_overrides(base, given.set, {given.method: list(known_settings(given.method, base.network))})
    name = " ".join([sized.name, *sized.overrides])
    try_strengths(given.benchmark, sized, name, given.method, given.seed, given.strengths)


if __name__ == "__main__":
    main()
