"""Continual learning that can forget privately.

>>> import clpu
>>> clpu.Stream("1R 2T 3T 4R 2R 3F 5T 5F").counterfactual()
Stream('1R 2T 4R 2R')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clpu.errors import (
    AlreadyLearned,
    BadData,
    BadKeys,
    BadNetwork,
    BadReceipt,
    BadRequest,
    BadRun,
    BadSetting,
    BadState,
    BadStore,
    CannotForget,
    Diverged,
    Error,
    MissingPackage,
    NothingHeld,
    StoreFailed,
    StoreLocked,
    UnknownTask,
    WorkerFailed,
)
from clpu.outcome import Change, Outcome
from clpu.requests import Instruction, Request, Scope, Stream

if TYPE_CHECKING:
    from clpu.agent import Agent, Progress
    from clpu.methods import METHODS, Method, register
    from clpu.networks.blueprint import register_network
    from clpu.store import open as open
    from clpu.workers import Workers

__version__ = "0.1.0"

# What needs torch is imported when it is first asked for, so that `clpu --help` stays quick.
_LATER = {
    "Agent": "agent",
    "Progress": "agent",
    "METHODS": "methods",
    "Method": "methods",
    "register": "methods",
    "register_network": "networks.blueprint",
    "Workers": "workers",
}

__all__ = [
    "METHODS",
    "Agent",
    "AlreadyLearned",
    "BadData",
    "BadKeys",
    "BadNetwork",
    "BadReceipt",
    "BadRequest",
    "BadRun",
    "BadSetting",
    "BadState",
    "BadStore",
    "CannotForget",
    "Change",
    "Diverged",
    "Error",
    "Instruction",
    "Method",
    "MissingPackage",
    "NothingHeld",
    "Outcome",
    "Progress",
    "Request",
    "Scope",
    "StoreFailed",
    "StoreLocked",
    "Stream",
    "UnknownTask",
    "WorkerFailed",
    "Workers",
    "register",
    "register_network",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("audit", "data", "store"):
        return import_module(f"clpu.{name}")
    if name == "open":
        return import_module("clpu.store").open
    if name in _LATER:
        return getattr(import_module(f"clpu.{_LATER[name]}"), name)
    raise AttributeError(f"module 'clpu' has no attribute {name!r}")
