"""The walkthrough in docs/durable-agent.md works as pasted."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clpu.store.__main__ import app

PAGE = Path(__file__).parents[2] / "docs" / "durable-agent.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def walkthrough() -> str:
    (block,) = [block for block in blocks("sh") if "clpu init" in block]
    return block


def quick(text: str) -> str:
    """The same with fewer epochs."""
    assert "--epochs 20" in text
    return text.replace("--epochs 20", "--epochs 2")


def test_every_line_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    program, commands = re.fullmatch(r"python - <<'END'\n(.*?)\nEND\n(.*)", quick(walkthrough()), re.DOTALL).groups()  # type: ignore[union-attr]
    exec(compile(program, "walkthrough", "exec"), {})
    for line in commands.splitlines():
        name, *arguments = shlex.split(line)
        assert name == "clpu"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (line, result.output)
    (python,) = blocks("python")
    exec(compile(python, "walkthrough", "exec"), {})
    assert "{'digits': 'R', 'guest': 'T'}" in capsys.readouterr().out


def test_it_is_ten_lines_from_init_to_forget() -> None:
    lines = walkthrough().splitlines()
    first, last = (next(n for n, line in enumerate(lines) if line.startswith(f"clpu {c}")) for c in ("init", "forget"))
    assert last - first < 10


@pytest.mark.slow
def test_every_line_works_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, command in (("python", sys.executable), ("clpu", f"{sys.executable} -m clpu.store")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-e"], input=walkthrough(), cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    accuracies = [float(share) for share in re.findall(r"([\d.]+)%", done.stdout)]
    assert len(accuracies) == 2
    assert min(accuracies) > 95
