"""What the pages say about methods and audits is true; test_docs_as_pasted.py runs their code."""

import hashlib
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clpu.methods import METHODS
from clpu.results import read_run
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


def test_the_method_on_the_page_is_small():
    assert len(blocks("docs/adding-a-method.md")[0].splitlines()) < 100


@pytest.mark.usefixtures("registry")
def test_the_checks_catch_a_method_that_breaks_its_promise(tmp_path, monkeypatch):
    """A subtle leak: draws that depend on how many tasks are alive, forgotten ones included."""
    definition = blocks("docs/adding-a-method.md")[0]
    leak = definition.replace('task, "rehearsal")', 'task, f"rehearsal {len(state.tasks)}")')
    assert leak != definition
    (tmp_path / "leaky_er.py").write_text(leak.replace('"clpu-er"', '"leaky-er"'))
    monkeypatch.syspath_prepend(tmp_path)
    method = importlib.import_module("leaky_er").CLPUER
    failed = []
    for check in checks_for(method):
        try:
            check(method)
        except AssertionError:
            failed.append(check.__name__)
    assert failed == ["what_was_forgotten_leaves_no_trace"]


AUDITS = sorted(path.parent.name for path in ROOT.glob("docs/audits/*/table.md"))


def audit_rows(audit):
    text = (ROOT / f"docs/audits/{audit}/table.md").read_text()
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("audit", AUDITS)
def test_the_audit_page_links_each_audit_and_its_table_has_one_row_per_method(audit):
    assert f"(audits/{audit}" in (ROOT / "docs/audit.md").read_text()
    methods = json.loads((ROOT / f"docs/audits/{audit}/run.json").read_text())["methods"]
    assert len(audit_rows(audit)) == 2 + len(methods)
    assert methods == ["ridge"] if audit.startswith("people-") else len(methods) >= 9


def test_the_table_of_the_audit_page_is_that_of_the_default_audit():
    assert "\n".join(audit_rows("rot-digits")) in (ROOT / "docs/audit.md").read_text()


def clpu_command(folder, *arguments):
    code = "from clpu.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, cwd=folder
    )


def test_the_method_on_the_page_runs_in_the_benchmark_from_its_file(tmp_path):
    """In worker processes too; and a file that was changed does not go on with the run of another."""
    own = tmp_path / "clpu_er.py"
    own.write_text(blocks("docs/adding-a-method.md")[0])
    command = ("bench", "--profile", "smoke", "--load", "clpu_er.py", "--seeds", "2", "--requests", "1R 2T 2F")
    command += ("--methods", "er,clpu-er", "--workers", "2", "--out", "run")
    ran = clpu_command(tmp_path, *command)
    assert ran.returncode == 0, ran.stderr
    rows = {line.split()[0]: line.split() for line in ran.stdout.splitlines() if line}
    assert rows["CLPU-ER"]
    versions = read_run(tmp_path / "run").recipe.versions
    assert versions["clpu-er (SHA-256)"] == hashlib.sha256(own.read_bytes()).hexdigest()
    assert "er (SHA-256)" not in versions
    own.write_text(own.read_text() + "\n# another thought\n")
    changed = clpu_command(tmp_path, *command)
    assert changed.returncode == 1
    assert "version of clpu-er (SHA-256)" in changed.stderr
    assert "clpu-er" in clpu_command(tmp_path, "methods", "--load", "clpu_er.py").stdout
