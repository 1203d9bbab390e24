"""How large steps may be for CLPU-Live's squared error: chosen on held-out training images of the digits.

    python reproduction/live_steps.py

Requests 1R 2T 4R 2R; three quarters of the training images are used, the rest are held out; four seeds. Prints the mean
accuracy on tasks 1, 2 and 4 for CLPU-DER++ and for CLPU-Live with weights min(1, classes / (STEEPEST·lr)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import clpu
from clpu.data import load, tasks
from clpu.methods import clpu_live

SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rotated", {"epochs": 10, "lr": 0.1}),
    ("rotated", {}),
    ("split", {"epochs": 20, "lr": 0.1}),
    ("split", {}),
    ("split, as floats", {}),
)


def data(kind: str) -> list[tuple[Any, ...]]:
    if kind == "rotated":
        chosen = [task.train for task in tasks("rot-digits") if task.name in ("1", "2", "4")]
        return [(t.x[:1100], t.y[:1100], t.x[1100:], t.y[1100:]) for t in chosen]
    digits, made = load("digits").train, []
    for classes in ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9]):
        rows = np.isin(digits.y, classes)
        x, y = digits.x[rows].astype(np.float32 if "float" in kind else np.uint8), digits.y[rows]
        made.append((x[:330], y[:330], x[330:], y[330:]))
    return made


def main() -> None:
    for kind, settings in SETTINGS:
        one, two, four = data(kind)
        shown = []
        for steepest in (None, 0, 100, 200, 400, 800):
            clpu_live.STEEPEST = steepest or 1e-9  # type: ignore[assignment]
            method = "clpu-der++" if steepest is None else "clpu-live"
            agent = clpu.Agent(method, seeds=range(4), **settings)
            agent.learn("1", *one[:2])
            agent.learn("2", *two[:2], temporary=True)
            agent.learn("4", *four[:2])
            agent.keep("2")
            right = [agent.accuracy(task, *held[2:]).mean() for task, held in zip("124", (one, two, four))]
            shown.append(f"{steepest if steepest is not None else method}: {100 * np.mean(right):.2f}")
        print(kind, settings, ", ".join(shown), flush=True)


if __name__ == "__main__":
    main()
