"""The durable agent: an `Agent` that persists each request before it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clpu
from clpu.agent import Agent, Progress
from clpu.errors import BadKeys, BadState, BadStore, StoreFailed
from clpu.methods import Method
from clpu.requests import Instruction, Request, check_name
from clpu.state import State
from clpu.store import forgetting
from clpu.store.contents import plain
from clpu.store.files import LOCK, PART, Files, failures
from clpu.store.format import KEYS, LONGEST_JSON, MANIFEST, Manifest
from clpu.store.keys import Keys
from clpu.store.receipt import Receipt
from clpu.store.store import Store

PathLike = str | os.PathLike[str]


class DurableAgent(Agent):
    """An agent that is stored in a folder; `clpu.store.create` makes one, `clpu.store.open` comes back to it.

    A request that returned is on the disk; one that raised changed nothing, unless the error says that the
    request is saved. `close()`, or leaving a `with` block, lets another writer in.
    """

    _store: Store

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def identity(self) -> str:
        """The public key that this store's receipts are signed with."""
        return self._store.standing.manifest.identity

    @property
    def read_only(self) -> bool:
        return not self._store.write

    @property
    def exact(self) -> bool:
        """Whether forgetting is exact with this method."""
        return self.forgets != "nothing"

    def forget(self, task: str) -> None:
        """Forget a task (F). If the method is exact, that is removing the task, and the method is not asked."""
        if not self.exact:
            super().forget(task)
            return
        request = Request(check_name(task), Instruction.FORGET)
        with self._handling(request) as state:
            self._commit(forgetting.without(state, task), request)

    def forget_with_receipt(self, task: str) -> Receipt:
        """Forget a task and return a signed statement of it, of which the store keeps nothing."""
        before = self._store.standing
        self.forget(task)
        return forgetting.receipt(self._store, before, task)

    def close(self) -> None:
        """Let another writer in; this agent still answers, and handles no more requests."""
        self._store.close()

    def __enter__(self) -> DurableAgent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return super().__repr__().replace("<Agent", f"<DurableAgent at {str(self.path)!r}:", 1)

    @contextmanager
    def _handling(self, request: Request) -> Iterator[State]:
        if not self._store.write:
            raise StoreFailed(f"{self.path} was opened for reading only, so {request} cannot be handled")
        if not self._store.files.locked or os.getpid() != self._process:
            raise StoreFailed(f"{self.path} is not open for writing in this process any more; open it again")
        with super()._handling(request) as state:
            yield state

    def _commit(self, state: State, request: Request) -> None:
        """Save a new state, then swap it in; if saving failed after the point of no return, swap it in all the same."""
        try:
            self._store.commit(state)
        finally:
            if self._store.standing.state is state:
                super()._commit(state, request)

    @classmethod
    def of_store(cls, store: Store, **options: Any) -> DurableAgent:
        """The agent in a store that was loaded; the options are those of `Agent.from_state`."""
        try:
            agent = cls.from_state(store.standing.state, **options)
        except BadState as error:
            raise BadStore(
                f"{store.path} is damaged, or needs a custom network or method that was not passed: {error}"
            ) from None
        except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, clpu.Error):
                raise
            raise BadStore(f"{store.path} is damaged: {error!r:.200}") from None
        assert isinstance(agent, DurableAgent)
        agent._store, agent._process = store, os.getpid()
        return agent

    _process: int


def open(
    path: PathLike,
    *,
    keys: PathLike | None = None,
    read_only: bool = False,
    network: nn.Module | None = None,
    method: type[Method] | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> DurableAgent:
    """The agent in a store; it persists each request before it returns.

    `keys` is the path of the key file if that is stored outside the store. With `read_only` it takes no lock and
    handles no requests. `network` and `method` hand in your own code again; `device`, `threads` and `progress` are as
    for `Agent`.
    """
    store = Store(path, keys, write=not read_only)
    try:
        store.load()
        return DurableAgent.of_store(
            store, network=network, method=method, device=device, threads=threads, progress=progress
        )
    except BaseException:
        store.close()
        raise


def create(
    path: PathLike,
    method: str | type[Method] = "clpu-der++",
    network: str | nn.Module = "mlp",
    seed: int = 0,
    *,
    seeds: Sequence[int] | None = None,
    keys: PathLike | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> DurableAgent:
    """Create a store for a new agent, and open it. `keys` is the path of the key file, if not in the store."""
    agent = Agent(method, network, seed, seeds=seeds, device=device, threads=threads, **settings)
    folder = Path(path)
    with failures(folder, "made"):
        made = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if made:
            _flush_folder(folder.parent)
        files = Files(folder)
        try:
            _refuse_occupied(files, folder)
            files.lock()
            secret = Keys.new()
            if keys is None:
                files.put(KEYS, secret.to_bytes())
                files.settle()
            else:
                _put_keys_elsewhere(folder, Path(keys), secret)
            about = plain(dict(agent.state().about))
            files.put(MANIFEST, Manifest(secret.identity, keys is None, about).to_bytes())
            files.settle()
        finally:
            files.close()
    own_network = network if isinstance(network, nn.Module) else None
    own_method = method if isinstance(method, type) else None
    return open(
        folder,
        keys=keys,
        network=own_network,
        method=own_method,
        device=device,
        threads=threads,
        progress=progress,
    )


def _refuse_occupied(files: Files, folder: Path) -> None:
    names = set(files.names())
    if MANIFEST in names:
        raise BadStore(f"there is already a store at {folder}; forget tasks in it, or choose a different folder")
    if names - {LOCK, KEYS, KEYS + PART, MANIFEST + PART}:
        raise BadStore(f"{folder} is not empty; choose a new or an empty folder")
    if KEYS in names:  # an interrupted `init` leaves keys without tasks; anything else may be all that is left of one
        try:
            empty = not Keys.from_bytes(files.read(KEYS, limit=LONGEST_JSON)).tasks
        except BadKeys:
            empty = False
        if not empty:
            raise BadStore(f"{folder} holds a key file of a store whose {MANIFEST} is missing; restore it from a copy")


def _put_keys_elsewhere(folder: Path, keys: Path, secret: Keys) -> None:
    place = keys.resolve()
    if folder.resolve() in place.parents:
        raise BadKeys(
            f"{keys} is inside the store; leave --keys out to keep the keys there, or choose a different path"
        )
    if place.exists():
        raise BadKeys(f"{keys} already exists; a key file belongs to one store, so choose a new name")
    if not place.parent.is_dir():
        raise BadKeys(f"there is no folder {place.parent} for the key file")
    elsewhere = Files(place.parent, own=False)
    try:
        elsewhere.put(place.name, secret.to_bytes())
        elsewhere.settle()
    finally:
        elsewhere.close()


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
