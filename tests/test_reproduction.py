"""REPRODUCTION.md says what the runs in reproduction/ say."""

import importlib.util
import json
from pathlib import Path

import pytest

from clpu.report.paper import tables as printed
from clpu.results import read_run

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("reproduction_tables", ROOT / "reproduction" / "tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)

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
