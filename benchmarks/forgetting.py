"""Forgetting a temporary task in memory, with few and many tasks, small and large networks and memories.

python benchmarks/forgetting.py
"""

from __future__ import annotations

import time
from typing import Any

import torch

import clpu


def milliseconds(tasks: int, shape: tuple[int, ...], network: str, settings: dict[str, Any]) -> float:
    """The slowest of several forgets, one after another."""
    x, y = torch.randint(0, 256, (40, *shape)).to(torch.uint8), torch.arange(40) % 2
    agent = clpu.Agent("clpu-der++", network, epochs=1, batch_size=40, **settings)
    agent.learn("kept", x, y)
    for task in range(tasks):
        agent.learn(f"task {task}", x, y, temporary=True)
    slowest = 0.0
    for task in range(min(tasks, 5)):
        start = time.perf_counter()
        agent.forget(f"task {task}")
        slowest = max(slowest, time.perf_counter() - start)
    return 1e3 * slowest


def main() -> None:
    torch.set_num_threads(1)
    worst = 0.0
    for title, tasks, shape, network, settings in [
        ("MLP 784-100-100, 1 task", 1, (784,), "mlp", {}),
        ("MLP 784-100-100, 100 tasks", 100, (784,), "mlp", {}),
        ("MLP 784-4000-4000 (19 million parameters), 10 tasks", 10, (784,), "mlp", {"hidden": (4000, 4000)}),
        ("MLP, memory of 20,000 images, 10 tasks", 10, (784,), "mlp", {"memory": 20_000}),
        ("ResNet-18 of width 32 (2.8 million parameters), 5 tasks", 5, (3, 16, 16), "resnet18", {"width": 32}),
    ]:
        took = milliseconds(tasks, shape, network, settings)
        worst = max(worst, took)
        print(f"{title}: {took:.3f} ms")
    print(f"slowest {worst:.3f} ms (under 10 is wanted), ratio {worst / 10:.4f}")


if __name__ == "__main__":
    main()
