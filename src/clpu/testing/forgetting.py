"""Checks of forgetting tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from clpu.agent import Agent
from clpu.errors import UnknownTask
from clpu.methods import Method
from clpu.requests import Stream
from clpu.testing.setups import FORGETFUL, MLP, Setup, forgetful


def a_forgotten_task_is_gone_from_the_bytes(method: type[Method], on: Setup = MLP) -> None:
    marker, size = np.frombuffer(b"\x01MARKER\x02", dtype=np.uint8), int(np.prod(on.shape))
    assert size >= 12, f"this check needs inputs of 12 numbers or more, got the shape {on.shape}"

    def marked(task: str) -> tuple[Any, Any]:
        x = np.random.default_rng([*task.encode()]).integers(0, 255, (48, size), dtype=np.uint8)
        if task == "a private name":
            x[:, 4:12] = marker
        return x.reshape(48, *on.shape), np.arange(48) % 3

    agent = on.agent(method)
    for task, temporary in [("1", False), ("a private name", True), ("2", True)]:
        agent.learn(task, *marked(task), temporary=temporary)
    if any(name.startswith("memory/") for _, leaf in agent.state().leaves() for name in leaf.specs):
        assert marker.tobytes() in agent.state().to_bytes(), "the marker should be in the memory before the forget"
    agent.forget("a private name")
    assert "a private name" not in agent.tasks
    data = agent.state().to_bytes()
    assert marker.tobytes() not in data, "the forgotten task's inputs are still in the state"
    if method.forgets_exactly():
        assert b"private" not in data, "the forgotten task's name is still in the state"
    assert _refusal(agent, on, "a private name").replace("a private", "b private") == _refusal(
        agent, on, "b private name"
    ), "forgotten and never known look different"


def _refusal(agent: Agent, on: Setup, task: str) -> str:
    try:
        agent.predict(task, np.zeros((1, *on.shape), dtype=np.uint8))
    except UnknownTask as error:
        return str(error)
    raise AssertionError(f"{task!r} should be unknown")


def what_was_forgotten_leaves_no_trace(method: type[Method], on: Setup = MLP) -> None:
    for text in forgetful(method):
        stream = Stream(text)
        actual, never = on.run(stream, method), on.run(stream.counterfactual(), method)
        assert actual.digest() == never.digest(), f"{text}: the state differs from the counterfactual's"
        assert actual.storage() == never.storage()
        for task in (*stream.tasks, "never seen"):
            x = on.task(task)[0]
            assert torch.equal(actual.logits(task, x, 3), never.logits(task, x, 3)), f"{text}: outputs on {task} differ"


def forgetting_is_removing_the_task(method: type[Method], on: Setup = MLP) -> None:
    """For exact methods: a store forgets in this way without asking the method, whose code it may not have."""
    agent = on.run("1R 2T 3T 4R", method)
    state = agent.state()
    for task in state.tasks if method.forgets in ("tasks", "records") else state.temporary:
        forgotten = agent.new_method().forget(state, task)
        assert forgotten.digest() == state.without(task).digest(), f"forgetting {task} does more than removing it"


def what_was_forgotten_leaves_a_trace(method: type[Method], on: Setup = MLP) -> None:
    """For methods that are not exact: shows that the exactness check can fail, and that the trait is true."""
    different = [
        text
        for text in FORGETFUL
        if on.run(text, method).digest() != on.run(Stream(text).counterfactual(), method).digest()
    ]
    assert different, f"{method.name} looks exact on {FORGETFUL}; set `forgets` and let it be checked"


#: For methods that forget exactly, and for those that do not.
EXACT = (a_forgotten_task_is_gone_from_the_bytes, what_was_forgotten_leaves_no_trace, forgetting_is_removing_the_task)
INEXACT = (a_forgotten_task_is_gone_from_the_bytes, what_was_forgotten_leaves_a_trace)
