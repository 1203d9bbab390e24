"""The choices of CLPU-Live, made on held-out training images.

The last 10,000 (MNIST) or 2,000 (CIFAR) of each task's *training* images are held out; test images are not looked at.
Requests are 1R 2T 4R 2R. Variants share the first two requests, which all handle alike.

    python reproduction/live_choices.py rot-mnist paper 0-2 clpu-der++ labels=0,blends=64 labels=1,blends=32

appends a row per variant and seed to reproduction/live-choices.csv: benchmark, profile, variant, seed, accuracy on
tasks 1, 2 and 4 in the end, of task 2 before its merge, and the seconds of CPU time of all seeds in 4R and 2R together.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import clpu
from clpu.data import tasks
from clpu.learning.memory import Memory
from clpu.methods.clpu_live import CLPULive, Lessons, LiveSettings
from clpu.networks.network import Network
from clpu.networks.parts import Part
from clpu.settings import parse_value, setting
from clpu.state import State

OUT = Path(__file__).with_name("live-choices.csv")


@dataclass(frozen=True)
class VariantSettings(LiveSettings):
    labels: int = setting(1, "whether examples of the memories are replayed with their labels", at_least=0)


class WithoutLabels(Lessons):
    """The teacher's answers only."""

    def draw(self) -> list[Part]:
        self.asked, self.replayed = self.blends.draw(), []
        return list(self.asked)


class Variant(CLPULive):
    """CLPU-Live with an option that it does not have."""

    name, label = "clpu-live-variant", ""
    Settings = VariantSettings

    def lessons(
        self, state: State, teacher: Network, memories: Mapping[str, Memory], task: str, purpose: str
    ) -> Lessons:
        made = super().lessons(state, teacher, memories, task, purpose)
        return made if self.settings.labels else WithoutLabels(made.teacher, made.blends, made.examples, made.lr)


def of_benchmark(benchmark: str, profile: str) -> tuple[dict[str, Any], dict[str, tuple[Tensor, ...]]]:
    """The agent's options, and by task the training images that are used and those that are held out."""
    options: dict[str, Any] = {"epochs": 10, "lr": 0.05 if profile == "small" else 0.01}
    data = {}
    for task in tasks(benchmark):
        x, y = torch.from_numpy(task.train.x.copy()), torch.from_numpy(task.train.y.copy())
        out = 10_000 if benchmark.endswith("mnist") else 2_000
        used = 6_000 if profile == "small" and benchmark.endswith("mnist") else len(x) - out
        data[task.name] = x[:used], y[:used], x[-out:], y[-out:]
        if benchmark.startswith("split-cifar"):
            options = {"network": "resnet18", "epochs": 1, "width": 8, "lr": 0.05, "augment": "crop-flip"}
            options |= {"mean": task.mean, "std": task.std}
    return options, data


def main(benchmark: str, profile: str, seeds: str, *variants: str) -> None:
    options, data = of_benchmark(benchmark, profile)
    first, _, last = seeds.partition("-")
    population = range(int(first), int(last or first) + 1)
    starts: dict[type, Any] = {}
    for variant in variants:
        method: type = clpu.METHODS.get(variant, Variant)
        pairs = () if variant in clpu.METHODS else (pair.split("=") for pair in variant.split(","))
        settings = {name: parse_value(text) for name, text in pairs}
        agent = clpu.Agent(method, seeds=population, **options, **settings)
        if method not in starts:
            agent.learn("1", *data["1"][:2])
            agent.learn("2", *data["2"][:2], temporary=True)
            starts[method] = agent.state(), 100 * agent.accuracy("2", *data["2"][2:])
        state, before = starts[method]
        agent = clpu.Agent(method, seeds=population, **options, **settings)
        agent._state = state
        began = time.process_time()
        agent.learn("4", *data["4"][:2])
        agent.keep("2")
        seconds = time.process_time() - began
        right = [100 * agent.accuracy(task, *data[task][2:]) for task in ("1", "2", "4")]
        with OUT.open("a", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            for seed, *found in zip(population, *right, before):
                rows.writerow([benchmark, profile, variant, seed, *(f"{v:.2f}" for v in found), round(seconds)])
        each = " ".join(f"{v.mean():.2f}" for v in [*right, before])
        print(f"{benchmark} {profile} {variant:30} {sum(right).mean() / 3:.2f} ({each}) {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
