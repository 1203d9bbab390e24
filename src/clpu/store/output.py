"""The output of the commands of a durable agent: tables for people, plain text when piped, JSON for programs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clpu import terminal
from clpu.errors import BadData, StoreFailed, UnknownTask
from clpu.outcome import Change, HeldOut
from clpu.requests import Scope, unknown
from clpu.state.leaf import DTYPES
from clpu.store.expiry import UNTIL, due
from clpu.store.forgetting import is_exact

if TYPE_CHECKING:
    from rich.table import Table

    from clpu.outcome import Outcome
    from clpu.state import Leaf, State
    from clpu.store.integrity import Report
    from clpu.store.receipt import Receipt

ROWS = 20
#: Down a pipe, the row of a task with a long name stays one line.
PIPE_WIDTH = 200


def describe(state: State, path: Path, identity: str, accuracies: Mapping[str, list[float]]) -> dict[str, Any]:
    """All that `status` shows, as JSON; `accuracies` has one number per replica."""
    tasks, late = [], {*due(state)}
    for name, task in state.tasks.items():
        entry = {"task": name, "status": task.status, "labels": list(task.labels), "bytes": task.size}
        held = HeldOut.from_facts(task.facts)
        if held is not None:
            low, high = held.interval
            figure = {"accuracy": held.accuracy, "low": low, "high": high, "most_frequent": held.largest}
            entry["held_out"] = {**figure, "examples": held.examples}
        if UNTIL in task.facts:
            entry["until"] = task.facts[UNTIL]
            entry["due"] = name in late
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


def exported(state: State, task: str) -> dict[str, Any]:
    """All that is held about a task, as JSON; needs neither torch nor NumPy."""
    if task not in state.tasks:
        raise UnknownTask(unknown(task, state.tasks))
    found = state.tasks[task]
    own = None if found.own is None else _readable(found.own)
    people = [{"people": list(who), "leaf": _readable(leaf)} for who, leaf in found.people.items()]
    return {"task": task, "status": found.status, "facts": dict(found.facts), "own": own, "people": people}


def shown(state: State, task: str | None, person: str) -> dict[str, Any]:
    """Print what is held about a person, by task, as JSON."""
    if task is not None and task not in state.tasks:
        raise UnknownTask(unknown(task, state.tasks))
    return {"person": person, "tasks": state.shown(Scope(task, person))}


def _readable(leaf: Leaf) -> dict[str, Any]:
    return {
        name: {"type": DTYPES[dtype], "shape": shape, "values": values} for name, dtype, shape, values in leaf.rows()
    }


def show_status(about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.say_json(about)
        return
    seeds = ", ".join(map(str, about["seeds"]))
    terminal.say(f"{about['store']}: {about['method']}, seed {seeds}, forgetting {about['forgetting']}")
    if about["tasks"]:
        with_accuracy = any("accuracy" in task for task in about["tasks"])
        with_until = any("until" in task for task in about["tasks"])
        with_held = any("held_out" in task for task in about["tasks"])
        added = (
            (["held out"] if with_held else [])
            + (["accuracy"] if with_accuracy else [])
            + (["until"] if with_until else [])
        )
        table = _table("task", "status", "classes", "bytes", *added)
        for task in about["tasks"]:
            kind = "permanent" if task["status"] == "R" else "temporary"
            cells = [kind, str(len(task["labels"])), f"{task['bytes']:,}"]
            if with_held:
                cells.append(_held(task["held_out"]) if "held_out" in task else "")
            if with_accuracy:
                cells.append(_mean(task["accuracy"]) if "accuracy" in task else "")
            if with_until:
                cells.append(f"{task.get('until', '')}{' (due)' if task.get('due') else ''}")
            table.add_row(terminal.text(task["task"]), *map(terminal.text, cells))
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


def write_predictions(probabilities: Any, answers: Any, labels: tuple[Any, ...], out: Path | None) -> None:
    """Probabilities (n, labels) and answers to a file, to the screen or down a pipe.

    Of a population, the mean over replicas. Without a task, labels are pairs (task, label), and `None`.
    """
    import numpy as np

    shares = np.asarray(probabilities)
    several = shares.ndim == 3
    if None in labels:
        answers = answers if several else [_pair(answer) for answer in answers]
        labels = tuple(map(_pair, labels))
    if several:
        shares = shares.mean(0)
        answers = np.asarray(labels)[shares.argmax(-1)]
    predicted = np.asarray(answers)
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


def with_outcome(done: str, outcome: Outcome, task: str) -> str:
    """Report a request and its effect on the examples in memory; with warnings where much was lost.

    Names are shown to people only, in a table: standard output may end in a log, which forgetting does not reach.
    """
    others = [change for name, change in outcome.memory.items() if name != task]
    shown = []
    if task in outcome.memory:
        shown.append(f"this task {outcome.memory[task]}")
    if others:
        before = [change.before for change in others if change.before is not None]
        mean = Change(
            sum(before) / len(before) if before else None, sum(change.after for change in others) / len(others)
        )
        shown.append(f"{len(others)} remembered task{'s' if len(others) > 1 else ''} {mean}")
    if sys.stdout.isatty() and others:
        table = _table("correct in memory", "before", "after")
        for name, change in outcome.memory.items():
            then = "" if change.before is None else f"{change.before:.1%}"
            table.add_row(terminal.text(name), then, f"{change.after:.1%}")
        terminal.console().print(table)
    for warning in outcome.warnings(lambda name: "this task" if name == task else "a remembered task"):
        terminal.say(f"warning: {warning}", error=True)
    return f"{done}; correct in memory: {', '.join(shown)}" if shown else done


def _pair(pair: tuple[str, Any] | None) -> str:
    return "none of these" if pair is None else f"{pair[0]}: {pair[1]}"


def _show_predictions(shares: Any, predicted: Any, labels: tuple[int | str, ...]) -> None:
    table = _table("label", *(f"p({label})" for label in labels))
    for label, row in zip(predicted[:ROWS], shares[:ROWS]):
        table.add_row(terminal.text(str(label)), *(f"{share:.3f}" for share in row))
    terminal.console(pipe_width=PIPE_WIDTH).print(table)
    if len(predicted) > ROWS:
        terminal.say(f"… and {len(predicted) - ROWS} more; --out FILE writes them all")


def _write_csv(file: Any, shares: Any, predicted: Any, labels: tuple[int | str, ...]) -> None:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["label", *(f"p_{label}" for label in labels)])
    rows.writerows([label, *(f"{share:.9g}" for share in row)] for label, row in zip(predicted.tolist(), shares))


def _held(figure: Mapping[str, float]) -> str:
    """The accuracy on examples that were held out when the task was learned, and its 95 % interval."""
    return f"{figure['accuracy']:.1%} ({figure['low']:.1%} to {figure['high']:.1%})"


def _mean(accuracy: float | list[float]) -> str:
    values = accuracy if isinstance(accuracy, list) else [accuracy]
    return f"{sum(values) / len(values):.1%}"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(terminal.text(column), justify="left" if number == 0 else "right", overflow="fold")
    return table
