"""What people see: text from outside is literal, every encoding will do, and a failing terminal costs nothing."""

import ast
import io
import os
import re
import subprocess
import sys
import unicodedata
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.table import Table
from typer.testing import CliRunner

from clpu import store, terminal
from clpu.cli import app
from clpu.data import cli as data_cli
from clpu.data.fetch import FetchProgress
from clpu.methods import METHODS, plugins
from clpu.runs.display import Display
from clpu.runs.engine import Event
from clpu.runs.jobs import Job
from clpu.store.receipt import Receipt
from clpu.store.sealing import new_key

ENCODINGS = ("utf-8", "ascii", "latin-1", "cp1252")
#: A task's name may hold all of this.
TASK = "[/] [bold]×–é"
#: A path may hold this as well: escape sequences, a new line, a bidi override, C1, a byte that is not UTF-8.
PATH = "p[bold]\x1b[31m\n\x7f\x9b\u202e×\udcff"
LITERAL_PATH = r"p[bold]\x1b[31m\n\x7f\x9b\u202e"
TINY = {"epochs": 1, "hidden": (4,), "memory": 4}
BENCH = ("bench", "--profile", "smoke", "--methods", "seq,clpu-der++", "--seeds", "2", "--requests", "1R 2T 2F")
AUDIT = ("audit", "--profile", "smoke", "--methods", "seq", "--seeds", "4", "--requests", "1T 1F", "--set", "train=100")


def call(*arguments, encoding="utf-8"):
    return CliRunner(charset=encoding).invoke(app, [str(argument) for argument in arguments])


def shown(result):
    """What was printed, if it is safe and readable."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for character in result.output:
        assert character == "\n" or character == " " or character.isprintable(), f"U+{ord(character):04X}"
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stores, data and finished runs, with names that mean harm."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 4)).astype(np.float32), np.arange(20) % 2
    np.savez(folder / "data.npz", x=x, y=y)
    with store.create(folder / PATH, **TINY) as agent:
        agent.learn(TASK, x, y, temporary=True)
    with store.create(folder / "other", **TINY) as agent:
        agent.learn("t", x, y, temporary=True)
        said = agent.forget_with_receipt("t").statement
    receipt = Receipt.sign(new_key(), {**said, "reason": "task\x1b[31m: [/]\u202e×"})
    (folder / "receipt.json").write_text(receipt.to_json(), encoding="utf-8")
    (folder / PATH / "stray\x1b[2J\n[b]").touch()
    for name in ("a\x1b[31m[", "b\u2028"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (2, 2), 100 * number).save(folder / "images" / name / f"{number}.png")
    (folder / "mine.py").write_text(
        'import clpu\n@clpu.register\nclass Mine(clpu.METHODS["seq"]):\n'
        '    """Has \\x1b[31m, [/] and ×."""\n    name = "[bold]mine\\x1b[0m"\n',
        encoding="utf-8",
    )
    for command in (BENCH, AUDIT):
        done = call(*command, "--workers", "1", "--out", folder / f"{command[0]} {PATH}")
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def registry():
    """Methods that a file registers are gone afterwards."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
    plugins.LOADED.clear()
    plugins.CHECKSUMS.clear()


@given(st.text())
def test_escaped_text_is_one_line_without_control_characters(text):
    escaped = terminal.escape(text)
    assert not {unicodedata.category(c) for c in escaped} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(escaped.splitlines()) <= 1


@given(st.text(st.characters(categories=("L", "M", "N", "P", "S", "Zs"))))
def test_plain_text_is_shown_as_it_is(text):
    assert terminal.escape(text) == text


@given(st.text(), st.sampled_from(ENCODINGS))
def test_fitted_text_can_be_encoded_and_is_unchanged_where_it_could_be(text, encoding):
    fitted = terminal.fit(text, encoding)
    fitted.encode(encoding)
    if text == text.encode(encoding, "ignore").decode(encoding):
        assert fitted == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("status", "{store}"), r"[/] [bold]"),
        (("verify", "{store}"), r"note: stray\x1b[2J\n[b] is not a file of the store"),
        (("verify-receipt", "{folder}/receipt.json"), r"task\x1b[31m: [/]\u202e"),
        (("predict", "{store}", TASK, "--data", "{folder}/data.npz", "--out", "{no}/out.csv"), LITERAL_PATH),
        (("learn", "{store}", "new", "--data", "{no}.npz"), LITERAL_PATH),
        (("forget", "{store}", TASK, "--receipt", "{no}/receipt.json"), LITERAL_PATH),
        (("keep", "{no}", "task"), LITERAL_PATH),
        (("init", "{store}"), LITERAL_PATH),
        (("data", "get", "mnist", "--offline", "--from", "{no}"), LITERAL_PATH),
        (("data", "verify"), LITERAL_PATH),
        (("data", "list"), LITERAL_PATH),
        (("data", "list", "--json"), '"name": "mnist"'),
        (("report", "{bench}"), LITERAL_PATH),
        (("report", "{no}"), LITERAL_PATH),
        ((*BENCH, "--out", "{bench}"), LITERAL_PATH),
        ((*AUDIT, "--out", "{audit}"), LITERAL_PATH),
        (("demo", "--requests", "1T", "--method", "seq"), "learn task 1 temporarily"),
        (("--help",), "Benchmark methods"),
        (("bench", "--help"), "Benchmark methods"),
        (("status", "a", "b\u202e[/]"), r"(b\u202e[/])"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_hostile_text_is_literal_in_every_encoding(folder, monkeypatch, tmp_path, arguments, says):
    monkeypatch.setenv("CLPU_CACHE", str(tmp_path / PATH))
    (tmp_path / PATH / "data").mkdir(parents=True)
    (tmp_path / PATH / "data" / "mnist").touch()  # in the way
    places = {name: folder / f"{name} {PATH}" for name in ("bench", "audit", "no")} | {"store": folder / PATH}
    for encoding in ENCODINGS:
        result = call(*(text.format(folder=folder, **places) for text in arguments), encoding=encoding)
        assert says in re.sub(r"[\s|│]+", " ", shown(result)), encoding


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_loaded_methods_name_and_description_are_literal(folder, encoding):
    output = shown(call("methods", "--load", folder / "mine.py", encoding=encoding))
    assert r"[bold]mine\x1b[0m" in output
    assert r"Has \x1b[31m, [/] and" in output


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_class_names_and_the_receipts_path_are_literal(folder, tmp_path, encoding):
    call("init", tmp_path / "store", "--epochs", "1", "--set", "hidden=4", "--memory", "4")
    labels = np.repeat(["fine", "good"], 2)
    np.savez(tmp_path / "fine.npz", x=np.zeros((4, 2, 2), np.uint8), y=labels)
    call("learn", tmp_path / "store", "p", "--data", tmp_path / "fine.npz", encoding=encoding)
    tested = call("status", tmp_path / "store", "--test", f"p={folder / 'images'}", encoding=encoding)
    assert r"a\x1b[31m[" in shown(tested), "an unseen class is named"
    assert r"b\u2028" in shown(tested)
    learned = call("learn", tmp_path / "store", "t", "--data", folder / "images", "--temporary", encoding=encoding)
    assert "labels" not in shown(learned), "a log would keep them, and forgetting does not reach it"
    forgotten = call("forget", tmp_path / "store", "t", "--receipt", tmp_path / PATH, encoding=encoding)
    assert f"the receipt is in {tmp_path}/{LITERAL_PATH}" in shown(forgotten)


def test_a_table_stays_aligned_where_signs_are_replaced(folder):
    lines = shown(call("report", folder / f"bench {PATH}", encoding="ascii")).splitlines()
    rows = [line for line in lines if "|" in line or "-+-" in line]
    assert len(rows) == 4
    assert "+/-" in rows[2]
    assert len({len(row) for row in rows}) == 1


class Screen(io.TextIOWrapper):
    """A terminal of some encoding."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)

    def isatty(self):
        return True

    def drawn(self):
        return self.buffer.getvalue().decode(self.encoding)


def test_a_string_in_a_table_is_replaced_before_the_layout(monkeypatch):
    screen = Screen("ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    table = Table("a", "b")
    table.add_row("1 ± 2", "x")
    table.add_row("3", "y")
    terminal.console().print(table)
    lines = re.sub(r"\x1b\[[\d;]*m", "", screen.drawn()).splitlines()
    assert "1 +/- 2" in lines[3]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_progress_bars_are_literal_and_can_be_drawn(monkeypatch, encoding):
    screen = Screen(encoding)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    job = Job("[/]m\u202e", "actual", "'[/]x'T", (0, 1), "mlp", {}, (3,))
    with Display([job], terminal.console(error=True)) as display:
        display(Event("step", job.name, 1, "learn", 50, 100))
        display.bars.refresh()
        display(Event("failed", job.name, reason="[/] \x1b[2J"))
    with data_cli._shown() as show:
        show(FetchProgress("[/]\x1b[2J", "fetching", 1, 2))
        show(FetchProgress("[/]\x1b[2J", "failed", failed=True))
    drawn = screen.drawn()
    assert r"[/]m\u202e actual" in drawn
    assert r"[/] \x1b[2J" in drawn
    assert r"[/]\x1b[2J: failed" in drawn
    assert "\x1b[2J" not in drawn
    longest = max(len(line) for line in re.sub(r"\x1b\[[\d;?]*\w", "", drawn).splitlines() if "%" in line)
    assert longest <= 60  # a longer line would wrap, and the next one be drawn in the wrong place


@contextmanager
def broken(name, how):
    """A standard stream that is closed, or goes where nothing can be written."""
    with Path("/dev/full").open("w") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, name, full if how == "full" else None)
        yield


def outcome(*arguments):
    """The exit code of the program in this process, with the streams as they are."""
    with pytest.raises(SystemExit) as ended:
        app([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def own(folder, tmp_path):
    """A store of the test's own, with a temporary task."""
    with np.load(folder / "data.npz") as data, store.create(tmp_path / "own", **TINY) as agent:
        agent.learn("old", data["x"], data["y"], temporary=True)
    return tmp_path / "own"


def tasks(path):
    with store.open(path, read_only=True) as agent:
        return agent.tasks


@pytest.mark.parametrize("how", ["full", "closed"])
@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("learn", "{own}", "new", "--data", "{folder}/data.npz"), {"old": "T", "new": "R"}),
        (("forget", "{own}", "old"), {}),
        (("keep", "{own}", "old"), {"old": "R"}),
        (("status", "{own}"), {"old": "T"}),
    ],
)
def test_what_is_saved_and_could_not_be_printed_has_its_own_exit_code(folder, own, capsys, arguments, left, how):
    with broken("stdout", how):
        assert outcome(*(a.format(own=own, folder=folder) for a in arguments)) == terminal.UNPRINTED
    assert re.fullmatch("error: done and saved, but the output could not be printed: .+\n", capsys.readouterr().err)
    assert tasks(own) == left


@pytest.mark.parametrize("how", ["full", "closed"])
def test_saved_is_told_from_not_saved_by_exit_code_and_message(folder, own, capsys, how):
    learn = ("learn", own, "new", "--data", folder / "data.npz", "--temporary")
    with broken("stdout", how):
        assert [outcome(*learn), outcome(*learn)] == [terminal.UNPRINTED, 1]
    saved, refused = capsys.readouterr().err.splitlines()
    assert saved.startswith("error: done and saved, but ")
    assert refused.startswith("error: AlreadyLearned: ")


@pytest.mark.parametrize("how", ["full", "closed"])
def test_a_benchmark_is_complete_without_standard_output(tmp_path, capsys, how):
    with broken("stdout", how):
        assert outcome(*BENCH, "--workers", "1", "--out", tmp_path / "run") == terminal.UNPRINTED
    assert (tmp_path / "run" / "report.html").exists()
    assert "error: done and saved, but" in capsys.readouterr().err.splitlines()[-1]


def test_a_failing_standard_error_loses_nothing(folder, own, tmp_path):
    for how in ("full", "closed"):
        with broken("stderr", how):
            assert outcome("learn", own, how, "--data", folder / "data.npz") == 0
            assert outcome("learn", own, how, "--data", folder / "data.npz") == 1
            assert outcome(*BENCH, "--workers", "1", "--out", tmp_path / how) == 0
    assert tasks(own) == {"old": "T", "full": "R", "closed": "R"}


def program(redirections, *arguments, **environment):
    """The program in a separate process, started by a shell with these redirections."""
    code = "from clpu.cli import main; main()"
    command = ["bash", "-c", f'"$@" {redirections}', "bash", sys.executable, "-c", code, *map(str, arguments)]
    buffered = {"PYTHONUNBUFFERED": ""}  # as users have it: what fails, fails late
    return subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, **buffered, **environment})


def test_a_process_with_every_stream_closed_saves_and_says_so_by_its_exit_code(folder, own):
    ended = program(">&- 2>&- <&-", "learn", own, "new", "--data", folder / "data.npz", "--temporary")
    assert ended.returncode == terminal.UNPRINTED
    assert store.verify(own).good
    assert tasks(own) == {"old": "T", "new": "T"}


def test_no_file_gets_the_number_of_a_closed_stream():
    code = (
        "import os, sys, typer; from clpu.terminal import Program; app = typer.Typer(cls=Program);"
        "app.callback(invoke_without_command=True)(lambda: sys.exit(os.open('/dev/null', os.O_RDONLY))); app([])"
    )
    assert subprocess.run(["bash", "-c", '"$@" >&- <&-', "bash", sys.executable, "-c", code]).returncode > 2


def test_a_process_whose_output_is_full_prints_one_line(own):
    ended = program(">/dev/full", "status", own)
    assert ended.returncode == terminal.UNPRINTED
    assert ended.stderr.count(b"\n") == 1
    assert b"No space left on device" in ended.stderr


def test_a_reader_who_stops_reading_is_no_failure(own):
    ended = program("| true; exit ${PIPESTATUS[0]}", "verify", own)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_files_are_utf8_whatever_the_locale(folder, tmp_path):
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = program("", "report", folder / f"bench {PATH}", "--out", tmp_path, **c_locale)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.isascii()
    assert "±" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "−" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_interrupted_command_says_so(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("clpu.cli.methods"), "show", interrupted)
    result = call("methods")
    assert (result.exit_code, result.output) == (130, "interrupted\n")


def test_one_module_prints():
    """Whatever else prints would not escape, would not fit the encoding, or would fail with the terminal."""
    source = Path(terminal.__file__).parent
    for path in set(source.rglob("*.py")) - {Path(terminal.__file__)}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "Console", "typer.echo", "typer.secho"), f"{path}: {node.lineno}"
