"""status, show and verify: what changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clpu import terminal
from clpu.errors import BadRequest
from clpu.io import canonical, write_atomically
from clpu.options import Load, load_files
from clpu.store.commands.options import Json, Label, OneTask, Opening, Store, Threads, opens
from clpu.store.commands.requests import pair, reader_of

if TYPE_CHECKING:
    from clpu.store.store import Store as OpenStore


@opens
def status(
    store: Store,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", metavar="TASK=FILE", help="Show the accuracy on labelled data; may be repeated."),
    ] = None,
    label: Label = None,
    json: Json = False,
    threads: Threads = 1,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Show the agent's tasks, accuracy, size and digest."""
    from clpu.store.output import describe, show_status
    from clpu.store.store import Store as OpenStore

    load_files(load)
    files = dict(pair(text, "--test TASK=FILE") for text in test or [])
    with OpenStore(store, opening.access(), write=False) as opened:
        state = opened.load()
        accuracies = _accuracies(opened, files, label, threads) if files else {}
        show_status(describe(state, opened.path, opened.about.identity, accuracies), json)
        if opened.read_only_because is not None:
            terminal.say(f"read-only: {opened.read_only_because}", error=True)


@opens
def show(
    store: Store,
    task: OneTask = None,
    person: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show the data held about this person, in the task or in all tasks."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE, readable only by its owner.")
    ] = None,
    *,
    opening: Opening,
) -> None:
    """Export the data held about a task (facts and all numbers of its leaves) or about a person as JSON.

    For a person: the number of records, their labels and their ids, by task.
    """
    from clpu.store.files import refuse_inside
    from clpu.store.output import exported, shown
    from clpu.store.store import Store as OpenStore

    if out is not None:
        refuse_inside(store, out)
    with OpenStore(store, opening.access(), write=False) as opened:
        state = opened.load()
        if person is not None:
            content = shown(state, task, person)
        elif task is None:
            raise BadRequest("name a task, or a person with --person ID")
        else:
            content = exported(state, task)
    if out is None:
        terminal.say_json(content)
    else:
        write_atomically(out, (canonical(content) + "\n").encode(), private=True)


@opens
def verify(
    store: Store,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Do not load the agent: faster, and needs no torch.")
    ] = False,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Check every file of the store, and that its agent can be loaded; exit code 1 if anything is damaged."""
    from clpu.store import verify as verify_store
    from clpu.store.output import show_report

    load_files(load)
    report = verify_store(store, opening.access(), files_only=files_only)
    show_report(report)
    if not report.good:
        raise typer.Exit(1)


def _accuracies(opened: OpenStore, files: Mapping[str, str], label: str | None, threads: int) -> dict[str, list[float]]:
    """The accuracy of each replica on labelled data, by task."""
    import numpy as np

    from clpu.store.data_files import read
    from clpu.tables import text_columns

    agent = reader_of(opened, threads)
    found = {}
    for name, file in files.items():
        kind = type(agent.labels(name)[0])  # refuses a task that is not active
        tasks = agent.state().tasks
        inputs = [column for column, _ in tasks[name].facts.get("columns", [])]
        table = read(file, label=label, text=text_columns(tasks), inputs=inputs, labels=kind)
        found[name] = np.atleast_1d(agent.accuracy(name, table.x, table.y)).tolist()
    return found
