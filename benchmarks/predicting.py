"""Predicting: one batched call of `Agent.predict` against the bare network's forward pass and softmax.

python benchmarks/predicting.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

import clpu
from clpu.networks.resnet import ResNet18

ROUNDS = 15


def seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def bare(body: nn.Module, head: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def forward() -> object:
        with torch.inference_mode():
            return torch.softmax(head(body(x)), -1)

    return forward


def main() -> None:
    torch.set_num_threads(1)
    worst = 0.0
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    images = torch.rand(1000, 3, 32, 32)
    cases = [
        ("MLP 784-100-100, 1,000 inputs", "mlp", {}, mlp, nn.Linear(100, 10), torch.rand(1000, 784), 20),
        (
            "ResNet-18 of width 8, 200 images",
            "resnet18",
            {"width": 8},
            ResNet18(3, 8).eval(),
            nn.Linear(64, 10),
            images[:200],
            1,
        ),
    ]
    for title, network, settings, body, head, x, times in cases:
        agent = clpu.Agent("clpu-der++", network, epochs=1, **settings)  # type: ignore[arg-type]
        agent.learn("1", x[:40], torch.arange(40) % 10)
        sides = {"bare": bare(body, head, x), "ours": lambda agent=agent, x=x: agent.predict("1", x)}
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(ROUNDS):
            for name, call in sides.items():
                best[name] = min(best[name], seconds(call, times))
        ratio = best["ours"] / best["bare"]
        worst = max(worst, ratio)
        print(f"{title}: bare {1e3 * best['bare']:.2f} ms, predict {1e3 * best['ours']:.2f} ms, ratio {ratio:.2f}")
    print(f"ratio {worst:.2f} (at most 1.2 is wanted)")


if __name__ == "__main__":
    main()
