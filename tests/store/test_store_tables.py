"""The commands of a durable agent on ordinary files: tables, figures, predictions without a task, export."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clpu.cli import app


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A semicolon-separated file with decimal commas, a category, an id, a person and labels as text."""
    rng = np.random.default_rng(0)
    rows = ["id;who;size;colour;kind"]
    for i in range(200):
        size, colour = rng.normal(1000, 100), rng.choice(["red", "green"])
        kind = "large" if size > 1000 else "small"
        rows.append(f"r{i};p{i % 9};{size:.2f};{colour};{kind}".replace(".", ","))
    path = tmp_path / "table.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_table_is_learned_judged_and_predicted(tmp_path: Path, table: Path) -> None:
    store = tmp_path / "store"
    run("init", store, "--method", "ind", "--set", "hidden=(16,)")
    said = run("learn", store, "sizes", "--data", table, "--ignore", "id", "--ignore", "who", "--epochs", 60)
    assert "note: separated by semicolons" in said
    assert "held-out examples" in said
    assert "most frequent label" in said
    status = json.loads(run("status", store, "--json", "--test", f"sizes={table}"))
    (task,) = status["tasks"]
    assert task["labels"] == ["large", "small"]
    assert task["accuracy"] > 0.9
    assert 0 < task["held_out"]["low"] < task["held_out"]["accuracy"] <= 1
    assert "held out" in run("status", store)
    run("predict", store, "sizes", "--data", table, "--out", tmp_path / "out.csv")
    run("predict", store, "--data", table, "--out", tmp_path / "any.csv")
    named, any_task = (
        list(csv.DictReader((tmp_path / name).read_text().splitlines())) for name in ("out.csv", "any.csv")
    )
    assert {row["label"] for row in named} == {"large", "small"}
    assert list(any_task[0]) == ["label", "p_sizes: large", "p_sizes: small", "p_none of these"]
    assert sum(row["label"] == f"sizes: {other['label']}" for row, other in zip(any_task, named)) > 150


def test_labels_that_mean_nothing_get_a_warning_and_can_be_learned_again(tmp_path: Path, table: Path) -> None:
    store = tmp_path / "store"
    lines = table.read_text().splitlines()
    rng = np.random.default_rng(1)
    shuffled = [lines[0], *(f"{line.rpartition(';')[0]};{'no' if rng.random() < 0.9 else 'yes'}" for line in lines[1:])]
    noise = tmp_path / "noise.csv"
    noise.write_text("\n".join(shuffled) + "\n")
    run("init", store, "--method", "ind")
    options = ("--ignore", "id", "--ignore", "who")
    assert "no better than" in run("learn", store, "sizes", "--data", noise, "--temporary", *options)
    said = run("relearn", store, "sizes", "--data", table, *options)
    assert "learned again" in said
    assert "no better than" not in said
    assert json.loads(run("status", store, "--json"))["tasks"][0]["status"] == "T"
    other = tmp_path / "other"
    run("init", other, "--method", "ind")
    run("learn", other, "sizes", "--data", table, "--temporary", *options)
    digests = {json.loads(run("status", s, "--json"))["digest"] for s in (store, other)}
    assert len(digests) == 1


def test_people_are_named_by_a_column(tmp_path: Path, table: Path) -> None:
    store = tmp_path / "store"
    run("init", store, "--method", "ridge")
    run(
        "learn",
        store,
        "sizes",
        "--data",
        table,
        "--person-column",
        "who",
        "--record-column",
        "id",
        "--text-column",
        "colour",
    )
    run("forget", store, "--person", "p3")
    assert "p3" not in run("status", store, "--json")


def test_an_export_is_refused_for_what_can_be_forgotten(tmp_path: Path, table: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "net.pt2"
    run("init", store, "--method", "ind", "--epochs", 1)
    run("learn", store, "sizes", "--data", table, "--ignore", "id", "--ignore", "who")
    assert "can still be forgotten" in run("export", store, "--task", "sizes", "--to", out, code=1)
    assert not out.exists()
    said = run("export", store, "--task", "sizes", "--to", out, "--forgettable")
    assert "numbers as they are" in said.replace("\n", " ")
    assert out.stat().st_size > 1000
