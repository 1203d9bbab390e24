"""The program: help, the demonstration, errors in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def clpu(*arguments):
    code = "import sys; from clpu.cli import main; sys.argv[0] = 'clpu'; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def test_help_names_every_command_and_imports_no_torch():
    shown = clpu("--help")
    assert shown.returncode == 0
    for command in ("demo", "methods", "data", "audit"):
        assert command in shown.stdout
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import clpu.cli"], capture_output=True, text=True, timeout=60
    )
    assert loaded.returncode == 0
    assert not re.search(r"\| +(torch|numpy|sklearn)$", loaded.stderr, re.M)


def test_importing_clpu_imports_no_torch():
    code = "import sys, clpu; clpu.Stream('1T 1F'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_demonstration_shows_accuracies_and_two_equal_digests_and_no_colours_when_piped():
    shown = clpu("demo", "--requests", "1T 2R 1F")
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert re.search(r"^2R +learn task 2 permanently +\d\d\.\d +\d\d\.\d$", shown.stdout, re.M)
    assert re.search(r"^1F +forget task 1 +· +\d\d\.\d$", shown.stdout, re.M)
    first, second = re.findall(r"^(?:stream|counterfactual) +([0-9a-f]{64})$", shown.stdout, re.M)
    assert first == second
    assert "Identical, bit for bit" in shown.stdout


def test_the_demonstration_shows_that_another_method_leaves_a_trace():
    shown = clpu("demo", "--requests", "1T 1F", "--method", "seq")
    assert shown.returncode == 0
    assert "Different" in shown.stdout


def test_the_demonstration_takes_a_method_from_a_file_and_one_without_epochs():
    shown = clpu("demo", "--requests", "1T 1F", "--load", str(EXAMPLES / "ridge.py"), "--method", "ridge-head")
    assert shown.returncode == 0, shown.stderr
    assert "Identical, bit for bit" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--requests", "1T 1X"), "BadRequest"),
        (("demo", "--requests", "9T"), "tasks 1, 2, 3, 4, 5"),
        (("demo", "--method", "gem"), "clpu-der++"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(arguments, says):
    shown = clpu(*arguments)
    assert shown.returncode == 1
    assert says in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
    assert "Traceback" not in shown.stderr


def test_the_methods_are_listed_with_their_settings():
    shown = clpu("methods")
    assert shown.returncode == 0
    for word in ("clpu-der++-scratch", "exact", "approximate", "replay_batch_size"):
        assert word in shown.stdout


def test_the_package_offers_its_parts_when_they_are_asked_for():
    code = (
        "import clpu, clpu.store as store; assert clpu.open is store.open; assert callable(clpu.audit); clpu.data.tasks"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
