"""A durable agent: a folder that learns, survives, and truly forgets. See docs/durable-agent.md.

>>> import tempfile, numpy as np
>>> from clpu import store
>>> x = np.random.default_rng(0).normal(size=(40, 5)); y = x[:, 0] > 0
>>> with tempfile.TemporaryDirectory() as folder:
...     with store.create(f"{folder}/agent", hidden=(8,), epochs=1) as agent:
...         agent.learn("clinic", x, y, temporary=True)
...     with store.open(f"{folder}/agent") as agent:
...         agent.forget("clinic")
...         agent.tasks
{}
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clpu.store.durable import DurableAgent
    from clpu.store.integrity import Report

__all__ = ["create", "open", "verify"]


def open(path: str | os.PathLike[str], **options: Any) -> DurableAgent:
    """The agent that lives in a folder; it persists each request before it returns.

    `keys` is the path of the key file if that lives elsewhere. With `read_only` it takes no lock and handles no
    requests. `network` and `method` hand in code of your own again; `device` and `progress` are as for `Agent`.
    """
    from clpu.store.durable import open_store

    return open_store(path, **options)


def create(path: str | os.PathLike[str], *args: Any, **options: Any) -> DurableAgent:
    """Make a folder for a new agent and open it. Arguments are those of `Agent`, and `keys`: where the keys live."""
    from clpu.store.durable import create_store

    return create_store(path, *args, **options)


def verify(path: str | os.PathLike[str], keys: str | os.PathLike[str] | None = None) -> Report:
    """Check every file of a store and change nothing."""
    from clpu.store.integrity import verify_store

    return verify_store(path, keys)


def __getattr__(name: str) -> Any:
    if name == "DurableAgent":
        from clpu.store.durable import DurableAgent

        return DurableAgent
    if name == "Receipt":
        from clpu.store.receipt import Receipt

        return Receipt
    raise AttributeError(f"module 'clpu.store' has no attribute {name!r}")
