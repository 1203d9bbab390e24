"""Data sets, complete and verified, and the benchmarks built on them.

`load("cifar10")` has `.train.x .train.y .test.x .test.y`. `tasks("rot-mnist", tasks=5, seed=0)` is a list of tasks with
the same four arrays. `get("mnist")` downloads a data set into the cache. See docs/data.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clpu.data.catalog import BENCHMARKS, dataset_spec, names

if TYPE_CHECKING:
    from clpu.data.benchmarks import Task, tasks
    from clpu.data.fetch import FetchProgress, FetchResult, get
    from clpu.data.loading import Dataset, Split, load

__all__ = [
    "BENCHMARKS",
    "Dataset",
    "FetchProgress",
    "FetchResult",
    "Split",
    "Task",
    "dataset_spec",
    "get",
    "load",
    "names",
    "tasks",
]

_LAZY = {
    "Dataset": "loading",
    "Split": "loading",
    "load": "loading",
    "FetchProgress": "fetch",
    "FetchResult": "fetch",
    "get": "fetch",
    "Task": "benchmarks",
    "tasks": "benchmarks",
}


def __getattr__(name: str) -> Any:
    # NumPy is imported on first use, so that `clpu --help` and `clpu data list` start quickly.
    if name in _LAZY:
        return getattr(import_module(f"clpu.data.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
