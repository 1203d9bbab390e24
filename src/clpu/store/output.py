"""What the commands of a durable agent print: tables for people, plain text when piped, JSON for programs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clpu import terminal
from clpu.errors import BadData, StoreFailed
from clpu.store.forgetting import is_exact

if TYPE_CHECKING:
    from rich.table import Table

    from clpu.state import State
    from clpu.store.integrity import Report
    from clpu.store.receipt import Receipt

ROWS = 20
#: Down a pipe, the row of a task with a long name stays one line.
PIPE_WIDTH = 200


def describe(state: State, path: Path, identity: str, accuracies: Mapping[str, list[float]]) -> dict[str, Any]:
    """All that `status` shows, as JSON; `accuracies` has one number per replica."""
    tasks = []
    for name, task in state.tasks.items():
        entry = {"task": name, "status": task.status, "labels": list(task.labels), "bytes": task.size}
        if name in accuracies:
            entry["accuracy"] = accuracies[name] if state.about["population"] else accuracies[name][0]
        tasks.append(entry)
    return {
        "store": str(path),
        "method": state.about["method"],
        "forgetting": "exact" if is_exact(state) else "approximate",
        "forgets": state.about["forgets"],
        "seeds": state.about["seeds"],
        "settings": state.about["settings"],
        "tasks": tasks,
        "bytes": {
            "main": 0 if state.shared is None else state.shared.size,
            "tasks": sum(task.size for task in state.tasks.values()),
        },
        "digest": state.digest(),
        "identity": identity,
    }


def show_status(about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.say_json(about)
        return
    seeds = ", ".join(map(str, about["seeds"]))
    terminal.say(f"{about['store']}: {about['method']}, seed {seeds}, forgetting {about['forgetting']}")
    if about["tasks"]:
        with_accuracy = any("accuracy" in task for task in about["tasks"])
        table = _table("task", "status", "classes", "bytes", *(["accuracy"] if with_accuracy else []))
        for task in about["tasks"]:
            kind = "permanent" if task["status"] == "R" else "temporary"
            cells = [kind, str(len(task["labels"])), f"{task['bytes']:,}"]
            if with_accuracy:
                cells.append(_mean(task["accuracy"]) if "accuracy" in task else "")
            table.add_row(terminal.text(task["task"]), *cells)
        terminal.console(pipe_width=PIPE_WIDTH).print(table)
    else:
        terminal.say("no tasks")
    terminal.say(f"main network {about['bytes']['main']:,} bytes, tasks {about['bytes']['tasks']:,} bytes")
    terminal.say(f"digest {about['digest']}")


def show_report(report: Report) -> None:
    for name, state in report.files.items():
        terminal.say(f"{name}: {state}")
    for note in report.notes:
        terminal.say(f"note: {note}")
    good = sum(state == "OK" for state in report.files.values())
    terminal.say(f"{good} of {len(report.files)} files OK")


def show_receipt(receipt: Receipt, checked: bool) -> None:
    about = receipt.statement
    if checked:
        terminal.say("valid signature by the expected store")
    else:
        terminal.say(f"valid signature by {receipt.identity}; signer not verified (pass --store or --identity)")
    for name, value in about.items():
        if name in ("proves", "does_not_prove") and isinstance(value, list):
            terminal.say(f"{name.replace('_', ' ')}:")
            for sentence in value:
                terminal.say(f"  - {sentence}")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            terminal.say(f"{name.replace('_', ' ')}: {shown}")


def write_predictions(probabilities: Any, labels: tuple[int, ...], out: Path | None) -> None:
    """Probabilities (n, classes) to a file, to the screen or down a pipe; of a population, the mean over replicas."""
    import numpy as np

    shares = np.asarray(probabilities)
    if shares.ndim == 3:
        shares = shares.mean(0)
    predicted = np.asarray(labels)[shares.argmax(-1)]
    if out is None:
        if sys.stdout.isatty():
            _show_predictions(shares, predicted, labels)
        else:
            _write_csv(sys.stdout, shares, predicted, labels)
        return
    try:
        if out.suffix == ".npz":
            np.savez(out, label=predicted, probabilities=shares, labels=np.asarray(labels))
        elif out.suffix == ".csv":
            with out.open("w", newline="", encoding="utf-8") as file:
                _write_csv(file, shares, predicted, labels)
        else:
            raise BadData(f"{out} should end with .npz or .csv")
    except OSError as error:
        raise StoreFailed(f"the predictions cannot be written to {out}: {error.strerror}") from None


def _show_predictions(shares: Any, predicted: Any, labels: tuple[int, ...]) -> None:
    table = _table("label", *(f"p({label})" for label in labels))
    for label, row in zip(predicted[:ROWS], shares[:ROWS]):
        table.add_row(str(label), *(f"{share:.3f}" for share in row))
    terminal.console(pipe_width=PIPE_WIDTH).print(table)
    if len(predicted) > ROWS:
        terminal.say(f"… and {len(predicted) - ROWS} more; --out FILE writes them all")


def _write_csv(file: Any, shares: Any, predicted: Any, labels: tuple[int, ...]) -> None:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["label", *(f"p_{label}" for label in labels)])
    rows.writerows([int(label), *(f"{share:.9g}" for share in row)] for label, row in zip(predicted, shares))


def _mean(accuracy: float | list[float]) -> str:
    values = accuracy if isinstance(accuracy, list) else [accuracy]
    return f"{sum(values) / len(values):.1%}"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table
