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
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from clpu.methods import Method
from clpu.testing.behaviour import (
    a_refused_request_changes_nothing,
    agents_do_not_disturb_each_other,
    an_interrupted_request_changes_nothing,
    keeping_twice_changes_nothing,
    learns_a_separable_task,
    predicting_changes_nothing,
    probabilities_sum_to_one,
    randomness_is_the_agents_own,
    replicas_agree_with_single_agents,
    tasks_may_differ_in_classes_and_labels,
)
from clpu.testing.forgetting import (
    a_forgotten_task_is_gone_from_the_bytes,
    forgetting_is_removing_the_task,
    what_was_forgotten_leaves_a_trace,
    what_was_forgotten_leaves_no_trace,
)
from clpu.testing.processes import in_fresh_process
from clpu.testing.records import (
    FORGETFUL_OF_RECORDS,
    forgetting_records_is_removing_rows,
    forgotten_records_leave_no_trace,
    one_label_alone_is_legal,
    records_continue_from_bytes_in_a_fresh_process,
    refused_records_change_nothing,
    single_records_are_refused,
    the_order_of_records_is_not_state,
)
from clpu.testing.setups import (
    FORGETFUL,
    FORGETFUL_OF_ALL,
    MLP,
    PEOPLE,
    RESNET,
    TINY,
    Check,
    Setup,
    continue_stream,
    forgetful,
    make_records,
    make_task,
    run_stream,
    tiny,
)
from clpu.testing.states import (
    a_request_leaves_its_state_alone,
    answers_for_a_task_come_from_its_own_leaf_and_the_shared_one,
    nothing_is_kept_outside_the_state,
    requests_continue_from_bytes_in_a_fresh_process,
    state_survives_a_round_trip_and_resumes,
)

__all__ = [
    "FORGETFUL",
    "FORGETFUL_OF_ALL",
    "FORGETFUL_OF_RECORDS",
    "MLP",
    "PEOPLE",
    "RESNET",
    "TINY",
    "Check",
    "Setup",
    "checks_for",
    "continue_stream",
    "forgetful",
    "in_fresh_process",
    "make_records",
    "make_task",
    "run_stream",
    "tiny",
]

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
