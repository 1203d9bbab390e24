"""REPRODUCTION.md says what the runs in reproduction/ say."""

import importlib.util
import json
from pathlib import Path

import pytest

from clpu.report.paper import tables as printed
from clpu.results import read_run

ROOT = Path(__file__).parent.parent


def script(name):
    spec = importlib.util.spec_from_file_location(f"reproduction_{name}", ROOT / "reproduction" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables, figure = script("tables"), script("figure")

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


def test_the_figure_is_up_to_date():
    assert figure.main(["--check"]) == 0


def test_a_changed_figure_file_would_be_noticed(monkeypatch, tmp_path, capsys):
    changed = tmp_path / "demo.svg"
    changed.write_text(figure.FIGURE.read_text(encoding="utf-8").replace("96%", "97%"), encoding="utf-8")
    monkeypatch.setattr(figure, "FIGURE", changed)
    assert figure.main(["--check"]) == 1
    assert "reproduction/figure.py" in capsys.readouterr().err


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
        assert "/home/" not in text
        assert "/tmp/" not in text
        assert "/work/" not in text
