"""Checks of what every method must do with requests, predictions and replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from clpu.agent import Progress
from clpu.errors import AlreadyLearned, BadData, CannotForget, UnknownTask
from clpu.methods import Method
from clpu.state import State
from clpu.testing.setups import MLP, Refused, Setup, check_refused


def learns_a_separable_task(method: type[Method], on: Setup = MLP) -> None:
    # Ten times the method's own learning rate, if it has one, because there are few steps.
    usual = getattr(method.Settings, "lr", "auto")
    lr = usual if isinstance(usual, str) else 10 * usual
    agent = on.agent(method, hidden=(16, 16), width=4, epochs=30, lr=lr, weight_decay=0.0)
    x, y = on.task("1", 120)
    agent.learn("1", x, y)
    assert agent.accuracy("1", x, y) > 0.95, f"accuracy {agent.accuracy('1', x, y):.3f} on a separable task"


def tasks_may_differ_in_classes_and_labels(method: type[Method], on: Setup = MLP) -> None:
    agent = on.agent(method)
    for task, classes in [("two", 2), ("five", 5), ("three", 3)]:
        x, y = on.task(task, classes=classes)
        agent.learn(task, x, -1000 * y)
        assert agent.predict(task, x).shape == (len(x), classes)
        assert agent.labels(task) == tuple(sorted({-1000 * int(label) for label in y}))


def probabilities_sum_to_one(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T", method)
    for task in agent.tasks:
        p = agent.predict(task, on.task(task)[0])
        assert (p >= 0).all()
        assert np.allclose(p.sum(-1), 1, atol=1e-6)


def predicting_changes_nothing(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T", method)
    before, x = agent.digest(), on.task("1")[0]
    first = agent.predict("1", x)
    agent.predict("2", x)
    agent.logits("never", x, classes=4)
    assert (agent.predict("1", x) == first).all()
    assert agent.digest() == before


def a_refused_request_changes_nothing(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T", method)
    x, y = on.task("3")
    refused: Refused = [
        (UnknownTask, lambda: agent.forget("9")),
        (UnknownTask, lambda: agent.keep("9")),
        (AlreadyLearned, lambda: agent.learn("2", x, y, temporary=True)),
        (AlreadyLearned, lambda: agent.learn("1", x, y)),
        (BadData, lambda: agent.learn("3", x[..., :3], y)),
        (BadData, lambda: agent.learn("3", np.full_like(x, np.inf), y)),
    ]
    if method.forgets not in ("tasks", "records"):
        refused.append((CannotForget, lambda: agent.forget("1")))
    check_refused(agent, refused)


def an_interrupted_request_changes_nothing(method: type[Method], on: Setup = MLP) -> None:
    """Stopped after two steps of training, or, if there are no steps, when the method has done all that it does."""

    def stop(progress: Progress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    def stopped(name: str) -> Callable[..., State]:
        def work(self: Method, *arguments: Any) -> State:
            getattr(method, name)(self, *arguments)
            raise KeyboardInterrupt

        return work

    stopping = type(method.__name__, (method,), {name: stopped(name) for name in ("learn", "keep", "forget")})
    saved = on.run("1R 2T 3T", method).state()
    before = saved.to_bytes()
    for request in ("4R", "4T", "2R", "3F"):
        agent = on.restored(stopping, saved, stop)
        try:
            on.continued(agent, request)
        except KeyboardInterrupt:
            # Hashes are memoised, so the bytes are compared.
            assert agent.state().to_bytes() == before, f"{request}, stopped half-way, left something behind"
        else:
            raise AssertionError(f"{request} continued after a KeyboardInterrupt")


def keeping_twice_changes_nothing(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1T 2R 1R", method)
    before = agent.digest()
    on.continued(agent, "1R 2R")
    assert agent.digest() == before


def replicas_agree_with_single_agents(method: type[Method], on: Setup = MLP) -> None:
    stream = "1R 2T 3T 4R 2R 3F"
    population = on.run(stream, method, seeds=[3, 1, 4])
    for k, seed in enumerate([3, 1, 4]):
        single = on.run(stream, method, seed=seed)
        for task in ("1", "2", "4"):
            x = on.task(task)[0]
            one, many = single.logits(task, x), population.logits(task, x)[k]
            assert torch.allclose(one, many, rtol=1e-3, atol=1e-4), f"replica {k} differs on task {task}"


def randomness_is_the_agents_own(method: type[Method], on: Setup = MLP) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = on.run("1R 2T 2R 3T 3F", method).digest()
    assert torch.equal(state, torch.get_rng_state()), "torch's global generator was used"
    torch.manual_seed(2)
    assert on.run("1R 2T 2R 3T 3F", method).digest() == first, "torch.manual_seed changed the result"


def agents_do_not_disturb_each_other(method: type[Method], on: Setup = MLP) -> None:
    alone = on.run("1R 2T 2R", method).digest()
    a, b = on.agent(method), on.agent(method, seed=5)
    copied = None
    for request in ("1R", "2T", "2R"):
        on.continued(a, request)
        on.continued(b, request)
        copied = copied or a.copy()
    assert a.digest() == alone
    assert copied is not None
    assert on.continued(copied, "2T 2R").digest() == alone, "a copy and its original disturb each other"


#: For every method.
CHECKS = (
    learns_a_separable_task,
    tasks_may_differ_in_classes_and_labels,
    probabilities_sum_to_one,
    predicting_changes_nothing,
    a_refused_request_changes_nothing,
    an_interrupted_request_changes_nothing,
    keeping_twice_changes_nothing,
    replicas_agree_with_single_agents,
    randomness_is_the_agents_own,
    agents_do_not_disturb_each_other,
)
