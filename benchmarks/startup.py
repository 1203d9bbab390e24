"""Start-up: CPU seconds of each command that needs no torch, and what `import clpu` adds to importing torch.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import clpu.store

sys.path.append(str(Path(__file__).parents[1] / "tests" / "report"))
from fabricate import run_folder

ROUNDS = 5
#: CPU seconds that a command may take which computes nothing.
TARGET = 0.6
#: CPU seconds that `import clpu` may add to importing torch.
ADDED = 0.2
COMMAND = "import sys; sys.argv[0] = 'clpu'\nfrom clpu.cli import main\nmain()"


def seconds(code: str, *arguments: str) -> float:
    """The CPU time of a process, which other work on the machine hardly changes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def make_store(path: Path) -> None:
    """A store with one permanent task and temporary ones to forget."""
    x, y = np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32), np.arange(200) % 5
    with clpu.store.create(path, epochs=1) as agent:
        agent.learn("permanent", x, y)
        for number in range(2 * ROUNDS):
            agent.learn(f"{number}", x, y, temporary=True)


def measure_commands(folder: Path) -> dict[str, float]:
    store, run = str(folder / "store"), run_folder(folder / "run")
    make_store(folder / "store")
    best: dict[str, float] = {}
    for number in range(ROUNDS):
        receipt = str(folder / f"{number}.json")
        commands = {
            "--help": ["--help"],
            "data list": ["data", "list"],
            "report": ["report", str(run), "--quiet"],
            "status": ["status", store],
            "verify": ["verify", store],
            "forget": ["forget", store, f"{2 * number}"],
            "forget --receipt": ["forget", store, f"{2 * number + 1}", "--receipt", receipt],
            "verify-receipt": ["verify-receipt", receipt, "--store", store],
        }
        for name, arguments in commands.items():
            best[name] = min(best.get(name, float("inf")), seconds(COMMAND, *arguments))
    return best


def main() -> None:
    print(f"CPU seconds, the best of {ROUNDS}; the target is {TARGET} for each command")
    with tempfile.TemporaryDirectory() as folder:
        for name, best in measure_commands(Path(folder)).items():
            print(f"clpu {name}: {best:.2f}{'' if best <= TARGET else ' (too slow)'}")
    torch, both = (
        min(seconds(code) for _ in range(ROUNDS)) for code in ("import torch", "import torch, clpu; clpu.Agent")
    )
    print(f"import torch: {torch:.2f}; with clpu.Agent: {both:.2f}; added {both - torch:.2f} (target {ADDED})")


if __name__ == "__main__":
    main()
