"""Checks that every method must pass, yours too.

>>> from clpu.testing import checks_for
>>> from clpu.methods import METHODS
>>> for check in checks_for(METHODS["seq"]):
...     check(METHODS["seq"])

A method's trait `forgets` decides which checks apply. Each check trains tiny agents on made-up data, takes a
fraction of a second, and raises `AssertionError` with the reason if the method fails it. The MLP is the default;
`checks_for(method, "resnet18")` and `checks_for(method, make_module, shape=(16,))` check it on other networks.
"""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from clpu.agent import Agent, Progress
from clpu.audit.outside import outside
from clpu.errors import AlreadyLearned, BadData, BadRequest, CannotForget, Error, NothingHeld, UnknownTask
from clpu.methods import METHODS, Method
from clpu.networks.blueprint import Blueprint
from clpu.networks.module_body import seeded
from clpu.requests import Instruction, Request, Scope, Stream
from clpu.settings import setting_fields
from clpu.state import Leaf, State

#: Small enough for a check to take a moment, large enough for every code path.
TINY: dict[str, Any] = {
    "hidden": (12, 8),
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.01,
    "weight_decay": 0.0005,
    "scaling": "none",
}


def tiny(method: str) -> dict[str, Any]:
    """Those of the tiny settings that a registered method has on its own kind of network."""
    kind = METHODS[method]
    known = setting_fields(kind.Settings, Blueprint.settings_class(kind.default_network))
    return {name: value for name, value in TINY.items() if name in known}


#: Streams in which something is forgotten, in every way that matters; each goes on after a forget.
FORGETFUL = [
    "1T 1F",
    "1R 2T 2F 3R",
    "1T 2R 1F 3R",
    "2R 3R 1T 1F 4R 5T 5R",
    "1R 2T 3T 4R 2R 3F 5T 5F",
    "1T 1R 2T 3T 2F 2T 3R 2F 4R",
]
#: The same for methods that forget any task.
FORGETFUL_OF_ALL = ["1R 1F", "1R 2R 1F 3R", "1R 2T 2R 2F 1F 3T"]


def forgetful(method: type[Method]) -> list[str]:
    """The streams of forgetting that a method's trait allows."""
    return [*FORGETFUL, *(FORGETFUL_OF_ALL if method.forgets in ("tasks", "records") else [])]


Check = Callable[[type[Method]], None]


def make_task(task: str, examples: int = 48, classes: int = 3, shape: int | tuple[int, ...] = 6) -> tuple[Any, Any]:
    """Well separated Gaussian clusters, one per class, drawn for the task's name; labels are 7, 17, 27, …"""
    rng = np.random.default_rng([*task.encode()])
    size = int(np.prod(shape))
    centres = rng.normal(size=(classes, size))
    centres *= 4 / np.linalg.norm(centres[:, None] - centres, axis=-1)[np.triu_indices(classes, 1)].min()
    y = np.arange(examples) % classes
    x = centres[y] + 0.3 * rng.normal(size=(examples, size))
    return x.astype(np.float32).reshape(examples, *np.atleast_1d(shape)), 7 + 10 * y


def run_stream(
    stream: Stream | str,
    method: str | type[Method],
    data: Callable[[str], tuple[Any, Any]] = make_task,
    **settings: Any,
) -> Agent:
    """A new agent that has handled a stream; `data` gives each task's training data."""
    agent = Agent(method, **settings)
    return continue_stream(agent, stream, data)


def continue_stream(agent: Agent, stream: Stream | str, data: Callable[[str], tuple[Any, Any]] = make_task) -> Agent:
    """The agent after it has handled a further stream, which need not be legal by itself."""
    requests = stream if isinstance(stream, Stream) else [Request.parse(word) for word in shlex.split(stream)]
    for request in requests:
        learns = request.task not in agent.tasks and request.instruction is not Instruction.FORGET
        if not learns and request.instruction is not Instruction.ADD:
            agent.handle(request)
            continue
        x, y = data(request.task)[:2]
        if agent.forgets != "records":
            agent.handle(request, x, y)
            continue
        add = request.instruction is Instruction.ADD
        x, y, people, records = make_records(request.task, x, y, "more" if add else "")
        left = [not any(p.covers(int(k), who, one) for p in request.parts) for k, who, one in zip(y, people, records)]
        if any(left):  # a counterfactual may leave out all that a request brought
            agent.handle(request, x, y, people=people, records=records)
    return agent


#: The people whom the records of `make_records` are about.
PEOPLE = ("ann", "bob", "cy", "dee")


def make_records(task: str, x: Any, y: Any, part: str = "") -> tuple[Any, Any, list[list[str]], list[str]]:
    """Half of some data, `part` "more" being the other half, with one or two people and an id for each record."""
    half = slice(1, None, 2) if part else slice(0, None, 2)
    numbers = range(len(y))[half]
    people = [[PEOPLE[n // 2 % 4]] + ([PEOPLE[n // 8 % 4]] if n % 3 == 0 else []) for n in numbers]
    return x[half], y[half], people, [f"{task}-{n}" for n in numbers]


@dataclass(frozen=True)
class Setup:
    """The network that a method is checked on, by name or as a factory of a module, and the shape of one input."""

    network: str | Callable[[], nn.Module] = "mlp"
    shape: tuple[int, ...] = (16,)
    settings: Mapping[str, Any] = field(default_factory=lambda: TINY)

    def made(self) -> str | nn.Module:
        """The network as an agent takes it; a factory makes the same weights each time."""
        if isinstance(self.network, str):
            return self.network
        with seeded(0, torch.device("cpu")):
            return self.network()

    def agent(self, method: type[Method], seeds: list[int] | None = None, seed: int = 0, **settings: Any) -> Agent:
        """A small agent; settings that the method or the network does not have are left out."""
        network = self.made()
        known = setting_fields(method.Settings, Blueprint.settings_class(network))
        chosen = {name: value for name, value in {**self.settings, **settings}.items() if name in known}
        return Agent(method, network, seed, seeds=seeds, **chosen)

    def restored(self, method: type[Method], state: State | bytes, progress: Any = None) -> Agent:
        """An agent that continues from a saved state."""
        module = None if isinstance(self.network, str) else self.made()
        return Agent.from_state(state, method=method, network=module, progress=progress)  # type: ignore[arg-type]

    def task(self, name: str, examples: int = 48, classes: int = 3) -> tuple[Any, Any]:
        return make_task(name, examples, classes, self.shape)

    def run(self, stream: Stream | str, method: type[Method], **options: Any) -> Agent:
        return self.continued(self.agent(method, **options), stream)

    def continued(self, agent: Agent, stream: Stream | str) -> Agent:
        return continue_stream(agent, stream, self.task)


MLP = Setup()
RESNET = Setup("resnet18", (1, 8, 8), {"width": 1, "epochs": 1, "batch_size": 24, "lr": 0.01, "weight_decay": 0.0005})


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
    refused: list[tuple[type[Error], Callable[[], object]]] = [
        (UnknownTask, lambda: agent.forget("9")),
        (UnknownTask, lambda: agent.keep("9")),
        (AlreadyLearned, lambda: agent.learn("2", x, y, temporary=True)),
        (AlreadyLearned, lambda: agent.learn("1", x, y)),
        (BadData, lambda: agent.learn("3", x[..., :3], y)),
        (BadData, lambda: agent.learn("3", np.full_like(x, np.inf), y)),
    ]
    if method.forgets not in ("tasks", "records"):
        refused.append((CannotForget, lambda: agent.forget("1")))
    _refuses(agent, refused)


def _refuses(agent: Agent, refused: list[tuple[type[Error], Callable[[], object]]]) -> None:
    """Each attempt raises its error and leaves the agent as it was."""
    before = agent.digest()
    for error, attempt in refused:
        try:
            attempt()
        except error:
            assert agent.digest() == before, f"a request refused with {error.__name__} left something behind"
        else:
            raise AssertionError(f"expected {error.__name__}")


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
            raise AssertionError(f"{request} went on after a KeyboardInterrupt")


def keeping_twice_changes_nothing(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1T 2R 1R", method)
    before = agent.digest()
    on.continued(agent, "1R 2R")
    assert agent.digest() == before


def state_survives_a_round_trip_and_resumes(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T 3T 4R", method)
    restored = on.restored(method, agent.state().to_bytes())
    assert restored.digest() == agent.digest()
    for rest in ("2R", "3F", "5T", "5F"):
        assert on.continued(restored, rest).digest() == on.continued(agent, rest).digest(), f"differs after {rest}"


def requests_continue_from_bytes_in_a_fresh_process(method: type[Method], on: Setup = MLP) -> None:
    """What a method keeps outside the state is not there in another process, so it would show."""
    stream = "1R 2T 3T 2F 4R 3R 5T 5F 6R"
    agent = on.agent(method)
    for request in stream.split():
        saved = agent.state().to_bytes()
        on.continued(agent, request)
        elsewhere = in_fresh_process(_continued, on, method, saved, request)
        assert elsewhere == agent.digest(), f"{request} differs in an agent that was rebuilt from bytes"


def _continued(on: Setup, method: type[Method], saved: bytes, request: str) -> str:
    return on.continued(on.restored(method, saved), request).digest()


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process in which nothing has happened yet but imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clpu.testing", "torch._dynamo"])  # torch.optim imports the latter when first used
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, function, arguments), daemon=True)
    try:
        with _hidden_main():
            process.start()
    except (pickle.PicklingError, AttributeError):  # something is defined in the script itself
        process.start()
    there.close()
    try:
        good, value = here.recv()
    except EOFError:
        raise AssertionError(
            "the other process ended without an answer; it must be able to import the method, so save it in a file"
        ) from None
    finally:
        process.join()
    if not good:
        raise AssertionError(f"in a fresh process: {value}")
    return value


@contextmanager
def _hidden_main() -> Iterator[None]:
    """New processes import the script that started them, and would run it again if it has no `if __name__ == …`."""
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _send(connection: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((True, function(*arguments)))
    except Exception as error:
        connection.send((False, f"{type(error).__name__}: {error}"))


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
    """For methods that are not exact: shows that the exactness check can fail, and that the trait is honest."""
    different = [
        text
        for text in FORGETFUL
        if on.run(text, method).digest() != on.run(Stream(text).counterfactual(), method).digest()
    ]
    assert different, f"{method.name} looks exact on {FORGETFUL}; set `forgets` and let it be checked"


#: Streams in which people, labels and records are forgotten; each goes on afterwards.
FORGETFUL_OF_RECORDS = [
    "1R @annF",
    "1R 2T @bobF 2R 3R",
    "1R 2R 1=17F 1A 2@cyF",
    "1T 2R 1A @deeF 1F 2=7,27F 2=17F 3R 3A",
    "1R '1#1-0,1-2F' 1@annF 1=7F 2T 2A @annF 2F",
]


def forgotten_records_leave_no_trace(method: type[Method], on: Setup = MLP) -> None:
    for text in FORGETFUL_OF_RECORDS:
        stream = Stream(text)
        actual, never = on.run(stream, method), on.run(stream.counterfactual(), method)
        assert actual.digest() == never.digest(), f"{text}: the state differs from the counterfactual's"
        assert actual.tasks == never.tasks
        for task in actual.tasks:
            x = on.task(task)[0]
            assert torch.equal(actual.logits(task, x), never.logits(task, x)), f"{text}: outputs on {task} differ"


def the_order_of_records_is_not_state(method: type[Method], on: Setup = MLP) -> None:
    """Learned at once or bit by bit, in any order, asked in between or not: the same state and the same answers."""
    x, y = on.task("1")
    x, y, people, records = make_records("1", x, y)
    at_once, turned = on.agent(method), on.agent(method)
    at_once.learn("1", x, y, people=people, records=records)
    order = np.random.default_rng(0).permutation(len(y))
    for number, some in enumerate(np.array_split(order, 5)):
        data = x[some], y[some]
        about: dict[str, Any] = {"people": [people[i] for i in some], "records": [records[i] for i in some]}
        turned.add("1", *data, **about) if number else turned.learn("1", *data, **about)
        turned.predict("1", x)  # what is derived from the state is now carried along
    assert turned.digest() == at_once.digest(), "the order in which records came is part of the state"
    assert torch.equal(turned.logits("1", x), at_once.logits("1", x)), "what was carried along differs from the sum"


def forgetting_records_is_removing_rows(method: type[Method], on: Setup = MLP) -> None:
    """A store forgets in this way without asking the method, whose code it may not have."""
    agent = on.run("1R 2T 1A", method)
    state = agent.state()
    for scope in (Scope(person="ann"), Scope("1", labels=(17,)), Scope("1", records=("1-0", "1-1"))):
        forgotten = agent.new_method().forget_records(state, scope)
        assert forgotten.digest() == state.without(**scope.keywords()).digest(), f"{scope} does more than removing rows"


def records_continue_from_bytes_in_a_fresh_process(method: type[Method], on: Setup = MLP) -> None:
    agent = on.agent(method)
    for request in ("1R", "2T", "@annF", "1A", "1=17F", "2R"):
        saved = agent.state().to_bytes()
        on.continued(agent, request)
        elsewhere = in_fresh_process(_continued, on, method, saved, request)
        assert elsewhere == agent.digest(), f"{request} differs in an agent that was rebuilt from bytes"


def refused_records_change_nothing(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T", method)
    x, y = on.task("1")
    x, y, people, records = make_records("1", x, y)
    refused: list[tuple[type[Error], Callable[[], object]]] = [
        (NothingHeld, lambda: agent.forget(person="eve")),
        (NothingHeld, lambda: agent.forget("1", labels=[7, 8])),
        (NothingHeld, lambda: agent.forget("1", records=["1-0", "1-1000"])),
        (UnknownTask, lambda: agent.forget("9", person="ann")),
        (BadRequest, lambda: agent.forget(labels=[7])),
        (BadRequest, lambda: agent.forget("1", labels=[])),
        (BadData, lambda: agent.add("1", x, y, people=people, records=records)),
        (BadData, lambda: agent.add("1", x, y, people=people[1:])),
        (BadData, lambda: agent.add("1", x, y, records=["same"] * len(y))),
        (UnknownTask, lambda: agent.add("9", x, y)),
    ]
    _refuses(agent, refused)


def one_label_alone_is_legal(method: type[Method], on: Setup = MLP) -> None:
    x, y = on.task("1")
    agent = on.agent(method)
    agent.learn("1", x[y == 7], y[y == 7], people=["ann"] * int((y == 7).sum()))
    assert agent.labels("1") == (7,)
    agent.add("1", x[y == 17], y[y == 17], people=["bob"] * int((y == 17).sum()))
    assert agent.labels("1") == (7, 17)
    agent.forget(person="ann")
    assert agent.labels("1") == (17,), "a label without records is still there"
    assert agent.show(person="bob")["1"]["records"] == int((y == 17).sum())
    agent.forget("1", labels=[17])
    assert not agent.tasks, "a task without records is still there"
    assert agent.digest() == on.agent(method).digest()


def single_records_are_refused(method: type[Method], on: Setup = MLP) -> None:
    """For methods that learn all records of a task together: a clear answer, and nothing changes."""
    agent = on.run("1R 2T", method)
    x, y = on.task("3")
    refused: list[tuple[type[Error], Callable[[], object]]] = [
        (CannotForget, lambda: agent.forget(person="ann")),
        (CannotForget, lambda: agent.forget("2", labels=[7])),
        (BadRequest, lambda: agent.add("2", x, y)),
        (BadRequest, lambda: agent.learn("3", x, y, people=["ann"] * len(y))),
    ]
    _refuses(agent, refused)


_RECORDS = (
    forgotten_records_leave_no_trace,
    the_order_of_records_is_not_state,
    forgetting_records_is_removing_rows,
    records_continue_from_bytes_in_a_fresh_process,
    refused_records_change_nothing,
    one_label_alone_is_legal,
)

_CHECKS = (
    learns_a_separable_task,
    tasks_may_differ_in_classes_and_labels,
    probabilities_sum_to_one,
    predicting_changes_nothing,
    a_refused_request_changes_nothing,
    an_interrupted_request_changes_nothing,
    keeping_twice_changes_nothing,
    state_survives_a_round_trip_and_resumes,
    requests_continue_from_bytes_in_a_fresh_process,
    nothing_is_kept_outside_the_state,
    a_request_leaves_its_state_alone,
    answers_for_a_task_come_from_its_own_leaf_and_the_shared_one,
    a_forgotten_task_is_gone_from_the_bytes,
    replicas_agree_with_single_agents,
    randomness_is_the_agents_own,
    agents_do_not_disturb_each_other,
)


def checks_for(
    method: type[Method], network: str | Callable[[], nn.Module] | None = None, shape: tuple[int, ...] = ()
) -> Iterator[Check]:
    """The checks that a method must pass, on a network by name or on the module that a function makes.

    `shape` is that of one input, of 12 numbers or more; (16,) by default, and (1, 8, 8) for the ResNet.
    """
    on = RESNET if network == "resnet18" else Setup(method.default_network if network is None else network)
    on = replace(on, shape=shape or on.shape)
    exact = (what_was_forgotten_leaves_no_trace, forgetting_is_removing_the_task)
    last = exact if method.forgets_exactly() else (what_was_forgotten_leaves_a_trace,)
    some = _RECORDS if method.forgets == "records" else (single_records_are_refused,)
    for check in (*_CHECKS, *last, *some):
        yield functools.wraps(check)(functools.partial(check, on=on))
