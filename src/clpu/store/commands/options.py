"""Arguments and options that several commands of a durable agent have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from clpu.store.folder import Access

Store = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store: the folder that holds the agent.", show_default=False)
]
Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", show_default=False)]
OneTask = Annotated[str | None, typer.Argument(metavar="[TASK]", help="The task's name.", show_default=False)]
Data = Annotated[
    Path,
    typer.Option("--data", metavar="FILE", help=".npz (x, y), .csv, .tsv, or a folder of images.", show_default=False),
]
Threads = Annotated[int, typer.Option(help="Threads to compute with. A different number may give a different digest.")]
WorkerCount = Annotated[
    int, typer.Option("--workers", help="Processes that share the making of features; the digest stays the same.")
]
Engine = Annotated[str, typer.Option(help="Where the workers run: local, or ray (many machines).")]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: the address of a running cluster.", show_default="a local one"),
]
Label = Annotated[
    str | None,
    typer.Option("--label-column", metavar="COLUMN", help="The label column of a table; the last by default."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="A column to leave out; may be repeated.")
]
TextColumn = Annotated[
    list[str] | None,
    typer.Option("--text-column", metavar="COLUMN", help="A column that holds text; may be repeated."),
]
PersonColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--person-column", metavar="COLUMN", help="The column that says who a record is about; may be repeated."
    ),
]
RecordColumn = Annotated[
    str | None, typer.Option("--record-column", metavar="COLUMN", help="The column with an id of each record.")
]
Holdout = Annotated[
    float, typer.Option(help="The share of the examples that is not learned from, to say how good the task is.")
]
Epochs = Annotated[int | None, typer.Option(help="Passes over a task's data.", show_default="auto")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate.", show_default="auto")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Keys = Annotated[
    Path | None,
    typer.Option("--keys", envvar="CLPU_KEYS", metavar="PATH", help="The keys folder, if it is outside the store."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        envvar="CLPU_PASSPHRASE_FILE", metavar="FILE", help="A file whose first line is the passphrase of the keys."
    ),
]
KeyCommand = Annotated[
    str | None,
    typer.Option(envvar="CLPU_KEY_COMMAND", metavar="COMMAND", help="The key service that wraps the master keys."),
]
SharedKeys = Annotated[bool, typer.Option("--shared-keys", help="Use keys that others on this machine can reach.")]
Wait = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for another writer.")]


@dataclass(frozen=True)
class Opening:
    """How a command gets at its store, as it was asked to."""

    keys: Path | None = None
    passphrase_file: Path | None = None
    key_command: str | None = None
    shared_keys: bool = False
    wait: float = 5.0

    def access(self) -> Access:
        from clpu.store.folder import Access
        from clpu.store.protection import Unlock, read_passphrase

        passphrase = None if self.passphrase_file is None else read_passphrase(self.passphrase_file)
        return Access(self.keys, Unlock(passphrase, self.key_command), self.shared_keys, self.wait)


_READING: dict[str, Any] = {
    "keys": (Keys, None),
    "passphrase_file": (PassphraseFile, None),
    "key_command": (KeyCommand, None),
    "shared_keys": (SharedKeys, False),
}


def opens(command: Callable[..., None], *, writes: bool = False) -> Callable[..., None]:
    """A command with the options that say how to get at the store, in place of its parameter `opening`."""
    options = {**_READING, **({"wait": (Wait, 5.0)} if writes else {})}
    hints = get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[name]) for name, p in _parameters(command).items() if name != "opening"]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, annotation=hint, default=default) for name, (hint, default) in options.items()
    ]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        command(**given, opening=Opening(**chosen))

    parameters = [p.replace(kind=kind) for p in own] + added
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def writes(command: Callable[..., None]) -> Callable[..., None]:
    """As `opens`, for a command that writes."""
    return opens(command, writes=True)


def _parameters(command: Callable[..., None]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(command).parameters)
