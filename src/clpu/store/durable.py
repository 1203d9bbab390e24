"""The durable agent: an `Agent` that persists each request before it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clpu
from clpu.agent import Agent, Progress
from clpu.errors import BadKeys, BadState, BadStore, StoreFailed
from clpu.methods import Method
from clpu.requests import Request
from clpu.store.contents import shared_meta
from clpu.store.files import LOCK, PART, Files
from clpu.store.format import KEYS, LONGEST_JSON, MANIFEST, Manifest, sha256
from clpu.store.keys import Keys
from clpu.store.receipt import Receipt
from clpu.store.store import Store, failures

PathLike = str | os.PathLike[str]


class DurableAgent(Agent):
    """An agent that lives in a folder; make one with `clpu.store.create`, come back to it with `clpu.store.open`.

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
        return type(self._method).exact

    def forget_with_receipt(self, task: str) -> Receipt:
        """Forget a temporary task and give a signed statement of it, of which the store keeps nothing."""
        before = self.digest()
        standing = self._store.standing
        self.forget(task)
        id = standing.ids[task]
        facts = {
            "task": task,
            "method": self.method,
            "exact": self.exact,
            "clpu": clpu.__version__,
            "digest_before": before,
            "digest_after": self.digest(),
            "key_destroyed": sha256(standing.keys[id]),
            "ciphertexts_destroyed": [standing.manifest.files[f"temporary/{id}"].sha256],
        }
        return Receipt.sign(Keys(self._store.signing), facts)

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
    def _all_or_nothing(self, request: Request) -> Iterator[None]:
        store = self._store
        if not store.write:
            raise StoreFailed(f"{self.path} was opened for reading only, so {request} cannot be handled")
        if not store.files.locked or os.getpid() != self._process:
            raise StoreFailed(f"{self.path} is not open for writing in this process any more; open it again")
        failure: BaseException | None = None
        with super()._all_or_nothing(request):
            yield
            state = self._method.state
            try:
                store.commit(state)
            except BaseException as error:
                if store.standing.state is not state:
                    raise
                failure = error
        if isinstance(failure, StoreFailed):
            raise StoreFailed(
                f"{failure}. The request itself is saved; what is left to do is done when the store is next opened"
            ) from failure
        if failure is not None:
            raise failure

    @classmethod
    def _of(cls, store: Store, **options: Any) -> DurableAgent:
        snapshot = store.load()
        try:
            agent = cls.from_state(snapshot, **options)
        except BadState as error:
            raise BadStore(f"{store.path} is damaged, or needs what was not handed in: {error}") from None
        except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, clpu.Error):
                raise
            raise BadStore(f"{store.path} is damaged: {error!r:.200}") from None
        assert isinstance(agent, DurableAgent)
        agent._store, agent._process = store, os.getpid()
        store.standing = replace(store.standing, state=agent._method.state)
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
    """The agent that lives in a folder; it persists each request before it returns.

    `keys` is the path of the key file if that lives elsewhere. With `read_only` it takes no lock and handles no
    requests. `network` and `method` hand in code of your own again; `device`, `threads` and `progress` are as for
    `Agent`.
    """
    store = Store(path, keys, write=not read_only)
    try:
        return DurableAgent._of(
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
    """Make a folder for a new agent, and open it. `keys` is where the keys are to live, if not in the folder."""
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
            meta = shared_meta(agent.state().meta, agent._method.state)
            files.put(MANIFEST, Manifest(secret.identity, keys is None, meta).to_bytes())
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
        raise BadStore(f"there is a store at {folder} already; forget tasks in it, or choose another folder")
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
        raise BadKeys(f"{keys} lies in the store; leave --keys out to keep the keys there, or choose another place")
    if place.exists():
        raise BadKeys(f"{keys} exists already; a key file belongs to one store, so choose a new name")
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
