"""clone, adopt, recover and keys: copies of a store, and its master keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clpu import terminal
from clpu.store.commands.options import Opening, Store, opens, writes


@opens
def clone(
    store: Store,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the new store.", show_default=False)],
    new_keys: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The new store's keys folder, if outside the store.")
    ] = None,
    *,
    opening: Opening,
) -> None:
    """Create an independent store with new keys from a store or a copy of one."""
    from clpu.store.folder import Access
    from clpu.store.lifecycle import clone as clone_store

    access = opening.access()
    tasks = clone_store(store, new, access, Access(new_keys, access.unlock))
    terminal.say(f"{new} is ready: an independent store with {tasks} task{'s' * (tasks != 1)}")


@writes
def adopt(store: Store, *, opening: Opening) -> None:
    """Let this folder replace the store that its keys belong to, after a move or a restore."""
    from clpu.store.lifecycle import adopt as adopt_store

    dropped = adopt_store(store, opening.access())
    terminal.say(
        f"{store} is adopted; dropped {dropped.files} files whose keys are gone and {dropped.keys} keys without a file"
    )


@opens
def recover(
    store: Store,
    recovery: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file from `clpu keys export`.", show_default=False)
    ],
    *,
    opening: Opening,
) -> None:
    """Make a store usable again after losing its keys; everything that can be forgotten is lost."""
    from clpu.store.rotation import recover as recover_store

    tasks = recover_store(store, recovery, opening.access())
    terminal.say(f"{store} is usable again, with {tasks} task{'s' * (tasks != 1)}, new keys and a new identity")


keys_app = typer.Typer(no_args_is_help=True, help="Rotate or export the master keys of a store.")


@keys_app.command("rotate")
@writes
def rotate(
    store: Store,
    new_passphrase_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Protect the new keys with the passphrase in FILE.")
    ] = None,
    new_key_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Protect the new keys with this key service.")
    ] = None,
    unprotected: Annotated[bool, typer.Option("--unprotected", help="Store the new keys unprotected.")] = False,
    *,
    opening: Opening,
) -> None:
    """Replace the master keys and, on request, their protection; rewrites all keys and permanent files."""
    from clpu.store.protection import Unlock, read_passphrase
    from clpu.store.rotation import rotate as rotate_keys

    passphrase = None if new_passphrase_file is None else read_passphrase(new_passphrase_file)
    chosen = Unlock(passphrase, new_key_command)
    changes = unprotected or passphrase is not None or new_key_command is not None
    rotate_keys(store, opening.access(), chosen if changes else None)
    terminal.say("the master keys are new; copies of the old ones open nothing that is written from now on")


@keys_app.command("export")
@opens
def export(
    store: Store,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.", show_default=False)],
    *,
    opening: Opening,
) -> None:
    """Export the keys of data that can never be forgotten, for `clpu recover`; safe to back up."""
    from clpu.store.rotation import export_recovery

    export_recovery(store, out, opening.access())
    terminal.say(f"{out} opens what can never be forgotten, and nothing else; keep it apart from the store")
