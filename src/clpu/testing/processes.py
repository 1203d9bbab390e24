"""A function's result in a fresh process, in which nothing that a method kept outside the state exists."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process in which nothing has happened yet but imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clpu.testing", "torch._dynamo"])  # torch.optim imports the latter when first used
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, function, arguments), daemon=True)
    try:
        with _hidden_main():
            process.start()
    except (pickle.PicklingError, AttributeError):  # something is defined in the script itself
        process.start()
    there.close()
    try:
        good, value = here.recv()
    except EOFError:
        raise AssertionError(
            "the other process ended without an answer; it must be able to import the method, so save it in a file"
        ) from None
    finally:
        process.join()
    if not good:
        raise AssertionError(f"in a fresh process: {value}")
    return value


@contextmanager
def _hidden_main() -> Iterator[None]:
    """New processes import the script that started them, and would run it again if it has no `if __name__ == …`."""
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _send(connection: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((True, function(*arguments)))
    except Exception as error:
        connection.send((False, f"{type(error).__name__}: {error}"))
