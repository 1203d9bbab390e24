"""Checks that all a method learns is in the state, and that states are never changed."""

from __future__ import annotations

import torch

from clpu.audit.outside import outside
from clpu.methods import Method
from clpu.state import Leaf, State
from clpu.testing.processes import in_fresh_process
from clpu.testing.setups import MLP, Setup


def state_survives_a_round_trip_and_resumes(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T 3T 4R", method)
    restored = on.restored(method, agent.state().to_bytes())
    assert restored.digest() == agent.digest()
    for rest in ("2R", "3F", "5T", "5F"):
        assert on.continued(restored, rest).digest() == on.continued(agent, rest).digest(), f"differs after {rest}"


def requests_continue_from_bytes_in_a_fresh_process(method: type[Method], on: Setup = MLP) -> None:
    """Anything that a method keeps outside the state is missing in a fresh process, so the digests would differ."""
    stream = "1R 2T 3T 2F 4R 3R 5T 5F 6R"
    agent = on.agent(method)
    for request in stream.split():
        saved = agent.state().to_bytes()
        on.continued(agent, request)
        elsewhere = in_fresh_process(continue_from_bytes, on, method, saved, request)
        assert elsewhere == agent.digest(), f"{request} differs in an agent that was rebuilt from bytes"


def continue_from_bytes(on: Setup, method: type[Method], saved: bytes, request: str) -> str:
    return on.continued(on.restored(method, saved), request).digest()


def nothing_is_kept_outside_the_state(method: type[Method], on: Setup = MLP) -> None:
    """No request changes the method's classes or module, a closure, or the agent's blueprint and settings."""
    agent = on.run("1R 2T", method)
    before = outside(agent)
    for request in ("3T", "2F", "4R", "3R"):
        after = outside(on.continued(agent, request))
        changed = sorted(place for place in {*before, *after} if before.get(place) != after.get(place))
        assert not changed, f"{request} changed what is not part of the state: {', '.join(changed)}"


def a_request_leaves_its_state_alone(method: type[Method], on: Setup = MLP) -> None:
    """Requests return new states; the one that they are given stays what it was."""
    agent = on.run("1R 2T 3T", method)
    state = agent.state()
    copied = State.from_bytes(state.to_bytes())
    for request in ("4R", "2R", "3F"):
        on.continued(agent, request)
    # Hashes are memoised, so the tensors themselves are compared with those of the copy.
    for (path, leaf), (_, before) in zip(state.leaves(), copied.leaves()):
        assert Leaf(leaf.tensors).sha256 == before.sha256, f"{path} was changed in place"


def answers_for_a_task_come_from_its_own_leaf_and_the_shared_one(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T 3T 4R", method)
    for task in agent.tasks:
        alone = on.restored(method, agent.state().only(task))
        x = on.task(task)[0]
        assert torch.equal(alone.logits(task, x), agent.logits(task, x)), f"{task} needs other tasks for its answers"


#: For every method.
CHECKS = (
    state_survives_a_round_trip_and_resumes,
    requests_continue_from_bytes_in_a_fresh_process,
    nothing_is_kept_outside_the_state,
    a_request_leaves_its_state_alone,
    answers_for_a_task_come_from_its_own_leaf_and_the_shared_one,
)
