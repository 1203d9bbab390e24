"""ResNet-18: images a second of `Agent.learn` against a plain eager loop, with and without augmentation.

python benchmarks/resnet.py [WIDTH]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import clpu
from clpu.networks.resnet import ResNet18

IMAGES, BATCH, ROUNDS = 320, 32, 5


def plain_loop(width: int, x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    body, head = ResNet18(3, width), nn.Linear(8 * width, 10)
    body.channels_last = False  # as PyTorch does it unless told otherwise
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01, weight_decay=5e-4)
    floats = x.float() / 255

    def run() -> float:
        start = time.perf_counter()
        for index in torch.randperm(IMAGES).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(head(body(floats[index])), y[index]).backward()
            optimiser.step()
        return (time.perf_counter() - start) / IMAGES

    return run


def library(width: int, x: torch.Tensor, y: torch.Tensor, augment: str) -> Callable[[], float]:
    def run() -> float:
        agent = clpu.Agent("seq", "resnet18", width=width, epochs=1, batch_size=BATCH, augment=augment)
        start = time.perf_counter()
        agent.learn("1", x, y)
        return (time.perf_counter() - start) / IMAGES

    return run


def main(width: int) -> None:
    torch.set_num_threads(1)
    x, y = torch.randint(0, 256, (IMAGES, 3, 32, 32)).to(torch.uint8), torch.arange(IMAGES) % 10
    sides = {
        "plain loop": plain_loop(width, x, y),
        "ours": library(width, x, y, "none"),
        "ours, augmented": library(width, x, y, "crop-flip"),
    }
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, side in sides.items():
            best[name] = min(best[name], side())
    print(f"ResNet-18 of width {width}, batch {BATCH}, one thread, best of {ROUNDS}")
    for name, took in best.items():
        print(f"{name:16} {1e3 * took:6.2f} ms an image")
    print(f"ratio {best['plain loop'] / best['ours']:.2f} (at least 1 is wanted)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
