"""What the tests of the store share: small data, pictures of folders, and faults below the store."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clpu import METHODS, Agent, Request
from clpu.settings import DEFAULT_METHOD
from clpu.state import Leaf, People, Spec, Task
from clpu.state.leaf import write_tensors
from clpu.store import create, plan
from clpu.store import open as open_store
from clpu.store.files import Files
from clpu.store.folder import Access, Folder
from clpu.store.lifecycle import adopt

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


def digest_after(requests: str, method: str = DEFAULT_METHOD) -> str:
    """The digest of an agent in memory after the same requests."""
    if (requests, method) in _DIGESTS:
        return _DIGESTS[requests, method]
    agent = Agent(method, **settings(method))
    for request in requests.split():
        handle(agent, request)
    _DIGESTS[requests, method] = agent.digest()
    return _DIGESTS[requests, method]


_DIGESTS: dict[tuple[str, str], str] = {}


#: Operations that change the disk.
CHANGING = frozenset({"write", "wipe", "rename", "unlink", "mkdir", "rmdir", "utime", "chmod"})
FIFTY = 50


def store_of_people(path: Path, number: int, keys: Path | None = None) -> Path:
    """A store with five tasks, each with one record of so many people."""
    with create(path, "ridge", "base:raw", keys=keys) as agent:
        for task in range(5):
            x = np.random.default_rng(task).normal(size=(number, 3))
            agent.learn(str(task), x, np.arange(number) % 2, people=[f"p{n}" for n in range(number)])
    return path


#: Requests to a store of people that change many leaves.
ABOUT_PEOPLE: dict[str, Callable[[Agent], Any]] = {
    "a person leaves five tasks": lambda agent: agent.forget(person="p3"),
    "a label goes": lambda agent: agent.forget("1", labels=[1]),
    "fifty people are learned": lambda agent: agent.learn(
        "new", np.eye(FIFTY)[:, :3], np.arange(FIFTY) % 2, people=[f"q{n}" for n in range(FIFTY)]
    ),
}


def synthetic(status: str, number: int, people: Mapping[People, int] | None = None) -> Task:
    """A task that no method learned, made without torch; its leaf follows from the number."""

    def leaf(number: int) -> Leaf:
        return Leaf.from_bytes(write_tensors({"rows": (Spec("I64", (2,)), number.to_bytes(8, "little") * 2)}))

    facts = {"labels": [0, 1], "inputs": {"shape": [4], "integer": False}, "steps": number}
    return Task(status, facts, leaf(number), {who: leaf(n) for who, n in (people or {}).items()})


def clone(template: Path, path: Path) -> Path:
    """A copy of a store with all times."""
    shutil.copytree(template, path, copy_function=shutil.copy2)
    return path


def clone_apart(template: Path, path: Path) -> tuple[Path, Path]:
    """A copy of a folder with a store and its keys, in which the keys belong to the copy."""
    clone(template, path)
    adopt(path / "store", Access(path / "keys"))
    return path / "store", path / "keys"


def picture(folder: Path) -> dict[str, Any]:
    """All that can be compared of a folder: names, kinds, modes, sizes, links, times and bytes; of folders as well.

    Of `head` all but the bytes, which are random.
    """
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else None
        name = str(path.relative_to(folder))
        content = None if name == "head" else content
        found[name] = (oct(about.st_mode), about.st_size, about.st_nlink, about.st_mtime_ns, content)
    return found


RANDOM = re.compile(r"(leaves|keys|.*/keys)(/[0-9a-f]{2}(/[0-9a-f]{32})?)?")


def picture_without_secrets(folder: Path, keys: Path | None = None) -> dict[str, Any]:
    """As `picture`, with random names, keys, nonces and ciphertexts of what can be forgotten taken out.

    In their place stands what the ciphertexts hold, so that two pictures are equal only if that is equal too.
    """
    whole = picture(folder) | ({} if keys is None else {f"apart/keys/{k}": v for k, v in picture(keys).items()})
    inside: list[Any] = []
    with Folder(folder, Access(keys)) as opened:
        opened.load()
        view = opened.view()
        for name in view.keys:
            path = f"leaves/{name[:2]}/{name}"
            sealed = (folder / path).read_bytes()
            mode, size, links, time, _ = whole[path]
            inside.append((opened.unsealed(path, name, sealed, view.keys), mode, size, links, time))
    random = {name for name in whole if (found := RANDOM.fullmatch(name)) and found[3]}
    inside += [(b"", *whole[name][:-1]) for name in random if not name.startswith("leaves")]
    shards = {name for name in whole if (found := RANDOM.fullmatch(name)) and found[2] and not found[3]}
    inside += sorted({(b"", whole[name][0], whole[name][3]) for name in shards})  # their size is chance on some disks
    for name in random | shards:
        del whole[name]
    for name in ("leaves", "keys", "apart/keys/."):  # how many folders of leaves there are is chance
        if name in whole:
            whole[name] = (whole[name][0], whole[name][3])
    whole["forgettable"] = sorted(inside)
    if keys is not None:
        del whole["apart/keys/place.json"]  # it says which copy this is
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
    """Within this block every store's calls go through an injector.

    New leaves get names that fall into the same folders each time, so that one request always makes the same calls.
    """
    injector = Injector(fault)
    folders = itertools.count(0xC0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "call", lambda self, *args, **options: injector.call(*args, **options))
        patch.setattr(plan, "secrets", SimpleNamespace(token_hex=lambda n: f"{next(folders):02x}{token_hex(n - 1)}"))
        yield injector


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
