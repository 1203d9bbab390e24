"""All operations in any order, with crashes, full disks and reopening, against an agent in memory."""

import errno
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storekit import SETTINGS, Crash, Fault, crashing, failing, handle, injected

import clpu
from clpu import Agent
from clpu.store import create, verify
from clpu.store import open as open_store

TASKS = st.sampled_from(["a", "b", "c", "d"])


class Machine(RuleBasedStateMachine):
    """`model` is what the store must hold; it knows nothing of disks."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.agent = create(self.folder / "store", **SETTINGS)
        self.model = Agent(**SETTINGS)

    def teardown(self) -> None:
        if hasattr(self, "agent"):
            self.agent.close()
            shutil.rmtree(self.folder)

    def requests(self, task: str, letter: str) -> tuple[Agent, str, type[Exception] | None]:
        """The model after a request, and the error if it is refused."""
        after = self.model.copy()
        try:
            handle(after, task + letter)
        except clpu.Error as error:
            return self.model, task + letter, type(error)
        return after, task + letter, None

    @rule(task=TASKS, letter=st.sampled_from("TTRF"))
    def request(self, task: str, letter: str) -> None:
        after, request, refused = self.requests(task, letter)
        with pytest.raises(refused) if refused else nullcontext():
            handle(self.agent, request)
        self.model = after

    @rule(task=TASKS, letter=st.sampled_from("TRF"), at=st.integers(0, 70))
    def crash(self, task: str, letter: str, at: int) -> None:
        """The process ends at some call; the store is opened anew."""
        after, request, _ = self.requests(task, letter)
        try:
            with injected(Fault(crashing, at, sticky=True)):
                handle(self.agent, request)
            self.model = after
        except (Crash, clpu.Error):
            pass
        self.reopen_as_one_of(self.model, after)

    @rule(task=TASKS, letter=st.sampled_from("TRF"), at=st.integers(0, 70), sticky=st.booleans())
    def fail(self, task: str, letter: str, at: int, sticky: bool) -> None:
        """A call fails, perhaps all later ones of its kind too; the agent says what became of the request."""
        after, request, refused = self.requests(task, letter)
        with injected(Fault(failing(errno.ENOSPC), at, sticky, "write" if sticky else None)):
            try:
                handle(self.agent, request)
                self.model = after
            except clpu.StoreFailed:
                assert self.agent.digest() in (self.model.digest(), after.digest())
                self.model = after if self.agent.digest() == after.digest() else self.model
            except clpu.Error:
                assert refused

    @rule()
    def reopen(self) -> None:
        self.reopen_as_one_of(self.model)

    def reopen_as_one_of(self, *models: Agent) -> None:
        self.agent.close()
        self.agent = open_store(self.folder / "store")
        digest = self.agent.digest()
        self.model = next(model for model in models if model.digest() == digest)
        report = verify(self.folder / "store")
        assert report.good
        assert not report.notes

    @precondition(lambda self: self.model.tasks)
    @rule()
    def read_beside(self) -> None:
        if not self.agent._store.dirty:
            with open_store(self.folder / "store", read_only=True) as reader:
                assert reader.digest() == self.model.digest()

    @invariant()
    def agent_and_model_agree(self) -> None:
        if hasattr(self, "agent"):
            assert self.agent.tasks == self.model.tasks
            assert self.agent.digest() == self.model.digest()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
