"""Checks of methods that forget people, labels and records, and of the refusals by those that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from clpu.errors import BadData, BadRequest, CannotForget, NothingHeld, UnknownTask
from clpu.methods import Method
from clpu.requests import Scope, Stream
from clpu.testing.processes import in_fresh_process
from clpu.testing.setups import MLP, Refused, Setup, check_refused, make_records
from clpu.testing.states import continue_from_bytes

#: Streams in which people, labels and records are forgotten; each continues afterwards.
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
    """Learned at once or in parts, in any order, asked in between or not: the same state and the same answers."""
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
        elsewhere = in_fresh_process(continue_from_bytes, on, method, saved, request)
        assert elsewhere == agent.digest(), f"{request} differs in an agent that was rebuilt from bytes"


def refused_records_change_nothing(method: type[Method], on: Setup = MLP) -> None:
    agent = on.run("1R 2T", method)
    x, y = on.task("1")
    x, y, people, records = make_records("1", x, y)
    refused: Refused = [
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
    check_refused(agent, refused)


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
    refused: Refused = [
        (CannotForget, lambda: agent.forget(person="ann")),
        (CannotForget, lambda: agent.forget("2", labels=[7])),
        (BadRequest, lambda: agent.add("2", x, y)),
        (BadRequest, lambda: agent.learn("3", x, y, people=["ann"] * len(y))),
    ]
    check_refused(agent, refused)


#: For methods that forget records.
CHECKS = (
    forgotten_records_leave_no_trace,
    the_order_of_records_is_not_state,
    forgetting_records_is_removing_rows,
    records_continue_from_bytes_in_a_fresh_process,
    refused_records_change_nothing,
    one_label_alone_is_legal,
)
