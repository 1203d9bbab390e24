"""Run a function in its own process, so that whatever it leaves in memory is gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from clpu import errors

#: Takes the messages of an isolated function.
Listener = Callable[..., None]


def run_isolated(function: Callable[[Listener], Any], listener: Listener = lambda *message: None) -> Any:
    """Call a function in a copy of this process that ends with it; returns what it returns, which must be JSON.

    The function gets one argument, `tell`: `tell(*message)` there calls `listener(*message)` here, with JSON values.
    A copy needs no imports, so it starts in milliseconds and can use classes that no other process could import. Where
    processes cannot be copied (Windows), the function runs in this one.

    >>> numbers = []
    >>> run_isolated(lambda tell: numbers.append(1) or "done"), numbers
    ('done', [])
    """
    if not hasattr(os, "fork"):
        return function(listener)
    _flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns that other threads may hold locks in the copy; what runs there needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reading)
        _in_copy(function, writing)
    os.close(writing)
    outcome: tuple[str, Any] = ("died", None)
    try:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                kind, value = json.loads(line)
                if kind == "told":
                    listener(*value)
                else:
                    outcome = kind, value
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    kind, value = outcome
    if kind == "died":
        by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        raise errors.BadRun(f"the process ended with {by}{'; was there enough memory?' if by == 'SIGKILL' else ''}")
    if kind == "failed":
        name, message = value
        raise getattr(errors, name, errors.BadRun)(message)
    return value


def _in_copy(function: Callable[[Listener], Any], writing: int) -> NoReturn:
    """Run the function in the copy, report how it went, and end without the clean-up of the original."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the original decides what an interrupt means
        with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as pipe:

            def send(kind: str, value: Any) -> None:
                line = json.dumps([kind, value]) + "\n"
                try:
                    pipe.write(line)
                except BrokenPipeError:  # the original was killed
                    os._exit(1)

            def work() -> None:
                try:
                    send("returned", function(lambda *message: send("told", message)))
                except errors.Error as error:
                    send("failed", [type(error).__name__, str(error)])
                except BaseException:
                    send("failed", ["BadRun", traceback.format_exc(limit=-3)])

            # In a new thread, because OpenMP waits for ever for threads of the original that the first one had.
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        _flush()
    finally:
        os._exit(0)


def _flush() -> None:
    """Write out what was printed, so that it appears once and not in both processes."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
