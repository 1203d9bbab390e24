"""Every registered method passes every check that its traits call for."""

import pytest

from clpu.methods import METHODS
from clpu.testing import checks_for
from clpu.testing.behaviour import an_interrupted_request_changes_nothing
from clpu.testing.forgetting import forgetting_is_removing_the_task
from clpu.testing.states import a_request_leaves_its_state_alone


@pytest.mark.parametrize(
    ("method", "check"),
    [pytest.param(m, c, id=f"{m.name}-{c.__name__}") for m in METHODS.values() for c in checks_for(m)],
)
def test_method_conforms(method, check):
    check(method)


class ForgetsInPlace(METHODS["ind"]):
    """Breaks the rule that what a state holds is never changed in place, in a request that takes no steps."""

    name = "forgets-in-place"

    def forget(self, state, task):
        state.tasks["1"].own.tensors["isolated/weight"].zero_()
        return state.without(task)


def test_an_interruption_is_checked_in_requests_without_steps_too():
    with pytest.raises(AssertionError, match="3F, stopped half-way, left something behind"):
        an_interrupted_request_changes_nothing(ForgetsInPlace)
    with pytest.raises(AssertionError, match="was changed in place"):
        a_request_leaves_its_state_alone(ForgetsInPlace)


class ForgetsTooMuch(METHODS["ind"]):
    """Says that it is exact, and does more than removing the task, which a store without its code would not do."""

    name = "forgets-too-much"

    def forget(self, state, task):
        return state.without(task).without("4")


def test_an_exact_method_forgets_by_removing_the_task():
    with pytest.raises(AssertionError, match="does more than removing it"):
        forgetting_is_removing_the_task(ForgetsTooMuch)


def test_there_are_nine_methods_in_the_papers_order():
    paper = ["ind", "seq", "ewc", "er", "lwf", "lsf", "der++", "clpu-der++-scratch", "clpu-der++"]
    assert list(METHODS)[:9] == paper
    exact = {m: METHODS[m].forgets for m in paper if METHODS[m].forgets_exactly()}
    assert exact == {"ind": "tasks", "clpu-der++-scratch": "temporary", "clpu-der++": "temporary"}
