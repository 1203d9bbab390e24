"""Start-up: `clpu --help`, and what `import clpu` adds to importing torch.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS = 5


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    sides = {
        "help": "import sys; sys.argv = ['clpu', '--help']\nfrom clpu.cli import main\nmain()",
        "torch": "import torch",
        "clpu and torch": "import torch, clpu; clpu.Agent",
    }
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, code in sides.items():
            best[name] = min(best[name], seconds(code))
    added = best["clpu and torch"] - best["torch"]
    print(f"clpu --help: {best['help']:.2f} s (under 0.5 is wanted)")
    print(f"import torch: {best['torch']:.2f} s; with clpu.Agent: {best['clpu and torch']:.2f} s")
    print(f"added {added:.2f} s (under 0.2 is wanted), ratio {best['clpu and torch'] / best['torch']:.2f}")


if __name__ == "__main__":
    main()
