"""A durable agent: a folder that learns, survives, and truly forgets. See docs/durable-agent.md.

>>> import tempfile, numpy as np
>>> from clpu import store
>>> x = np.random.default_rng(0).normal(size=(40, 5)); y = x[:, 0] > 0
>>> with tempfile.TemporaryDirectory() as folder:
...     with store.create(f"{folder}/agent", hidden=(8,), epochs=1) as agent:
...         outcome = agent.learn("clinic", x, y, temporary=True)
...     with store.open(f"{folder}/agent") as agent:
...         agent.forget("clinic")
...         agent.tasks
{}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clpu.store.durable import DurableAgent, create, open
    from clpu.store.folder import Access
    from clpu.store.integrity import Report, verify
    from clpu.store.protection import Unlock
    from clpu.store.receipt import Receipt

# Imported when first asked for, so that the command line's help needs neither torch nor cryptography.
_LATER = {
    "Access": "folder",
    "DurableAgent": "durable",
    "Receipt": "receipt",
    "Report": "integrity",
    "Unlock": "protection",
    "create": "durable",
    "open": "durable",
    "verify": "integrity",
}

__all__ = ["Access", "DurableAgent", "Receipt", "Report", "Unlock", "create", "open", "verify"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LATER:
        return getattr(import_module(f"clpu.store.{_LATER[name]}"), name)
    raise AttributeError(f"module 'clpu.store' has no attribute {name!r}")
