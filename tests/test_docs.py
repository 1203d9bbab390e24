"""The code in the documentation runs."""

import re
from pathlib import Path

import pytest

import clpu
from clpu.methods import METHODS
from clpu.testing import checks_for

ROOT = Path(__file__).parent.parent


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


@pytest.fixture
def registry():
    """Methods that a page registers are gone afterwards."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.usefixtures("registry")
def test_the_method_on_the_page_is_small_and_passes_every_check():
    definition, use = blocks("docs/adding-a-method.md")
    assert len(definition.splitlines()) < 100
    names = {}
    exec(definition, names)
    method = names["CLPUER"]
    assert clpu.METHODS["clpu-er"] is method
    for check in checks_for(method):
        check(method)
    exec(use.split("for check")[0], names)
    assert names["agent"].settings["memory"] == 50


@pytest.mark.usefixtures("registry")
def test_the_checks_catch_a_method_that_breaks_its_promise():
    """A subtle leak: draws that depend on how many tasks are alive, forgotten ones included."""
    definition = blocks("docs/adding-a-method.md")[0]
    leak = definition.replace('task, "rehearsal")', 'task, f"rehearsal {len(self.memories)}")')
    assert leak != definition
    names = {}
    exec(leak.replace('"clpu-er"', '"leaky-er"'), names)
    failed = []
    for check in checks_for(names["CLPUER"]):
        try:
            check(names["CLPUER"])
        except AssertionError:
            failed.append(check.__name__)
    assert failed == ["what_was_forgotten_leaves_no_trace"]


def test_the_readmes_python_runs_as_it_stands():
    names = {}
    [code] = blocks("README.md")
    exec(code, names)
    assert names["agent"].tasks == {"digits": "R", "ward": "R"}


@pytest.mark.parametrize("audit", sorted(path.parent.name for path in ROOT.glob("docs/audits/*/table.md")))
def test_the_tables_of_the_audit_page_are_those_of_the_audits(audit):
    page = (ROOT / "docs/audit.md").read_text()
    rows = [line for line in (ROOT / f"docs/audits/{audit}/table.md").read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 9
    assert "\n".join(rows) in page
