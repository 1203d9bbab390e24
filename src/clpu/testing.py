"""Checks that every method must pass, yours too.

>>> from clpu.testing import checks_for
>>> from clpu.methods import METHODS
>>> for check in checks_for(METHODS["seq"]):
...     check(METHODS["seq"])

A method's traits (`exact`) decide which checks apply. Each check trains tiny agents on made-up data, takes a
fraction of a second, and raises `AssertionError` with the reason if the method fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from clpu.agent import Agent, Progress
from clpu.errors import AlreadyLearned, BadData, CannotForgetRemembered, Error, UnknownTask
from clpu.methods import Method
from clpu.requests import Instruction, Request, Stream

#: Small enough for a check to take a moment, large enough for every code path.
TINY: dict[str, Any] = {"hidden": (12, 8), "epochs": 2, "batch_size": 16}

#: Streams in which something is forgotten, in every way that matters.
FORGETFUL = ["1T 1F", "1R 2T 2F", "1T 2R 1F 3R", "1R 2T 3T 4R 2R 3F 5T 5F", "1T 1R 2T 3T 2F 2T 3R 2F"]

Check = Callable[[type[Method]], None]


def make_task(task: str, examples: int = 48, classes: int = 3, size: int = 6) -> tuple[Any, Any]:
    """Well separated Gaussian clusters, one a class, drawn for the task's name; labels are 7, 17, 27, …"""
    rng = np.random.default_rng([*task.encode()])
    centres = rng.normal(size=(classes, size))
    centres *= 4 / np.linalg.norm(centres[:, None] - centres, axis=-1)[np.triu_indices(classes, 1)].min()
    y = np.arange(examples) % classes
    x = centres[y] + 0.3 * rng.normal(size=(examples, size))
    return x.astype(np.float32), 7 + 10 * y


def play(
    stream: Stream | str,
    method: str | type[Method],
    data: Callable[[str], tuple[Any, Any]] = make_task,
    **settings: Any,
) -> Agent:
    """A new agent that has handled a stream; `data` gives each task's training data."""
    agent = Agent(method, **settings)
    return go_on(agent, stream, data)


def go_on(agent: Agent, stream: Stream | str, data: Callable[[str], tuple[Any, Any]] = make_task) -> Agent:
    """The agent after it has handled a further stream, which need not be legal by itself."""
    requests = stream if isinstance(stream, Stream) else [Request.parse(word) for word in stream.split()]
    for request in requests:
        learns = request.task not in agent.tasks and request.instruction is not Instruction.FORGET
        agent.handle(request, *data(request.task)) if learns else agent.handle(request)
    return agent


def learns_a_separable_task(method: type[Method]) -> None:
    agent = Agent(method, hidden=(16, 16), epochs=30, lr=0.1, weight_decay=0.0)
    x, y = make_task("1", 120)
    agent.learn("1", x, y)
    assert agent.accuracy("1", x, y) > 0.95, f"accuracy {agent.accuracy('1', x, y):.3f} on a separable task"


def tasks_may_differ_in_classes_and_labels(method: type[Method]) -> None:
    agent = Agent(method, **TINY)
    for task, classes in [("two", 2), ("five", 5), ("three", 3)]:
        x, y = make_task(task, classes=classes)
        agent.learn(task, x, -1000 * y)
        assert agent.predict(task, x).shape == (len(x), classes)
        assert agent.labels(task) == tuple(sorted({-1000 * int(label) for label in y}))


def probabilities_sum_to_one(method: type[Method]) -> None:
    agent = play("1R 2T", method, **TINY)
    for task in agent.tasks:
        p = agent.predict(task, make_task(task)[0])
        assert (p >= 0).all()
        assert np.allclose(p.sum(-1), 1, atol=1e-6)


def predicting_changes_nothing(method: type[Method]) -> None:
    agent = play("1R 2T", method, **TINY)
    before, x = agent.digest(), make_task("1")[0]
    first = agent.predict("1", x)
    agent.predict("2", x)
    agent.logits("never", x, classes=4)
    assert (agent.predict("1", x) == first).all()
    assert agent.digest() == before


def a_refused_request_changes_nothing(method: type[Method]) -> None:
    agent = play("1R 2T", method, **TINY)
    before = agent.digest()
    x, y = make_task("3")
    refused: list[tuple[type[Error], Callable[[], None]]] = [
        (CannotForgetRemembered, lambda: agent.forget("1")),
        (UnknownTask, lambda: agent.forget("9")),
        (UnknownTask, lambda: agent.keep("9")),
        (AlreadyLearned, lambda: agent.learn("2", x, y, temporary=True)),
        (AlreadyLearned, lambda: agent.learn("1", x, y)),
        (BadData, lambda: agent.learn("3", x[:, :3], y)),
        (BadData, lambda: agent.learn("3", np.full_like(x, np.nan), y)),
    ]
    for error, attempt in refused:
        try:
            attempt()
        except error:
            assert agent.digest() == before, f"a request refused with {error.__name__} left something behind"
        else:
            raise AssertionError(f"expected {error.__name__}")


def an_interrupted_request_changes_nothing(method: type[Method]) -> None:
    """Stopped after two steps of training, or, if there are no steps, when the method has done all that it does."""
    for request, work in (("4R", "learn"), ("4T", "learn"), ("2R", "keep"), ("3F", "forget")):
        agent = play("1R 2T 3T", method, **TINY)
        before, do_work = agent.digest(), getattr(agent._method, work)

        def stop(progress: Progress) -> None:
            if progress.step == 2:
                raise KeyboardInterrupt

        def stop_after_work(*arguments: Any, do_work: Callable[..., None] = do_work) -> None:
            do_work(*arguments)
            raise KeyboardInterrupt

        agent.progress = stop
        setattr(agent._method, work, stop_after_work)
        try:
            go_on(agent, request)
        except KeyboardInterrupt:
            assert agent.digest() == before, f"{request}, stopped half-way, left something behind"
        else:
            raise AssertionError(f"{request} went on after a KeyboardInterrupt")


def keeping_twice_changes_nothing(method: type[Method]) -> None:
    agent = play("1T 2R 1R", method, **TINY)
    before = agent.digest()
    go_on(agent, "1R 2R")
    assert agent.digest() == before


def state_survives_a_round_trip_and_resumes(method: type[Method]) -> None:
    agent = play("1R 2T 3T 4R", method, **TINY)
    restored = Agent.from_state(agent.state().to_bytes(), method=method)
    assert restored.digest() == agent.digest()
    for rest in ("2R", "3F", "5T", "5F"):
        assert go_on(restored, rest).digest() == go_on(agent, rest).digest(), f"differs after {rest}"


def a_forgotten_task_is_gone_from_the_bytes(method: type[Method]) -> None:
    marker = np.frombuffer(b"\x01MARKER\x02", dtype=np.uint8)

    def marked(task: str) -> tuple[Any, Any]:
        x = np.random.default_rng([*task.encode()]).integers(0, 255, (48, 16), dtype=np.uint8)
        if task == "a private name":
            x[:, 4:12] = marker
        return x, np.arange(48) % 3

    agent = Agent(method, **TINY)
    for task, temporary in [("1", False), ("a private name", True), ("2", True)]:
        agent.learn(task, *marked(task), temporary=temporary)
    if agent._method.memories:
        assert marker.tobytes() in agent.state().to_bytes(), "the marker should be in the memory before the forget"
    agent.forget("a private name")
    assert "a private name" not in agent.tasks
    data = agent.state().to_bytes()
    assert marker.tobytes() not in data, "the forgotten task's inputs are still in the state"
    if method.exact:
        assert b"private" not in data, "the forgotten task's name is still in the state"
    assert _refusal(agent, "a private name").replace("a private", "b private") == _refusal(agent, "b private name"), (
        "forgotten and never known look different"
    )


def _refusal(agent: Agent, task: str) -> str:
    try:
        agent.predict(task, np.zeros((1, 16), dtype=np.uint8))
    except UnknownTask as error:
        return str(error)
    raise AssertionError(f"{task!r} should be unknown")


def replicas_agree_with_single_agents(method: type[Method]) -> None:
    stream = "1R 2T 3T 4R 2R 3F"
    population = play(stream, method, seeds=[3, 1, 4], **TINY)
    for k, seed in enumerate([3, 1, 4]):
        single = play(stream, method, seed=seed, **TINY)
        for task in ("1", "2", "4"):
            x = make_task(task)[0]
            one, many = single.logits(task, x), population.logits(task, x)[k]
            assert torch.allclose(one, many, rtol=1e-3, atol=1e-4), f"replica {k} differs on task {task}"


def randomness_is_the_agents_own(method: type[Method]) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = play("1R 2T 2R 3T 3F", method, **TINY).digest()
    assert torch.equal(state, torch.get_rng_state()), "torch's global generator was used"
    torch.manual_seed(2)
    assert play("1R 2T 2R 3T 3F", method, **TINY).digest() == first, "torch.manual_seed changed the result"


def agents_do_not_disturb_each_other(method: type[Method]) -> None:
    alone = play("1R 2T 2R", method, **TINY).digest()
    a, b = Agent(method, **TINY), Agent(method, seed=5, **TINY)
    copied = None
    for request in ("1R", "2T", "2R"):
        go_on(a, request)
        go_on(b, request)
        copied = copied or a.copy()
    assert a.digest() == alone
    assert copied is not None
    assert go_on(copied, "2T 2R").digest() == alone, "a copy and its original disturb each other"


def what_was_forgotten_leaves_no_trace(method: type[Method]) -> None:
    for text in FORGETFUL:
        stream = Stream(text)
        actual, never = play(stream, method, **TINY), play(stream.counterfactual(), method, **TINY)
        assert actual.digest() == never.digest(), f"{text}: the state differs from the counterfactual's"
        assert actual.storage() == never.storage()
        for task in (*stream.tasks, "never seen"):
            x = make_task(task)[0]
            assert torch.equal(actual.logits(task, x, 3), never.logits(task, x, 3)), f"{text}: outputs on {task} differ"


def what_was_forgotten_leaves_a_trace(method: type[Method]) -> None:
    """For methods that are not exact: shows that the exactness check can fail, and that the trait is honest."""
    different = [
        text
        for text in FORGETFUL
        if play(text, method, **TINY).digest() != play(Stream(text).counterfactual(), method, **TINY).digest()
    ]
    assert different, f"{method.name} looks exact on {FORGETFUL}; set `exact = True` and let it be checked"


def checks_for(method: type[Method]) -> Iterator[Check]:
    """The checks that a method must pass."""
    yield from (
        learns_a_separable_task,
        tasks_may_differ_in_classes_and_labels,
        probabilities_sum_to_one,
        predicting_changes_nothing,
        a_refused_request_changes_nothing,
        an_interrupted_request_changes_nothing,
        keeping_twice_changes_nothing,
        state_survives_a_round_trip_and_resumes,
        a_forgotten_task_is_gone_from_the_bytes,
        replicas_agree_with_single_agents,
        randomness_is_the_agents_own,
        agents_do_not_disturb_each_other,
    )
    yield what_was_forgotten_leaves_no_trace if method.exact else what_was_forgotten_leaves_a_trace
