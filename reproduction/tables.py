"""The tables of REPRODUCTION.md, made from the runs in this folder.

    python reproduction/tables.py            rewrites them
    python reproduction/tables.py --check    only says whether they are up to date

A table is between `<!-- learning: FOLDER -->` (or privacy, ablation, order, scenarios) and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clpu.report.formatting import number
from clpu.report.summary import CLASS_INCREMENTAL, Estimate, Row, deviation, summarise
from clpu.report.tables import profile
from clpu.results import read_run

HERE = Path(__file__).parent
PAGE = HERE.parent / "REPRODUCTION.md"
BLOCK = re.compile(r"(<!-- (\w+): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
#: What `verified` means, in points: at least this, or twice the paper's standard deviation.
TOLERANCE = 0.7
FORGETS = {"nothing": "nothing", "temporary": "temporary tasks", "tasks": "any task", "records": "any record"}


def rows(folder: str) -> list[Row]:
    return summarise(read_run(HERE / folder))


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def spread(estimate: Estimate) -> str:
    return f"{number(estimate.value)} ± {number(estimate.spread)}"


def within(row: Row, key: str) -> bool:
    return abs(row.difference(key)) <= max(TOLERANCE, 2 * row.paper[f"{key}_std"])


def learning(folder: str) -> str:
    """ACC and FM next to the paper's."""
    scale = profile(read_run(HERE / folder).recipe)
    body = []
    for row in rows(folder):
        cells = [row.label]
        for key in ("acc", "fm"):
            printed = f"{number(row.paper[key])} ± {number(row.paper[f'{key}_std'])}"
            cells += [printed, spread(row.metrics[key]), number(row.difference(key), sign=True)]
        if scale == "paper":
            cells.append("yes" if within(row, "acc") and within(row, "fm") else "no")
        body.append(cells)
    head = ["method", "ACC paper", "ours", "difference", "FM paper", "ours", "difference"]
    return table(head + ["verified"] * (scale == "paper"), body)


def privacy(folder: str) -> str:
    """The four privacy metrics by the definition, and as published next to the printed ones."""
    body = []
    for row in rows(folder):
        cells = [row.label]
        cells += [number(row.metrics[key].value, 3) for key in ("ijsd", "ajsd")]
        cells += [number(row.metrics[key].value) for key in ("js_ratio", "irr")]
        cells += [
            f"{number(row.paper[key])} / {number(row.published[key].value)}"
            for key in ("ijsd", "ajsd", "js_ratio", "irr")
        ]
        body.append(cells)
    head = ["method", "IJSD", "AJSD", "JS-ratio", "IRR"]
    return table([*head, *(f"{name}, paper / ours as published" for name in head[1:])], body)


def ablation(text: str) -> str:
    """One line a method and variant: `method: folder=name, folder=name; method: …`."""
    body = []
    for part in text.split(";"):
        method, _, variants = part.strip().partition(": ")
        for variant in variants.split(", "):
            folder, _, name = variant.partition("=")
            [row] = [row for row in rows(folder) if row.method == method]
            figures = [number(row.metrics[key].value) for key in ("js_ratio", "irr")]
            distances = [number(row.metrics[key].value, 3) for key in ("ijsd", "ajsd")]
            body.append([row.label, name, spread(row.metrics["acc"]), spread(row.metrics["fm"]), *distances, *figures])
    return table(["method", "variant", "ACC", "FM", "IJSD", "AJSD", "JS-ratio", "IRR"], body)


def order(folders: str) -> str:
    """The methods by ACC, in the paper and in each run, and how far the two orders agree (Spearman), excluding Ind."""
    body = []
    for folder in folders.split(", "):
        rivals = [row for row in rows(folder) if not row.about.upper_bound]
        ours, printed = [row.metrics["acc"].value for row in rivals], [row.paper["acc"] for row in rivals]
        orders = [
            " > ".join(row.label for _, row in sorted(zip(values, rivals), key=lambda pair: -pair[0]))
            for values in (printed, ours)
        ]
        ranks = [np.argsort(np.argsort(values)) for values in (printed, ours)]
        agreement = float(np.corrcoef(*ranks)[0, 1])
        body.append([folder, *orders, number(agreement)])
    return table(["run", "the paper's order by ACC", "ours", "rank correlation"], body)


def scenarios(folder: str) -> str:
    """Accuracy with and without the task given: of the paper's requests, and of a run that learns all tasks."""
    short, whole = (read_run(HERE / name) for name in (folder, f"{folder}-all"))
    every = {row.method: row for row in summarise(whole)}
    body = []
    for row in summarise(short):
        last = 100 * whole.results[row.method].accuracy[-1].mean(axis=0)
        printed = f"{number(row.paper['acc'])} ± {number(row.paper['acc_std'])}" if row.paper else "–"
        cells = [printed, spread(row.metrics["acc"]), spread(row.metrics[CLASS_INCREMENTAL])]
        cells += [
            spread(Estimate(float(last.mean()), deviation(last))),
            spread(every[row.method].metrics[CLASS_INCREMENTAL]),
        ]
        body.append([row.label, *cells, FORGETS[row.about.forgets]])
    task, classes = "task-incremental", "class-incremental"
    result = next(iter(short.results.values()))
    counts = dict(zip(result.tasks, short.recipe.data.classes))
    some = f"{', '.join(result.alive[-1])} ({sum(counts[name] for name in result.alive[-1])} classes)"
    head = ["method", "ACC in the paper, from scratch", f"ACC, {task}", f"{classes}, tasks {some}"]
    head += [f"after 1R 2R 3R 4R 5R: {task}", f"{classes}, all {sum(counts.values())} classes", "forgets exactly"]
    return table(head, body)


def made(page: str) -> str:
    """The page with its tables made anew."""
    kinds = {"learning": learning, "privacy": privacy, "ablation": ablation, "order": order, "scenarios": scenarios}
    return BLOCK.sub(lambda match: match[1] + kinds[match[2]](match[3]) + match[4], page)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the tables are up to date")
    check = parser.parse_args(arguments).check
    page = PAGE.read_text(encoding="utf-8")
    if page.count("<!-- ") != 2 * len(BLOCK.findall(page)):
        raise SystemExit("REPRODUCTION.md: a table without its <!-- end -->")
    new = made(page)
    if check:
        if new != page:
            print("REPRODUCTION.md is not what the runs say; run python reproduction/tables.py", file=sys.stderr)
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
