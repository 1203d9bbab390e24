"""Data sets, whole and verified, and the streams of tasks over them.

`load("cifar10")` has `.train.x .train.y .test.x .test.y`; `tasks("rot-mnist", tasks=5, seed=0)` is a list of
tasks with the same four arrays; `get("mnist")` makes a data set present. docs/data.md tells the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clpu.data.catalog import STREAMS, known, names

if TYPE_CHECKING:
    from clpu.data.fetch import Got, Step, get
    from clpu.data.loading import Dataset, Split, load
    from clpu.data.streams import Task, tasks

__all__ = ["STREAMS", "Dataset", "Got", "Split", "Step", "Task", "get", "known", "load", "names", "tasks"]

_LAZY = {
    "Dataset": "loading",
    "Split": "loading",
    "load": "loading",
    "Got": "fetch",
    "Step": "fetch",
    "get": "fetch",
    "Task": "streams",
    "tasks": "streams",
}


def __getattr__(name: str) -> Any:
    # NumPy is loaded with the first use, so that `clpu --help` and `clpu data list` answer at once.
    if name in _LAZY:
        return getattr(import_module(f"clpu.data.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
