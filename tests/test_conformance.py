"""Every registered method passes every check that its traits call for."""

import pytest

from clpu.methods import METHODS
from clpu.testing import an_interrupted_request_changes_nothing, checks_for


@pytest.mark.parametrize(
    ("method", "check"),
    [pytest.param(m, c, id=f"{m.name}-{c.__name__}") for m in METHODS.values() for c in checks_for(m)],
)
def test_method_conforms(method, check):
    check(method)


class ForgetsInPlace(METHODS["ind"]):
    """Breaks the rule that what a state holds is never changed in place, in a request that takes no steps."""

    name = "forgets-in-place"

    def forget(self, task):
        self.isolated["1"].heads["1"].weight.zero_()


def test_an_interruption_is_checked_in_requests_without_steps_too():
    with pytest.raises(AssertionError, match="3F, stopped half-way, left something behind"):
        an_interrupted_request_changes_nothing(ForgetsInPlace)


def test_there_are_nine_methods_in_the_papers_order():
    paper = ["ind", "seq", "ewc", "er", "lwf", "lsf", "der++", "clpu-der++-scratch", "clpu-der++"]
    assert list(METHODS)[:9] == paper
    assert [m for m in paper if METHODS[m].exact] == ["ind", "clpu-der++-scratch", "clpu-der++"]
