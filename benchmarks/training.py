"""Training throughput: stacked replicas against a plain eager PyTorch loop, and against the core's GEMM peak.

The plain loop is what one would write first: one model, data gathered from a tensor by index, `loss.backward()`,
`torch.optim.SGD`. Ours is the library itself, `Agent.learn`, timed from its first step to its last. Both sides
take turns in one process with one thread; the best of several rounds counts.

    python benchmarks/training.py [--replicas N] [METHOD …]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clpu

# Many short rounds: on a shared machine the quiet moments are short.
BATCH, REHEARSED, STEPS, ROUNDS = 32, 32, 40, 40
RNG = np.random.default_rng(0)
DATA = {
    t: (torch.from_numpy(RNG.integers(0, 256, (STEPS * BATCH, 784), dtype=np.uint8)), torch.arange(STEPS * BATCH) % 10)
    for t in "12"
}
FLOATS = {t: x.float() / 255 for t, (x, _) in DATA.items()}


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 20))


def plain_loop(method: str) -> Callable[[], float]:
    """Seconds a step of the plain loop on the second task."""
    net = model()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, weight_decay=5e-4)
    x, y = FLOATS["2"], DATA["2"][1]
    memory_x, memory_y, memory_h = FLOATS["1"][:200], DATA["1"][1][:200], torch.randn(200, 10)
    parameters = list(net.parameters())
    fisher, anchor = [torch.rand_like(p) for p in parameters], [p.detach().clone() for p in parameters]
    teacher, codes = copy.deepcopy(net), torch.randn(20, 784)

    def distillation(x: Tensor) -> Tensor:
        with torch.no_grad():
            target = F.softmax(teacher(x)[:, :10] / 2, -1)
        return -(target * F.log_softmax(net(x)[:, :10] / 2, -1)).sum(-1).mean()

    def penalty() -> Tensor:
        return torch.stack([(f * (p - a) ** 2).sum() for f, a, p in zip(fisher, anchor, parameters)]).sum()

    def loss(index: Tensor) -> Tensor:
        some, label = x[index], y[index]
        if method == "lsf":
            share = torch.rand(len(some), 1)
            mixed = share * some + (1 - share) * codes[10 + label]
            total = F.cross_entropy(net(torch.cat([some, mixed]))[:, 10:], torch.cat([label, label]))
            total = total + 10 * F.cross_entropy(net(codes[:10])[:, :10], torch.arange(10))
            return total + distillation(some) + 100 * penalty()
        total = F.cross_entropy(net(some)[:, 10:], label)
        if method == "ewc":
            return total + 100 * penalty()
        if method == "lwf":
            return total + distillation(some)
        if method in ("er", "der++", "clpu-der++"):
            rows = torch.randperm(200)[:REHEARSED]
            out = net(memory_x[rows])[:, :10]
            total = total + F.cross_entropy(out, memory_y[rows])
            if method != "er":
                total = total + 0.5 * F.mse_loss(out, memory_h[rows])
        return total

    def run() -> float:
        order = torch.randperm(len(x))
        start = time.perf_counter()
        for step in range(STEPS):
            optimiser.zero_grad()
            loss(order[step * BATCH : (step + 1) * BATCH]).backward()
            optimiser.step()
        return (time.perf_counter() - start) / STEPS

    return run


def library(method: str, replicas: int) -> Callable[[], float]:
    """Seconds a step and model of `Agent.learn` on the second task, all replicas at once."""
    prepared = clpu.Agent(method, seeds=range(replicas), epochs=1)
    prepared.learn("1", *DATA["1"])

    def run() -> float:
        times: list[float] = []

        def note(progress: clpu.Progress) -> None:
            if progress.phase == "learn":
                times.append(time.perf_counter())

        agent = prepared.copy()
        agent.progress = note
        agent.learn("2", *DATA["2"])
        return (times[-1] - times[0]) / (len(times) - 1) / replicas

    return run


def peak() -> float:
    """Floating-point operations a second of a 512³ matrix product, on this one thread."""
    a, b = torch.rand(512, 512), torch.rand(512, 512)
    start = time.perf_counter()
    for _ in range(10):
        a @ b
    return 10 * 2 * 512**3 / (time.perf_counter() - start)


def work(method: str) -> float:
    """Floating-point operations of the GEMMs in one step of one model: forward, weight gradients, inner gradients."""
    rows = {"seq": 32, "ewc": 32, "lwf": 32, "lsf": 74}.get(method, BATCH + REHEARSED)
    heads = {"lwf": 64, "lsf": 106}.get(method, rows)
    return 2.0 * (rows * (784 * 100 * 2 + 100 * 100 * 3) + heads * 100 * 10 * 3)


def main(methods: list[str], replicas: int) -> None:
    torch.set_num_threads(1)
    floors: dict[str, Any] = {"ewc": (2, 0), "lwf": (2, 0), "lsf": (2, 0)}
    print(f"replicas: {replicas}, batch {BATCH}, {REHEARSED} rehearsed, MLP 784-100-100, one thread, best of {ROUNDS}")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    print(f"{'method':12} {'plain loop':>11} {'ours':>9} {'ratio':>6} {'wanted':>7} {'of GEMM peak':>13} {'wanted':>7}")
    ratio = 0.0
    for method in methods:
        sides = {"plain": plain_loop(method), "ours": library(method, replicas)}
        best = dict.fromkeys(sides, float("inf"))
        top = 0.0
        for _ in range(ROUNDS):
            for name, side in sides.items():
                best[name] = min(best[name], side())
            top = max(top, peak())
        ratio, share = best["plain"] / best["ours"], work(method) / best["ours"] / top
        wanted = floors.get(method, (3, 0.45)) if replicas > 1 else (2, 0)
        print(
            f"{method:12} {1e6 * best['plain']:8.0f} µs {1e6 * best['ours']:6.0f} µs {ratio:6.2f} {wanted[0]:7}"
            f" {100 * share:11.0f} % {100 * wanted[1]:5.0f} %",
            flush=True,
        )
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("methods", nargs="*", default=["seq", "er", "ewc", "lwf", "lsf", "clpu-der++", "der++"])
    options = parser.parse_args()
    main(options.methods, options.replicas)
