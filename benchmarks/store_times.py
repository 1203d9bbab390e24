"""Measure how long a durable agent takes to open, print its status and forget, with 1 to 100 and with 10,000 tasks.

    python benchmarks/store_times.py [--folder PATH] [--repeat 9]

A store with N tasks has N/2 remembered and N/2 temporary ones (with 1: one temporary), a network of two hidden
layers of 100 units and 200 examples of 64 numbers a task. `forget` is measured on one further temporary task.
What the disk's flushes (fsync) take is measured apart, inside the same calls. Medians; the folder's disk counts,
so choose it with --folder. The stores of 1,000 and 10,000 temporary tasks hold tiny leaves that nothing was trained
for, and are opened without torch; their times are CPU seconds. Nothing but the standard output is left behind.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clpu.state import Leaf, State, Task
from clpu.store import create
from clpu.store import open as open_store
from clpu.store.files import Files
from clpu.store.forgetting import forget
from clpu.store.lifecycle import make_store
from clpu.store.output import describe
from clpu.store.store import Store


class Flushes:
    """Time spent in flushes below the store, and how many there were."""

    seconds = 0.0
    count = 0


@contextmanager
def watched() -> Iterator[Flushes]:
    flushes, original = Flushes(), Files.call

    def call(self: Files, operation: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if operation != "fsync":
            return original(self, operation, function, *args, **options)
        start = time.perf_counter()
        try:
            return original(self, operation, function, *args, **options)
        finally:
            flushes.seconds += time.perf_counter() - start
            flushes.count += 1

    Files.call = call  # type: ignore[method-assign]
    try:
        yield flushes
    finally:
        Files.call = original  # type: ignore[method-assign]


def build(path: Path, tasks: int, x: np.ndarray, y: np.ndarray) -> None:
    with create(path, epochs=1, batch_size=100) as agent:
        for number in range(tasks):
            agent.learn(f"task {number}", x, y, temporary=number >= tasks // 2)


def measure(path: Path, repeat: int, x: np.ndarray, y: np.ndarray) -> tuple[list[float], ...]:
    opening, status, forgetting, flushing, counts = [], [], [], [], []
    for _ in range(repeat):
        start = time.perf_counter()
        agent = open_store(path)
        opening.append(time.perf_counter() - start)
        start = time.perf_counter()
        describe(agent.state(), agent.path, agent.identity, {})
        status.append(time.perf_counter() - start)
        agent.learn("one more", x, y, temporary=True)
        with watched() as flushes:
            start = time.perf_counter()
            agent.forget("one more")
            forgetting.append(time.perf_counter() - start)
        flushing.append(flushes.seconds)
        counts.append(flushes.count)
        agent.close()
    return opening, status, forgetting, flushing, counts


def measure_many(path: Path, tasks: int, repeat: int) -> tuple[float, float, float]:
    """Seconds of CPU to open a store of this many temporary tasks, to forget one, and in all for that on the clock."""
    about = {"method": "none", "network": "none", "forgets": "tasks", "settings": {}, "seeds": [0]}
    facts = {"labels": [0, 1], "inputs": {"shape": [4], "integer": False}, "steps": 1}
    leaf = Leaf({"rows": torch.arange(8)})
    make_store(path, about)
    with Store(path, write=True) as store:
        store.load()
        store.commit(State(about, None, {f"task {number}": Task("T", facts, leaf) for number in range(tasks)}))
    opening, forgetting, clock = [], [], []
    for number in range(repeat):
        start = time.process_time()
        with Store(path, write=True) as store:
            store.load()
            opening.append(time.process_time() - start)
            start, wall = time.process_time(), time.perf_counter()
            forget(store, task=f"task {number}")
            forgetting.append(time.process_time() - start)
            clock.append(time.perf_counter() - wall)
    return statistics.median(opening), statistics.median(forgetting), statistics.median(clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the stores are made; the system's temporary folder")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(200, 64)).astype(np.float32), np.arange(200) % 5
    place = Path(tempfile.mkdtemp(prefix="clpu-store-times-", dir=options.folder))
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, one thread")
    print("| tasks | open | status | forget | of it in fsync | forget without fsync |")
    print("|---|---|---|---|---|---|")
    try:
        for tasks in (1, 10, 100):
            build(place / str(tasks), tasks, x, y)
            opening, status, forgetting, flushing, counts = measure(place / str(tasks), options.repeat, x, y)
            rest = [whole - part for whole, part in zip(forgetting, flushing)]
            cells = [statistics.median(times) * 1000 for times in (opening, status, forgetting, flushing, rest)]
            cells_text = [f"{cell:.1f} ms" for cell in cells]
            cells_text[3] += f" ({statistics.median(counts):.0f} calls)"
            print(f"| {tasks} | {' | '.join(cells_text)} |")
        print("\n| temporary tasks | open, CPU | forget, CPU | forget on the clock |")
        print("|---|---|---|---|")
        for tasks in (10, 1000, 10_000):
            opened, forgot, clock = measure_many(place / f"many {tasks}", tasks, options.repeat)
            print(f"| {tasks:,} | {opened * 1000:.0f} ms | {forgot * 1000:.1f} ms | {clock * 1000:.0f} ms |")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
