"""The tables of REPRODUCTION.md, made from the runs in this folder.

    python reproduction/tables.py            rewrites them
    python reproduction/tables.py --check    only says whether they are up to date

A table is between `<!-- learning: FOLDER -->` (or privacy, machines, ablation, order, people, scenarios) and
`<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from clpu.report.formatting import number
from clpu.report.machines import computed_on
from clpu.report.paper import tables as paper_tables
from clpu.report.summary import CLASS_INCREMENTAL, Estimate, Row, deviation, summarise
from clpu.report.tables import profile
from clpu.results import read_run
from clpu.runs.recipe import method_of

HERE = Path(__file__).parent
PAGE = HERE.parent / "REPRODUCTION.md"
BLOCK = re.compile(r"(<!-- (\w+): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
#: What `verified` means, in points: at least this, or twice the paper's standard deviation.
TOLERANCE = 0.7
#: Profiles whose rows get a verdict; the others train too little to reach the paper's accuracy.
JUDGED = ("paper", "medium")
FORGETS = {"nothing": "nothing", "temporary": "temporary tasks", "tasks": "any task", "records": "any record"}


def rows(folder: str) -> list[Row]:
    return summarise(read_run(HERE / folder))


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def spread(estimate: Estimate) -> str:
    return f"{number(estimate.value)} ± {number(estimate.spread)}"


def printed(paper: Mapping[str, float], key: str) -> str:
    """The paper's value; a dash if it does not have the method."""
    return f"{number(paper[key])} ± {number(paper[f'{key}_std'])}" if paper else "–"


def within(row: Row, key: str) -> bool:
    return abs(row.difference(key)) <= max(TOLERANCE, 2 * row.paper[f"{key}_std"])


def verified(row: Row) -> str:
    if not row.paper:
        return "–"
    return "yes" if within(row, "acc") and within(row, "fm") else "no"


def learning(folder: str) -> str:
    """ACC and FM next to the paper's; for unfinished methods, the number of finished jobs."""
    run = read_run(HERE / folder)
    judged = profile(run.recipe) in JUDGED
    body = []
    for row in summarise(run):
        cells = [row.label]
        for key in ("acc", "fm"):
            difference = number(row.difference(key), sign=True) if row.paper else "–"
            cells += [printed(row.paper, key), spread(row.metrics[key]), difference]
        body.append(cells + [verified(row)] * judged)
    for method in run.recipe.in_order(run.missing):
        paper = paper_tables().get((run.recipe.benchmark, method), {})
        ours = f"{sum(method_of(job) == method for job in run.recipe.jobs)} jobs done"
        cells = [run.recipe.about(method).label, printed(paper, "acc"), ours, "", printed(paper, "fm"), "", ""]
        body.append(cells + [""] * judged)
    head = ["method", "ACC paper", "ours", "difference", "FM paper", "ours", "difference"]
    return table(head + ["verified"] * judged, body)


def machines(folder: str) -> str:
    """Which rows were computed on which machine."""
    run = read_run(HERE / folder)
    found = computed_on(run.recipe, run.recipe.in_order(run.results))
    return table(["rows", "computed on"], [[", ".join(labels), machine] for machine, labels in found])


def privacy(folder: str) -> str:
    """The four privacy metrics by the definition, and as published next to the printed ones."""
    body = []
    for row in rows(folder):
        cells = [row.label]
        cells += [number(row.metrics[key].value, 3) for key in ("ijsd", "ajsd")]
        cells += [number(row.metrics[key].value) for key in ("js_ratio", "irr")]
        cells += [
            f"{number(row.paper[key]) if row.paper else '–'} / {number(row.published[key].value)}"
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
        rivals = [row for row in rows(folder) if row.paper and not row.about.upper_bound]
        ours, theirs = [row.metrics["acc"].value for row in rivals], [row.paper["acc"] for row in rivals]
        orders = [
            " > ".join(row.label for _, row in sorted(zip(values, rivals), key=lambda pair: -pair[0]))
            for values in (theirs, ours)
        ]
        ranks = [np.argsort(np.argsort(values)) for values in (theirs, ours)]
        agreement = float(np.corrcoef(*ranks)[0, 1])
        body.append([folder, *orders, number(agreement)])
    return table(["run", "the paper's order by ACC", "ours", "rank correlation"], body)


def people(folders: str) -> str:
    """Of each run in which people leave: the accuracy of those who stay and of those who left, digests and times."""
    body = []
    for folder in folders.split(", "):
        run = read_run(HERE / folder)
        for row in summarise(run):
            accuracy = 100 * run.results[row.method].accuracy[:, 0].mean(-1)
            never = float(np.mean([100 * item.counterfactual.mean() for item in row.forgotten]))
            cells = [folder, str(run.recipe.network["name"]), f"{run.recipe.data.people:,}", row.label]
            cells += [number(accuracy[0]), number(accuracy[-1]), number(row.left.value), number(never)]
            body.append([*cells, f"{row.same_digests} of {row.forgets}", f"{1000 * row.forget_seconds:.0f} ms"])
    head = ["run", "base", "people", "method", "ACC of those who stay, before", "after ten left"]
    head += ["ACC on those who left", "never having had them", "digest equal", "time per person"]
    return table(head, body)


def scenarios(folder: str) -> str:
    """Accuracy with and without the task given: of the paper's requests, and of a run that learns all tasks."""
    short, whole = (read_run(HERE / name) for name in (folder, f"{folder}-all"))
    every = {row.method: row for row in summarise(whole)}
    body = []
    for row in summarise(short):
        last = 100 * whole.results[row.method].accuracy[-1].mean(axis=0)
        cells = [printed(row.paper, "acc"), spread(row.metrics["acc"]), spread(row.metrics[CLASS_INCREMENTAL])]
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
    kinds = {"learning": learning, "privacy": privacy, "ablation": ablation, "order": order}
    kinds |= {"machines": machines, "people": people, "scenarios": scenarios}
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
