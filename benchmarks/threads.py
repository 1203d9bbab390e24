"""Threads: training in a fresh process without any environment variables, against `OMP_NUM_THREADS=1`.

784 inputs and ten classes, as in MNIST. Fresh processes take turns; the best of several rounds counts. The third
side shows what it would cost to let torch use every core.

    python benchmarks/threads.py
"""

from __future__ import annotations

import os
import subprocess
import sys

ROUNDS = 5
PROGRAM = """
import time
import numpy as np
import clpu
rng = np.random.default_rng(0)
x, y = rng.integers(0, 256, (3200, 784), dtype=np.uint8), np.arange(3200) % 10
agent = clpu.Agent(epochs=4, threads=THREADS)
start = time.perf_counter()
agent.learn("1", x, y)
print(time.perf_counter() - start)
"""


def seconds(threads: int, **variables: str) -> float:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    program = PROGRAM.replace("THREADS", str(threads))
    done = subprocess.run(
        [sys.executable, "-c", program], env={**kept, **variables}, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    cores = os.cpu_count() or 1
    one, plain, every = [], [], []
    for _ in range(ROUNDS):
        one.append(seconds(1, OMP_NUM_THREADS="1"))
        plain.append(seconds(1))
        every.append(seconds(cores))
    print(f"OMP_NUM_THREADS=1: {min(one):.2f} s for 400 steps")
    print(f"no variables: {min(plain):.2f} s, ratio {min(plain) / min(one):.2f} (target: at most 1.3)")
    print(f"threads={cores}: {min(every):.2f} s, ratio {min(every) / min(one):.2f}")


if __name__ == "__main__":
    main()
