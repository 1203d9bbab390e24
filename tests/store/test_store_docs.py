"""The walkthrough in docs/durable-agent.md is short and learns well; test_docs_as_pasted.py runs it on every change."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "durable-agent.md"


def walkthrough() -> str:
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) if "clpu init" in block]
    return block


def test_it_is_ten_lines_from_init_to_forget() -> None:
    lines = walkthrough().splitlines()
    first, last = (next(n for n, line in enumerate(lines) if line.startswith(f"clpu {c}")) for c in ("init", "forget"))
    assert last - first < 10


@pytest.mark.slow
def test_it_learns_both_tasks(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, command in (("python", sys.executable), ("clpu", f"{sys.executable} -m clpu.store")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-e"], input=walkthrough(), cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    accuracies = [
        float(share) for share in re.findall(r"^  \w+ +(?:permanent|temporary) .* ([\d.]+)%", done.stdout, re.M)
    ]
    assert len(accuracies) == 2
    assert min(accuracies) > 95
