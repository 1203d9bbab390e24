"""Every registered method passes every check that its traits call for."""

import pytest

from clpu.methods import METHODS
from clpu.testing import checks_for


@pytest.mark.parametrize(
    ("method", "check"),
    [pytest.param(m, c, id=f"{m.name}-{c.__name__}") for m in METHODS.values() for c in checks_for(m)],
)
def test_method_conforms(method, check):
    check(method)


def test_there_are_nine_methods_in_the_papers_order():
    paper = ["ind", "seq", "ewc", "er", "lwf", "lsf", "der++", "clpu-der++-scratch", "clpu-der++"]
    assert list(METHODS)[:9] == paper
    assert [m for m in paper if METHODS[m].exact] == ["ind", "clpu-der++-scratch", "clpu-der++"]
