"""Every shell and Python block of README.md, REPRODUCTION.md and docs/ works as pasted, in the order of its page.

A page is one script, run by `sh -e` in an empty folder with the environment's programs on PATH. A Python block is a
program on its own; if it begins with a comment such as `# mine.py`, it is saved under that name as well. What is too
long, or needs what a test must not touch, is in `INSTEAD`, with a stand-in and a reason; a command that is neither
there nor works fails the test.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from clpu.cli import app

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "REPRODUCTION.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
#: Fences that nobody pastes into a shell.
SHOWN_ONLY = {"text", "bibtex"}

NOTHING = ":"
SMALL = " --profile smoke --seeds 2 --requests '1R 2T 2F' --workers 1"
TRAINS = "trains for {}; the stand-in trains for seconds"
DOWNLOADS = "downloads a data set"
NEEDS_MNIST = "needs MNIST, and trains for minutes"
NEEDS_PEOPLE = "needs data of people, which a test does not download"
NEEDS_RAY = "needs Ray, which is optional; see `make test-ray`"
NEEDS_GPU = "needs CIFAR and a GPU"

#: Commands that are not run as written: what is run instead, and why.
INSTEAD = {
    "make demo": (NOTHING, "builds the environment; CI and every user start with it"),
    "make test": (NOTHING, "would run this test again"),
    ". .venv/bin/activate": (NOTHING, "the test puts its environment on PATH"),
    "clpu bench": (
        "clpu bench --methods er --out runs/rot-digits-small" + SMALL,
        TRAINS.format("half a minute"),
    ),
    "clpu bench --methods er,der++ --set memory=500 --out runs/memory-500": (
        "clpu bench --methods er,der++ --set memory=500 --out runs/memory-500" + SMALL,
        TRAINS.format("ten seconds"),
    ),
    'clpu bench --requests "1R 2T 3T 2F 3F" --seeds 10 --out runs/ten-seeds': (
        "clpu bench --methods er --out runs/ten-seeds" + SMALL,
        TRAINS.format("a minute"),
    ),
    "clpu bench --load clpu_er.py --methods clpu-er,der++,clpu-der++ --out runs/clpu-er": (
        "clpu bench --load clpu_er.py --methods clpu-er --out runs/clpu-er" + SMALL,
        TRAINS.format("ten seconds"),
    ),
    "clpu audit": (NOTHING, "minutes; tests/audit has the command in small"),
    "clpu audit --methods clpu-der++ --store --out audits/store": (
        NOTHING,
        "a minute; tests/audit has the command in small",
    ),
    "clpu audit --load clpu_er.py --methods clpu-er --out audits/clpu-er": (
        NOTHING,
        "a minute; test_docs.py audits a method from a file in small",
    ),
    "clpu audit perm-mnist --set lsf.lr=0.02": (NOTHING, NEEDS_MNIST),
    "clpu audit rot-mnist --set lsf.lr=0.02": (NOTHING, NEEDS_MNIST),
    "clpu bench perm-mnist --profile paper": (NOTHING, NEEDS_MNIST),
    "clpu bench people-digits": ("clpu bench people-digits --profile smoke --set features=50 --workers 1", "a minute"),
    "clpu bases get minilm": (NOTHING, DOWNLOADS),
    "clpu bench people-hapt": (NOTHING, NEEDS_PEOPLE),
    "clpu bench mail": (NOTHING, NEEDS_PEOPLE),
    "clpu bench mail --set network=base:words --out runs/mail-words": (NOTHING, NEEDS_PEOPLE),
    "clpu audit people-digits": (NOTHING, "minutes; tests/audit has the command in small"),
    "clpu audit people-hapt --store": (NOTHING, NEEDS_PEOPLE),
    "clpu data get hapt spamassassin": (NOTHING, DOWNLOADS),
    "clpu data get mnist": (NOTHING, DOWNLOADS),
    "clpu data get mnist fashion cifar10": (NOTHING, DOWNLOADS),
    "clpu data get cifar100 --from ~/downloads": (NOTHING, DOWNLOADS),
    "clpu data get cifar10 cifar100": (NOTHING, DOWNLOADS),
    "clpu bench split-cifar10 --profile paper --device cuda": (NOTHING, NEEDS_GPU),
    "clpu bench split-cifar100 --profile paper --device cuda": (NOTHING, NEEDS_GPU),
    "clpu bench split-cifar10 --profile medium --methods clpu-der++-scratch,er,lwf,ewc,lsf --nice --mix-machines "
    "--out reproduction/split-cifar10-medium": (NOTHING, "needs CIFAR-10, and trains for hours"),
    "pip install -e '.[ray]'": (NOTHING, NEEDS_RAY),
    "ray start --head": (NOTHING, NEEDS_RAY),
    "ray start --address=HEAD:6379": (NOTHING, NEEDS_RAY),
    "clpu bench perm-mnist --profile paper --engine ray --address auto --workers 32": (NOTHING, NEEDS_RAY),
}
#: Python blocks that a different test runs: the first line that is theirs alone.
RUN_ELSEWHERE = {"import clpu.audit": "tests/audit/test_audit.py, which looks at its verdict"}


def source(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each fenced block of a page."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", source(page), re.DOTALL | re.MULTILINE)


def command(line: str) -> str:
    """A line of a shell block without its comment."""
    return re.sub(r"\s+#.*", "", line).strip()


def commands() -> Iterator[str]:
    """The lines of all shell blocks that are commands (or lines of a program inside one)."""
    for page in PAGES:
        for language, text in blocks(page):
            if language == "sh":
                yield from map(command, text.splitlines())


def script(page: str) -> str:
    """One shell script that does what a reader does who pastes a page's blocks one after the other."""
    parts = []
    for language, text in blocks(page):
        if language == "sh":
            parts += [INSTEAD.get(command(line), (line,))[0] for line in text.splitlines()]
        elif language == "python" and text.splitlines()[0] not in RUN_ELSEWHERE:
            named = re.match(r"# (\w+\.py)\n", text)
            name = named[1] if named else "pasted.py"
            parts += [f"cat > {name} <<'END OF BLOCK'\n{text}END OF BLOCK", f"python {name}"]
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("page", [page for page in PAGES if script(page).replace(NOTHING, "").strip()])
def test_a_page_works_as_pasted(page: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLPU_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["CLPU_CACHE"] = str(tmp_path / "cache")
    pasted, here = tmp_path / "pasted.sh", tmp_path / "here"
    pasted.write_text(script(page), encoding="utf-8")
    here.mkdir()
    ran = subprocess.run(
        ["sh", "-ex", pasted],
        cwd=here,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for promised in re.findall(r"^ *print\(.*\)  # prints (.*)$", source(page), re.MULTILINE):
        assert promised in ran.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    assert {language for language, _ in blocks(page)} <= {"sh", "python", *SHOWN_ONLY}
    assert source(page).count("```") == 2 * len(blocks(page))  # none is indented, and so overlooked


def test_nothing_is_listed_that_no_page_shows() -> None:
    assert set(INSTEAD) <= set(commands())
    opening = {text.splitlines()[0] for page in PAGES for language, text in blocks(page) if language == "python"}
    assert set(RUN_ELSEWHERE) <= opening


@pytest.mark.parametrize("line", [line for line in INSTEAD if line.startswith("clpu ")])
def test_a_command_that_is_not_run_has_options_that_exist(line: str) -> None:
    _, *words = shlex.split(line)
    found = typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    found.make_context(line, words)  # parses, and runs nothing


def test_targets_and_extras_that_are_not_run_exist() -> None:
    makefile, project = source("Makefile"), source("pyproject.toml")
    for line in INSTEAD:
        if line.startswith("make "):
            assert re.search(rf"^{line.removeprefix('make ')}:", makefile, re.MULTILINE)
    assert re.search(r"^ray = \[", project, re.MULTILINE)


def test_no_two_commands_of_any_pages_write_to_the_same_place() -> None:
    """Pages are run in separate folders, but a reader pastes them into one."""
    places = [name for line in commands() for name in re.findall(r"(?:--out|--receipt|clpu init) (\S+)", line)]
    assert len(places) > 5
    assert len(places) == len(set(places))
