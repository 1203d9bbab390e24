"""Draw docs/demo.svg, the figure in README.md, from the run in reproduction/rot-mnist-paper.

    python reproduction/figure.py            writes the file
    python reproduction/figure.py --check    only says whether it is up to date

The curves and their colours are those of the report page (src/clpu/report).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from clpu.report import curves
from clpu.report.summary import summarise
from clpu.report.svg import Canvas
from clpu.results import read_run

HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "demo.svg"
RUN = HERE / "rot-mnist-paper"
METHODS = ("der++", "clpu-der++")
WIDTH, HEIGHT, PANEL, TOP = 760, 324, (350, 216), 62
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif'


def style() -> str:
    """The colours of the report page and its rules for drawings, so that the file needs nothing else."""
    css = files("clpu.report").joinpath("style.css").read_text(encoding="utf-8")
    light, dark = re.findall(r"(?<=:root \{).*?(?=\})", css, re.DOTALL)
    rules = "\n".join(re.findall(r"^svg (?:\.|text).*$", css, re.MULTILINE))
    return (
        f"<style>:root{{{light}font-family:{FONT}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{rules}\n"
        "svg .ground { fill: var(--ground); stroke: none; } svg .title { font-size: 15px; font-weight: 600; }</style>"
    )


def draw() -> str:
    """Two panels side by side with a key below, on their own background: readable on pages of any colour."""
    run = read_run(RUN)
    rows = {row.method: row for row in summarise(run)}
    chance = [1 / classes for classes in run.recipe.data.classes]
    canvas = Canvas(WIDTH, HEIGHT, "Accuracy on five tasks after each request, for DER++ and CLPU-DER++")
    canvas.rect(0, 0, WIDTH, HEIGHT, "ground")
    for i, method in enumerate(METHODS):
        left = 16 + i * (PANEL[0] + 28)
        known = sum(item.accuracy.mean() for item in rows[method].forgotten) / len(rows[method].forgotten)
        canvas.text(left + 44, 26, rows[method].label, "title")
        canvas.text(left + 44, 45, f"accuracy on forgotten tasks: {known:.0%}", "axis-name")
        panel = str(curves.accuracy_panel(run.results[method], rows[method].label, chance))
        place = f'<svg x="{left}" y="{TOP}" width="{PANEL[0]}" height="{PANEL[1]}" '
        canvas.parts.append(panel.replace("<svg ", place, 1))
    _key(canvas, run.results[METHODS[0]].tasks)
    text = str(canvas)
    size = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
    return text.replace("<svg ", f"<svg {size} ", 1).replace(">", f">{style()}\n", 1) + "\n"


def _key(canvas: Canvas, tasks: Sequence[str]) -> None:
    x, y = 60.0, HEIGHT - 22
    for i, task in enumerate(tasks):
        canvas.line(x, y, x + 20, y, f"curve {curves.task_style(i)}")
        canvas.text(x + 26, y + 4, f"task {task}", "axis-name")
        x += 82
    canvas.cross(x + 10, y, 4, f"cross {curves.task_style(2)}")
    canvas.text(x + 20, y + 4, "forgotten", "axis-name")
    canvas.line(x + 92, y, x + 114, y, "chance")
    canvas.text(x + 120, y + 4, "chance (10%)", "axis-name")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the file is out of date")
    check = parser.parse_args(arguments).check
    drawing = draw()
    if not check:
        FIGURE.write_text(drawing, encoding="utf-8")
    elif not FIGURE.exists() or FIGURE.read_text(encoding="utf-8") != drawing:
        print("docs/demo.svg does not match the run; run python reproduction/figure.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
