"""The durable agent: an `Agent` that persists each request before it returns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clpu
from clpu.agent import Agent, Progress
from clpu.errors import BadRequest, BadState, BadStore, StoreFailed
from clpu.methods import Method
from clpu.outcome import Outcome
from clpu.requests import Request, Scope
from clpu.settings import DEFAULT_METHOD
from clpu.state import State
from clpu.state.schema import check_state
from clpu.store import forgetting
from clpu.store.contents import plain
from clpu.store.expiry import UNTIL, parse_date
from clpu.store.folder import WAIT, Access
from clpu.store.forgetting import Order
from clpu.store.lifecycle import make_store
from clpu.store.protection import Unlock
from clpu.store.receipt import Receipt
from clpu.store.store import Store
from clpu.workers import Workers

PathLike = str | os.PathLike[str]


class DurableAgent(Agent):
    """An agent that is stored in a folder; `clpu.store.create` makes one, `clpu.store.open` opens it again.

    A request that returned is on the disk; one that raised changed nothing, unless the error says that the
    request is saved. `close()`, or leaving a `with` block, lets another writer in. A read-only agent follows the
    store: it looks at it with each call, and answers from one complete state.
    """

    _store: Store
    _process: int
    _following: threading.Lock
    _current: State
    _until: str | None = None

    @property
    def _state(self) -> State:
        store = self.__dict__.get("_store")
        if store is not None and not store.write and not store.closed:
            with self._following:
                if store.follow():
                    state = store.reload()
                    check_state(self._handler.build_for(state), state)
                    self._current = state
        return self._current

    @_state.setter
    def _state(self, state: State) -> None:
        self._current = state

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def identity(self) -> str:
        """The public key that this store's receipts are signed with."""
        return self._store.about.identity

    @property
    def read_only(self) -> bool:
        return not self._store.write

    @property
    def exact(self) -> bool:
        """Whether forgetting is exact with this method."""
        return self.forgets != "nothing"

    def learn(
        self, task: str, x: Any, y: Any = None, *, temporary: bool = False, until: str | None = None, **more: Any
    ) -> Outcome:
        """As `Agent.learn`; `until` is the date at which `clpu expire` forgets a temporary task."""
        if until is not None and not temporary:
            raise BadRequest("only a temporary task can have an end; leave until= out, or learn it temporarily")
        self._until = None if until is None else parse_date(until)
        try:
            return super().learn(task, x, y, temporary=temporary, **more)
        finally:
            self._until = None

    def relearn(self, task: str, x: Any, y: Any = None, **more: Any) -> Outcome:
        """As `Agent.relearn`; a temporary task keeps its end."""
        entry = self._state.tasks.get(task)
        self._until = None if entry is None else entry.facts.get(UNTIL)
        try:
            return super().relearn(task, x, y, **more)
        finally:
            self._until = None

    def forget(self, task: str | None = None, **scope: Any) -> None:
        """As `Agent.forget`; if the method is exact, that is removing leaves, and the method is not asked."""
        if not self.exact:
            super().forget(task, **scope)
            return
        request = Request.forgetting(Scope.asked(task, **scope))
        with self._handling(request) as state:
            self._commit(forgetting.without(state, **request.scope.keywords()), request)

    def forget_with_receipt(
        self,
        task: str | None = None,
        path: PathLike | None = None,
        *,
        id: str | None = None,
        reason: str | None = None,
        requester: str | None = None,
        digests: bool = False,
        **scope: Any,
    ) -> Receipt:
        """Forget and return a signed statement of it, of which the store keeps nothing.

        With a path, the receipt is written ahead: a crash cannot lose it, and the same request gives the same receipt.
        """
        request = Request.forgetting(Scope.asked(task, **scope))
        order = Order(request.scope.keywords(), id, reason, requester, digests, self.threads)
        place = None if path is None else Path(path)
        if not self.exact:
            return forgetting.forget_with_receipt(self._store, order, place, partial(_forget_scope, self))
        with self._handling(request) as state:
            try:
                return forgetting.forget_with_receipt(self._store, order, place)
            finally:
                if self._store.standing.state is not state:
                    super()._commit(self._store.standing.state, request)

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
        state = self._with_end(state, request)
        try:
            self._store.commit(state)
        finally:
            if self._store.standing.state is state:
                super()._commit(state, request)

    def _with_end(self, state: State, request: Request) -> State:
        """The state in which a new temporary task has its end, and a task that was kept has none."""
        task = state.tasks.get(request.task)
        if task is None or (self._until is None and UNTIL not in task.facts):
            return state
        facts = {name: value for name, value in task.facts.items() if name != UNTIL}
        if task.status == "T":
            facts[UNTIL] = self._until or task.facts[UNTIL]
        return state.with_task(request.task, replace(task, facts=facts))

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
        agent._following, agent._process = threading.Lock(), os.getpid()
        agent._store = store
        return agent


def _forget_scope(agent: DurableAgent, scope: forgetting.Scope) -> None:
    agent.forget(**scope)


def open(
    path: PathLike,
    *,
    keys: PathLike | None = None,
    unlock: Unlock | None = None,
    shared_keys: bool = False,
    wait: float = WAIT,
    read_only: bool = False,
    network: nn.Module | None = None,
    method: type[Method] | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
    workers: int | Workers = 1,
    progress: Callable[[Progress], None] | None = None,
) -> DurableAgent:
    """The agent in a store; it persists each request before it returns.

    `keys` is the keys folder if that is stored outside the store, `unlock` what opens it if it is protected. A writer
    waits up to `wait` seconds for another one. With `read_only` it takes no lock, handles no requests, and follows what
    a writer does. `network` and `method` hand in your own code again; `device`, `threads`, `workers` and `progress` are
    as for `Agent`.
    """
    store = Store(path, Access(keys, unlock or Unlock(), shared_keys, wait), write=not read_only)
    try:
        store.load()
        return DurableAgent.of_store(
            store,
            network=network,
            method=method,
            device=device,
            threads=threads,
            workers=workers,
            progress=progress,
        )
    except BaseException:
        store.close()
        raise


def create(
    path: PathLike,
    method: str | type[Method] = DEFAULT_METHOD,
    network: str | nn.Module | None = None,
    seed: int = 0,
    *,
    seeds: Sequence[int] | None = None,
    keys: PathLike | None = None,
    unlock: Unlock | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
    workers: int | Workers = 1,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> DurableAgent:
    """Create a store for a new agent, and open it. `keys` is the keys folder, if not in the store."""
    agent = Agent(method, network, seed, seeds=seeds, device=device, threads=threads, **settings)
    make_store(path, plain(dict(agent.state().about)), Access(keys, unlock or Unlock()))
    own_network = network if isinstance(network, nn.Module) else None
    own_method = method if isinstance(method, type) else None
    return open(
        path,
        keys=keys,
        unlock=unlock,
        network=own_network,
        method=own_method,
        device=device,
        threads=threads,
        workers=workers,
        progress=progress,
    )
