"""What the tests of the store share: small data, pictures of folders, and faults below the store."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clpu import METHODS, Agent, Request
from clpu.state import State
from clpu.store import open as open_store
from clpu.store.contents import unseal_task
from clpu.store.files import Files
from clpu.store.format import Manifest
from clpu.store.keys import Keys

SETTINGS: dict[str, Any] = {"hidden": (6,), "epochs": 1, "batch_size": 8, "memory": 6, "replay_batch_size": 4}


def settings(method: str) -> dict[str, Any]:
    """Those of the small settings that a method has."""
    names = {*METHODS[method].Settings.__dataclass_fields__, "hidden"}
    return {name: value for name, value in SETTINGS.items() if name in names}


def examples(task: str) -> tuple[np.ndarray, np.ndarray]:
    """A task's data: always the same for its name."""
    draws = np.random.default_rng(zlib.crc32(task.encode()))
    x = draws.normal(size=(16, 4)).astype(np.float32)
    return x, np.arange(16) % 2 + 3


def handle(agent: Agent, request: str) -> None:
    """Handle a request, with data if it needs them."""
    parsed = Request.parse(request)
    if parsed.task in agent.tasks:
        agent.handle(parsed)
    else:
        agent.handle(parsed, *(examples(parsed.task) if parsed.instruction.value != "F" else ()))


def follow(path: Path, requests: str, **options: Any) -> str:
    """Open a store, handle requests, close it; the digest at the end."""
    with open_store(path, **options) as agent:
        for request in requests.split():
            handle(agent, request)
        return agent.digest()


def digest_after(requests: str, method: str = "clpu-der++") -> str:
    """The digest of an agent in memory after the same requests."""
    if (requests, method) in _DIGESTS:
        return _DIGESTS[requests, method]
    agent = Agent(method, **settings(method))
    for request in requests.split():
        handle(agent, request)
    _DIGESTS[requests, method] = agent.digest()
    return _DIGESTS[requests, method]


_DIGESTS: dict[tuple[str, str], str] = {}


def clone(template: Path, path: Path) -> Path:
    """A copy of a store with all times."""
    shutil.copytree(template, path, copy_function=shutil.copy2)
    return path


def picture(folder: Path) -> dict[str, Any]:
    """All that can be compared of a folder: names, kinds, modes, sizes, links, times and bytes; of folders as well."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else None
        name = str(path.relative_to(folder))
        found[name] = (oct(about.st_mode), about.st_size, about.st_nlink, about.st_mtime_ns, content)
    return found


def picture_without_secrets(folder: Path, keys: Path | None = None) -> dict[str, Any]:
    """As `picture`, with the living temporary tasks' random names, keys, nonces and ciphertexts taken out.

    In their place stands what the ciphertexts hold, so that two pictures are equal only if that is equal too.
    """
    whole = picture(folder)
    manifest = Manifest.from_bytes((folder / "store.json").read_bytes())
    held = Keys.from_bytes((keys or folder / "keys.json").read_bytes())
    inside = []
    for entry in manifest.temporary:
        key = held.tasks[entry.id]
        sealed = (folder / entry.name).read_bytes()
        name, task = unseal_task(sealed, entry.id, key)
        mode, size, links, time, _ = whole.pop(f"temporary/{entry.id}")
        inside.append((State({}).with_task(name, task).to_bytes(), mode, size, links, time))
    whole["temporary tasks"] = sorted(inside)
    if manifest.temporary:
        text = json.loads((folder / "store.json").read_bytes())
        whole["store.json"] = (
            *whole["store.json"][:-1],
            {**text, "temporary": len(text["temporary"]), "checksum": None},
        )
        if keys is None:
            whole["keys.json"] = (*whole["keys.json"][:-1], held.signing, len(held.tasks))
    return whole


class Crash(BaseException):
    """The machine stops here."""


@dataclass
class Fault:
    """What goes wrong at one call: `happens` gets the call and does it, half of it, or raises."""

    happens: Callable[..., Any]
    at: int
    sticky: bool = False
    kind: str | None = None


class Injector:
    """Counts the calls below the store and lets one of them go wrong."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.calls: list[str] = []

    def call(self, operation: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.calls.append(operation)
        fault = self.fault
        number = len(self.calls) - 1
        if fault is not None and (
            number == fault.at or (fault.sticky and number > fault.at and fault.kind in (None, operation))
        ):
            return fault.happens(function, *args, **options)
        return function(*args, **options)


@contextmanager
def injected(fault: Fault | None = None) -> Iterator[Injector]:
    """Within this block every store's calls go through an injector."""
    injector = Injector(fault)
    original = Files.call
    Files.call = lambda self, *args, **options: injector.call(*args, **options)  # type: ignore[method-assign]
    try:
        yield injector
    finally:
        Files.call = original  # type: ignore[method-assign]


def failing(number: int) -> Callable[..., Any]:
    """A call that does nothing but fail with this errno."""

    def happens(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return happens


def short(function: Callable[..., Any], fd: int, data: Any) -> int:
    """A write that takes only half of what it was given."""
    return int(function(fd, data[: max(1, len(data) // 2)]))


def crashing(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    raise Crash
