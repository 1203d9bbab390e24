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


def test_what_is_in_a_file_is_said_even_if_it_cannot_be_learned(tmp_path: Path, table: Path) -> None:
    store = tmp_path / "store"
    run("init", store, "--method", "ind", "--set", "hidden=(16,)")
    said = run("learn", store, "sizes", "--data", table, code=1)
    assert "note: separated by semicolons" in said
    assert "note: labels are taken from column 'kind'" in said
    (tmp_path / "same.csv").write_text("a,kind\n" + "1.5,x\n2.5,y\n" * 5)
    said = run("learn", store, "same", "--data", tmp_path / "same.csv", "--holdout", "0.0001")
    assert "from 10 examples (too few different ones to hold some out)" in said
    assert "too few" not in run("relearn", store, "same", "--data", tmp_path / "same.csv", "--holdout", "0")


def test_labels_of_test_data_may_be_in_any_column(tmp_path: Path, table: Path) -> None:
    store = tmp_path / "store"
    run("init", store, "--method", "ind", "--set", "hidden=(16,)")
    run("learn", store, "sizes", "--data", table, "--ignore", "id", "--ignore", "who", "--epochs", 60)
    rows = [line.split(";") for line in table.read_text().splitlines()]
    (tmp_path / "first.csv").write_text("".join(f"{kind};{size};{colour}\n" for _, _, size, colour, kind in rows))
    (tmp_path / "id-last.csv").write_text("".join(";".join([*row[::-1]]) + "\n" for row in rows))

    def accuracy(name: str, *more: str) -> float:
        found = json.loads(run("status", store, "--json", "--test", f"sizes={tmp_path / name}", *more))
        return float(found["tasks"][0]["accuracy"])

    expected = accuracy("table.csv")
    assert expected > 0.9
    assert accuracy("first.csv") == expected
    assert accuracy("id-last.csv", "--label-column", "kind") == expected
    assert "was not taught the labels" in run("status", store, "--test", f"sizes={tmp_path / 'id-last.csv'}", code=1)


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


OF_PEOPLE = ("--person-column", "who", "--record-column", "id", "--holdout", 0)


def made(path: Path, name: str, rows: list[str]) -> Path:
    (path / name).write_text("\n".join(["id,who,zip,size,kind", *rows]) + "\n")
    return path / name


def test_text_of_a_later_task_is_read_as_text_whoever_else_is_in_the_file(tmp_path: Path) -> None:
    rows = [f"{i},p{i % 5},00{i % 7},{i % 3}.5,{'ab'[i % 2]}" for i in range(30)]
    stores = []
    for name, later in (("with", [*rows, "30,odd,A12,0.5,a"]), ("without", rows)):
        stores.append(store := tmp_path / name)
        run("init", store, "--method", "ridge")
        data = made(tmp_path, f"{name}.csv", later)
        run("learn", store, "1", "--data", made(tmp_path, "1.csv", rows), *OF_PEOPLE, "--text-column", "zip")
        run("learn", store, "2", "--data", data, *OF_PEOPLE)
        run("learn", store, "3", "--data", made(tmp_path, "1.csv", rows[:9]), *OF_PEOPLE)
        run("relearn", store, "3", "--data", data, *OF_PEOPLE)
    run("forget", stores[0], "--person", "odd")
    digests = [json.loads(run("status", store, "--json"))["digest"] for store in stores]
    assert digests[0] == digests[1]


def test_labels_that_are_numbers_and_text_are_declared_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    rows = [f"{i},p{i % 5},00{i % 7},{i % 3}.5,{'12x'[i % 3]}" for i in range(30)]
    data, more = made(tmp_path, "1.csv", rows), made(tmp_path, "2.csv", ["30,p1,001,0.5,1", "31,p2,002,1.5,2"])
    run("init", store, "--method", "ridge")
    assert "--text-column 'kind'" in run("learn", store, "1", "--data", data, *OF_PEOPLE, code=1)
    said = run("learn", store, "1", "--data", data, *OF_PEOPLE, "--text-column", "zip", "--text-column", "kind")
    assert "is taken as text" not in said
    run("add", store, "1", "--data", more, *OF_PEOPLE[:4])
    status = json.loads(run("status", store, "--json", "--test", f"1={more}"))
    assert status["tasks"][0]["labels"] == ["1", "2", "x"]
    run("forget", store, "1", "--label", "x")
    assert "already exists" in run("add", store, "1", "--data", more, *OF_PEOPLE[:4], code=1)


def test_an_export_is_refused_for_what_can_be_forgotten(tmp_path: Path, table: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "net.pt2"
    run("init", store, "--method", "ind", "--epochs", 1)
    run("learn", store, "sizes", "--data", table, "--ignore", "id", "--ignore", "who")
    assert "can still be forgotten" in run("export", store, "--task", "sizes", "--to", out, code=1)
    assert not out.exists()
    said = run("export", store, "--task", "sizes", "--to", out, "--forgettable")
    assert "numbers as they are" in said.replace("\n", " ")
    assert out.stat().st_size > 1000
