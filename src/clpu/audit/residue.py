"""Residue: what is left on disk of a forgotten task of a durable agent, as stored and as its keys decrypt it."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clpu import store
from clpu.requests import Instruction, Stream
from clpu.runs.jobs import TaskData
from clpu.store.residue import search, text_forms

#: Training inputs of a forgotten task that are searched for, each as the bytes in which a memory would keep it.
INPUTS = 200


def residue(
    method: str, stream: Stream, data: Sequence[TaskData], network: str, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Let a durable agent handle a stream in a temporary folder, and search the folder after each forget request.

    Tasks get names that cannot occur by chance. A finding names the file and the form, not the data.
    """
    by_name = {task.name: task for task in data}
    names = {name: f"task-{secrets.token_hex(8)}" for name in by_name}
    found: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as decrypted,
        store.create(Path(folder) / "agent", method, network, **settings) as agent,
    ):
        for number, request in enumerate(stream, 1):
            task, name = by_name[request.task], names[request.task]
            if request.instruction is Instruction.FORGET:
                agent.forget(name)
                needles = {f"its name ({form})": value for form, value in text_forms(name).items()}
                needles |= {f"input {i}": bytes(x.numpy().tobytes()) for i, x in enumerate(task.train_x[:INPUTS])}
                with store.open(Path(folder) / "agent", read_only=True) as reader:
                    (Path(decrypted) / "decrypted state").write_bytes(reader.state().to_bytes())
                traces = search([folder, decrypted], needles)
                found += [
                    f"task {request.task} after request {number}: {trace.what} in {trace.path.name}" for trace in traces
                ]
            elif name in agent.tasks:
                agent.keep(name)
            else:
                temporary = request.instruction is Instruction.TEMPORARY
                agent.learn(name, task.train_x, task.train_y, temporary=temporary)
    return tuple(found)
