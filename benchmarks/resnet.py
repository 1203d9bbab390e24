"""ResNet-18: time of `Agent.learn` for an image against plain eager loops; with augmentation, and in bfloat16.

python benchmarks/resnet.py [WIDTH]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import clpu
from clpu.networks.resnet import ResNet18

# Few images and CPU time: on a shared machine the quiet moments are short.
IMAGES, BATCH, ROUNDS = 96, 32, 8


def plain_loop(width: int, x: torch.Tensor, y: torch.Tensor, channels_last: bool) -> Callable[[], float]:
    body, head = ResNet18(3, width), nn.Linear(8 * width, 10)
    body.channels_last = channels_last  # type: ignore[misc]
    if channels_last:
        body.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01, weight_decay=5e-4)
    floats = x.float() / 255

    def run() -> float:
        start = time.process_time()
        for index in torch.randperm(IMAGES).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(head(body(floats[index])), y[index]).backward()
            optimiser.step()
        return (time.process_time() - start) / IMAGES

    return run


def library(width: int, x: torch.Tensor, y: torch.Tensor, **settings: Any) -> Callable[[], float]:
    def run() -> float:
        times: list[float] = []
        agent = clpu.Agent("seq", "resnet18", width=width, epochs=1, batch_size=BATCH, **settings)
        agent.progress = lambda progress: times.append(time.process_time())
        agent.learn("1", x, y)
        return (times[-1] - times[0]) / (len(times) - 1) / BATCH  # from the first step to the last

    return run


def main(width: int) -> None:
    torch.set_num_threads(1)
    x, y = torch.randint(0, 256, (IMAGES, 3, 32, 32)).to(torch.uint8), torch.arange(IMAGES) % 10
    sides = {
        "plain loop": plain_loop(width, x, y, channels_last=False),
        "plain loop, channels last": plain_loop(width, x, y, channels_last=True),
        "ours": library(width, x, y),
        "ours, augmented": library(width, x, y, augment="crop-flip"),
        "ours, mixed_precision=true": library(width, x, y, mixed_precision=True),
    }
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, side in sides.items():
            best[name] = min(best[name], side())
    print(f"ResNet-18 of width {width}, batch {BATCH}, one thread, best of {ROUNDS}")
    auto = clpu.Agent("seq", "resnet18", mixed_precision="auto").settings["mixed_precision"]
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, mixed_precision=auto means {auto}")
    for name, took in best.items():
        print(f"{name:26} {1e3 * took:6.2f} ms an image")
    print(f"ratio {best['plain loop'] / best['ours']:.2f} (at least 1 is wanted)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
