"""The commands of a durable agent, as they are added to a program.

All but init, learn, relearn, keep, predict and export, and forget with an inexact method, need neither torch nor the
agent's own code; verify uses both if they are there, unless told otherwise.
"""

from __future__ import annotations

import typer

from clpu.store.commands.forgetting import expire, forget, journal_app, verify_receipt
from clpu.store.commands.keys import adopt, clone, keys_app, recover
from clpu.store.commands.questions import show, status, verify
from clpu.store.commands.requests import add, export, init, keep, learn, predict, relearn


def add_commands(app: typer.Typer) -> None:
    """Add the commands of a durable agent to a program."""
    requests = (init, learn, add, relearn, keep, forget, expire, predict, export)
    for command in (*requests, status, show, verify, verify_receipt, clone, adopt, recover):
        app.command()(command)
    app.add_typer(journal_app, name="journal")
    app.add_typer(keys_app, name="keys")
