"""Checks that every method must pass, yours too.

>>> from clpu.testing import checks_for
>>> from clpu.methods import METHODS
>>> for check in checks_for(METHODS["seq"]):
...     check(METHODS["seq"])

A method's trait `forgets` decides which checks apply. Each check trains tiny agents on made-up data, takes a
fraction of a second, and raises `AssertionError` with the reason if the method fails it. The MLP is the default;
`checks_for(method, "resnet18")` and `checks_for(method, make_module, shape=(16,))` check it on other networks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from clpu.methods import Method
from clpu.testing import behaviour, forgetting, records, states
from clpu.testing.processes import in_fresh_process
from clpu.testing.setups import FORGETFUL, RESNET, TINY, Check, Setup, continue_stream, make_task, run_stream, tiny

__all__ = [
    "FORGETFUL",
    "TINY",
    "Check",
    "Setup",
    "checks_for",
    "continue_stream",
    "in_fresh_process",
    "make_task",
    "run_stream",
    "tiny",
]


def checks_for(
    method: type[Method], network: str | Callable[[], nn.Module] | None = None, shape: tuple[int, ...] = ()
) -> Iterator[Check]:
    """The checks that a method must pass, on a network by name or on the module that a function makes.

    `shape` is that of one input, of 12 numbers or more; (16,) by default, and (1, 8, 8) for the ResNet.
    """
    on = RESNET if network == "resnet18" else Setup(method.default_network if network is None else network)
    on = replace(on, shape=shape or on.shape)
    tasks = forgetting.EXACT if method.forgets_exactly() else forgetting.INEXACT
    single = records.CHECKS if method.forgets == "records" else (records.single_records_are_refused,)
    for check in (*behaviour.CHECKS, *states.CHECKS, *tasks, *single):
        yield functools.wraps(check)(functools.partial(check, on=on))
