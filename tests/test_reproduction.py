"""REPRODUCTION.md says what the runs in reproduction/ say."""

import csv
import importlib.util
import json
import re
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clpu.report.paper import tables as printed
from clpu.results import read_run
from clpu.runs.profiles import profile

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def script(name):
    spec = importlib.util.spec_from_file_location(f"reproduction_{name}", ROOT / "reproduction" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables, figure, strengths = script("tables"), script("figure"), script("strength_choices")

RUNS = sorted(path.parent for path in (ROOT / "reproduction").rglob("run.json"))


def test_the_page_is_up_to_date(capsys):
    assert tables.main(["--check"]) == 0


def test_a_changed_figure_would_be_noticed(monkeypatch, tmp_path, capsys):
    page = tables.PAGE.read_text(encoding="utf-8")
    paper = printed()["perm-mnist", "der++"]["acc"]
    assert f"{paper}" in page
    changed = tmp_path / "page.md"
    changed.write_text(page.replace(f"| DER++ | {paper}", "| DER++ | 99.99", 1), encoding="utf-8")
    assert changed.read_text(encoding="utf-8") != page
    monkeypatch.setattr(tables, "PAGE", changed)
    assert tables.main(["--check"]) == 1
    assert tables.main([]) == 0
    assert changed.read_text(encoding="utf-8") == page


def test_unfinished_methods_are_listed_with_their_finished_jobs(monkeypatch, tmp_path):
    shutil.copytree(ROOT / "reproduction" / "rot-mnist-paper", tmp_path / "run")
    (tmp_path / "run" / "results" / "er.json").unlink()
    monkeypatch.setattr(tables, "HERE", tmp_path)
    lines = tables.learning("run").splitlines()
    assert lines[-1].startswith("| ER | 95.12 ± 0.18 | 2 jobs done |")
    assert len({line.count("|") for line in lines}) == 1


def test_the_figure_is_up_to_date():
    assert figure.main(["--check"]) == 0


def test_a_changed_figure_file_would_be_noticed(monkeypatch, tmp_path, capsys):
    changed = tmp_path / "demo.svg"
    changed.write_text(figure.FIGURE.read_text(encoding="utf-8").replace("96%", "97%"), encoding="utf-8")
    monkeypatch.setattr(figure, "FIGURE", changed)
    assert figure.main(["--check"]) == 1
    assert "reproduction/figure.py" in capsys.readouterr().err


def test_figures_are_shown_by_viewers_that_know_no_variables():
    """librsvg and Inkscape draw black boxes where a colour is a variable of a style sheet."""
    for file in (ROOT / "docs").glob("*.svg"):
        assert "var(" not in file.read_text(encoding="utf-8"), file.name


def test_the_figures_of_clpu_live_are_drawn_from_their_data(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "reproduction"))
    for name, text in script("live_study").drawings():
        assert (ROOT / "docs" / f"{name}.svg").read_text(encoding="utf-8") == text, "run live_study.py draw"


def test_the_table_in_the_readme_is_an_excerpt_of_the_run():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {row.method: row for row in tables.rows("perm-mnist-paper")}
    for method in ("seq", "der++", "clpu-der++"):
        row = rows[method]
        cells = [f"{tables.spread(row.metrics[key])} ({row.paper[key]:.2f})" for key in ("acc", "fm")]
        cells += [f"{row.metrics[key].value:.2f}" for key in ("js_ratio", "irr")]
        assert f"| {row.label} | {' | '.join(cells)} |" in readme


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_a_run_can_be_read_and_names_no_place_on_any_machine(folder):
    run = read_run(folder)
    assert run.missing == []
    for path in [folder / "run.json", *folder.glob("results/*.json")]:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        for place in ("/home/", "/root/", "/tmp/", "/work/"):
            assert place not in text


def few_images():
    """48 images of two classes."""
    draw = np.random.default_rng(0)
    return SimpleNamespace(x=draw.integers(0, 256, (48, 3, 8, 8), dtype=np.uint8), y=np.arange(48) % 2)


def test_strengths_are_tried_on_held_out_training_images_and_rows_are_computed_once(monkeypatch, tmp_path, capsys):
    made = [SimpleNamespace(name=name, train=few_images(), mean=(0.5,) * 3, std=(0.5,) * 3) for name in "124"]
    monkeypatch.setattr(strengths, "tasks", lambda benchmark: made)
    monkeypatch.setattr(strengths, "HELD_OUT", 16)
    monkeypatch.setattr(strengths, "OUT", tmp_path / "choices.csv")
    x, y, held_out, _ = strengths.split("split-cifar10", None)[0]["1"]
    assert (len(x), len(y)) == (32, 32)
    assert np.array_equal(held_out.numpy(), made[0].train.x[32:])
    call = ["split-cifar10", "ewc", "500", "5", "--seeds", "1"]
    for changed in ("width=1", "epochs=1", "mixed_precision=false"):
        call += ["--set", changed]
    strengths.main(call)
    text = (tmp_path / "choices.csv").read_text(encoding="utf-8")
    found = list(csv.DictReader(text.splitlines()))
    assert [(row["method"], row["strength"], row["seed"]) for row in found] == [("ewc", "500", "0"), ("ewc", "5", "0")]
    assert all(0 <= float(row[f"task {task}"]) <= 100 for row in found for task in "124")
    monkeypatch.setattr(strengths, "split", None)
    strengths.main(call)
    assert (tmp_path / "choices.csv").read_text(encoding="utf-8") == text


def rows_of(run):
    """The rows of a run's table by method; numbers as floats."""
    with (ROOT / "reproduction" / run / "table.csv").open(encoding="utf-8") as file:
        return {
            row["method"]: {k: float(v) for k, v in row.items() if NUMBER.fullmatch(v)} for row in csv.DictReader(file)
        }


def section(page, begin):
    """A page's section: from a heading to the next one of the same level or above."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\N{MINUS SIGN}", "-")
    assert begin in text
    start, level = text.index(begin), len(begin) - len(begin.lstrip("#"))
    end = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(text, start + len(begin))
    return text[start : end.start() if end else None]


def test_the_numbers_of_clpu_live_are_those_of_its_runs():
    """They stand in tables that are written by hand."""
    ours, short = section("REPRODUCTION.md", "## CLPU-Live"), section("docs/clpu-live.md", "## What it reaches")
    for name in ("perm-mnist", "rot-mnist"):
        live, paper = rows_of(f"{name}-live")["clpu-live"], rows_of(f"{name}-paper")
        assert f"**{live['acc']:.2f} ± {live['acc_std']:.2f}**" in ours
        assert f"**{live['fm']:.2f} ± {live['fm_std']:.2f}**" in ours
        assert f"{live['js_ratio']:.2f}, {live['irr']:.2f} |" in ours
        assert f"{live['acc']:.2f}%" in section("README.md", "# clpu")
        for row in (live, paper["der++"], paper["clpu-der++"]):
            assert f"{row['acc']:.2f} / {row['fm']:.2f}" in short
        for acc, fm in [[f"{paper[method][key]:.2f}" for key in ("acc", "fm")] for method in ("clpu-der++", "der++")]:
            assert f"| {acc} |" in ours
            assert f"| {fm} |" in ours
        bound = rows_of(f"{name}-bound")["der++"]
        assert f"{bound['acc']:.2f} / {bound['fm']:.2f}" in ours
        assert bound["acc"] < live["acc"]
    for name in ("split-cifar10", "split-cifar100"):
        for row in rows_of(f"{name}-live").values():
            assert f"| {row['acc']:.2f} ± {row['acc_std']:.2f} |" in ours
            assert f"| {row['fm']:.2f} ± {row['fm_std']:.2f} |" in ours


def test_the_numbers_of_split_cifar10_at_medium_are_those_of_its_run():
    rows = rows_of("split-cifar10-medium")
    short = section("docs/clpu-live.md", "## What it reaches")
    [line] = [line for line in short.splitlines() if line.startswith("| split CIFAR-10 at `medium`")]
    for method in ("clpu-der++", "der++", "ind", "clpu-live"):
        assert f"{rows[method]['acc']:.2f} / {rows[method]['fm']:.2f}".replace(" / 0.00", " / 0") in line
    readme = " ".join(section("README.md", "# clpu").split())
    for method, label in (("clpu-der++", "CLPU-DER++"), ("der++", "DER++"), ("clpu-live", "CLPU-Live")):
        assert f"{rows[method]['acc']:.2f} ± {rows[method]['acc_std']:.2f} for {label}" in readme


def test_the_chosen_strengths_are_the_best_of_those_that_were_tried():
    text = section("REPRODUCTION.md", "### Strength of EWC and LSF")
    with strengths.OUT.open(encoding="utf-8", newline="") as file:
        tried = list(csv.DictReader(file))
    for method in ("ewc", "lsf"):
        mean = {
            float(row["strength"]): statistics.mean(float(row[f"task {task}"]) for task in "124")
            for row in tried
            if row["method"] == method and row["task 1"]
        }
        best = max(mean, key=mean.__getitem__)
        assert profile("split-cifar10", "medium").of_method[method] == {"strength": best}
        [line] = [line for line in text.splitlines() if line.startswith(f"| {method.upper()} |")]
        assert f"**{mean[best]:.2f}**" in line
        assert all(f"{value:.2f}" in line for value in mean.values())
        assert line.count("diverged") == sum(row["method"] == method and not row["task 1"] for row in tried)


def test_the_ablation_of_clpu_live_is_what_its_rows_say():
    ours = section("REPRODUCTION.md", "### Which part brings how much")
    with (ROOT / "reproduction" / "live" / "ablation.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name, method in {(row["benchmark"], row["method"]) for row in rows}:
        mine = [row for row in rows if (row["benchmark"], row["method"]) == (name, method)]
        accuracies = [statistics.mean(float(row[f"task {task}"]) for task in (1, 2, 4)) for row in mine]
        lost = statistics.mean(float(row["task 2 before its merge"]) - float(row["task 2"]) for row in mine)
        (line,) = [line.replace("*", "") for line in ours.splitlines() if method in line and line.startswith("|")]
        assert f"| {statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f} | {lost:.2f} |" in line
