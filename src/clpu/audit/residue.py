"""Residue: what is left on disk of a forgotten task of a durable agent, as stored and as its keys decrypt it."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clpu import store
from clpu.requests import Instruction, Scope, Stream
from clpu.runs.jobs import TaskData
from clpu.state import State
from clpu.store.residue import search, text_forms

#: Training inputs of a forgotten task that are searched for, each as the bytes in which a memory would keep it.
INPUTS = 200


def residue(
    method: str, stream: Stream, data: Sequence[TaskData], network: str, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Let a durable agent handle a stream in a temporary folder, and search the folder after each forget request.

    Tasks and people get names that cannot occur by chance. A finding names the file and the form, not the data.
    """
    by_name = {task.name: task for task in data}
    names = {name: f"task-{secrets.token_hex(8)}" for name in by_name}
    ids = {who: f"person-{secrets.token_hex(8)}" for task in data for who in task.train_people if who}
    found: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as decrypted,
        store.create(Path(folder) / "agent", method, network, **settings) as agent,
    ):
        for number, request in enumerate(stream, 1):
            what = str(request.scope) if request.parts else f"task {request.task}"
            name = names.get(request.task, "")
            if request.instruction is Instruction.FORGET:
                scope = replace(request.scope, task=name or None, person=ids.get(request.scope.person or ""))
                gone = scope.person if request.parts else name
                forms = text_forms(gone) if gone else {}
                needles = {f"its name ({form})": value for form, value in forms.items()}
                inputs = [x for task in data for x in task.train_x[task.covered(request.scope, train=True)]]
                needles |= {f"input {i}": bytes(x.numpy().tobytes()) for i, x in enumerate(inputs[:INPUTS])}
                if request.parts:
                    needles |= _rows(agent.state(), scope)
                agent.forget(**scope.keywords())
                with store.open(Path(folder) / "agent", read_only=True) as reader:
                    (Path(decrypted) / "decrypted state").write_bytes(reader.state().to_bytes())
                traces = search([folder, decrypted], needles)
                found += [f"{what} after request {number}: {trace.what} in {trace.path.name}" for trace in traces]
            elif name in agent.tasks:
                agent.keep(name)
            else:
                task, temporary = by_name[request.task], request.instruction is Instruction.TEMPORARY
                people = [ids.get(who) for who in task.train_people] if agent.forgets == "records" and ids else None
                agent.learn(name, task.train_x, task.train_y, temporary=temporary, people=people)
    return tuple(found)


def _rows(state: State, scope: Scope) -> dict[str, bytes]:
    """The features that are held of what is forgotten, but for those that a different record has too."""
    rows: dict[bool, list[bytes]] = {False: [], True: []}
    for held in [held for name in state.tasks for held in state.held(Scope(name))]:
        gone = held.task == scope.task or scope.task is None
        gone = gone and (scope.person is None or scope.person in held.people)
        chosen = held.records.matching(scope, {}).tolist() if gone else [False] * len(held.records)
        for row, forgotten in zip(held.records.rows, chosen):
            rows[forgotten].append(row.tobytes())
    kept = set(rows[False])
    return {f"features {i}": row for i, row in enumerate(rows[True][:INPUTS]) if row not in kept}
