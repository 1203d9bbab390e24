"""Arguments and options that several commands of a durable agent have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from clpu.errors import BadReceipt

if TYPE_CHECKING:
    from clpu.store.folder import Access

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The store: the agent's folder.", show_default=False)]
Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", show_default=False)]
OneTask = Annotated[str | None, typer.Argument(metavar="[TASK]", help="The task's name.", show_default=False)]
Data = Annotated[
    Path,
    typer.Option("--data", metavar="FILE", help=".npz (x, y), .csv, .tsv, or a folder of images.", show_default=False),
]
Threads = Annotated[int, typer.Option(help="Number of threads. A different number may give a different digest.")]
WorkerCount = Annotated[
    int, typer.Option("--workers", help="Processes that compute features; the digest does not depend on it.")
]
Engine = Annotated[str, typer.Option(help="Where the workers run: local, or ray (many machines).")]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: the address of a running cluster.", show_default="a local one"),
]
Label = Annotated[
    str | None,
    typer.Option("--label-column", metavar="COLUMN", help="The label column of a table; by default the last."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="A column to leave out; may be repeated.")
]
TextColumn = Annotated[
    list[str] | None,
    typer.Option("--text-column", metavar="COLUMN", help="A column that contains text; may be repeated."),
]
PersonColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--person-column", metavar="COLUMN", help="A column with the person a record is about; may be repeated."
    ),
]
RecordColumn = Annotated[
    str | None, typer.Option("--record-column", metavar="COLUMN", help="The column with the id of each record.")
]
Holdout = Annotated[float, typer.Option(help="The share of examples held out to measure the accuracy.")]
Epochs = Annotated[int | None, typer.Option(help="Training epochs.", show_default="auto")]
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
        envvar="CLPU_PASSPHRASE_FILE", metavar="FILE", help="A file whose first line is the passphrase for the keys."
    ),
]
KeyCommand = Annotated[
    str | None,
    typer.Option(envvar="CLPU_KEY_COMMAND", metavar="COMMAND", help="The key service that wraps the master keys."),
]
SharedKeys = Annotated[
    bool, typer.Option("--shared-keys", help="Use keys that other users of this machine can access.")
]
Wait = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for another writer.")]


@dataclass(frozen=True)
class Opening:
    """Return the access to a store that a command was asked for."""

    keys: Keys = None
    passphrase_file: PassphraseFile = None
    key_command: KeyCommand = None
    shared_keys: SharedKeys = False

    def access(self) -> Access:
        from clpu.store.folder import Access
        from clpu.store.protection import Unlock, read_passphrase

        passphrase = None if self.passphrase_file is None else read_passphrase(self.passphrase_file)
        return Access(self.keys, Unlock(passphrase, self.key_command), self.shared_keys)


@dataclass(frozen=True)
class Writing(Opening):
    """As `Opening`, for a command that writes."""

    wait: Wait = 5.0

    def access(self) -> Access:
        return replace(super().access(), wait=self.wait)


@dataclass(frozen=True)
class Signer:
    """Who is expected to have signed."""

    store: Annotated[Path | None, typer.Option("--store", metavar="STORE", help="Check that this store signed it.")] = (
        None
    )
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="HEX", help="Check that this public key signed it.")
    ] = None

    def key(self) -> str | None:
        """The public key, if one was named; that of the store and the one given must be the same."""
        from clpu.store.format import is_hex
        from clpu.store.receipt import store_identity

        given = None if self.identity is None else self.identity.lower()
        if given is not None and not is_hex(given, 32):
            raise BadReceipt(f"--identity is 64 hexadecimal digits, got {self.identity!r:.80}")
        if self.store is None:
            return given
        found = store_identity(self.store)
        if given not in (None, found):
            raise BadReceipt(f"--identity is {given}, but the store signs with {found}")
        return found


def opens(command: Callable[..., None], **groups: type) -> Callable[..., None]:
    """A command in which the fields of a dataclass are options, in place of the parameter that takes it."""
    kind = inspect.Parameter.KEYWORD_ONLY
    hints = {**get_type_hints(command, include_extras=True), **groups}
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    parameters = []
    for name, own in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(own.replace(kind=kind, annotation=hints[name]))
            continue
        fields = get_type_hints(groups[name], include_extras=True)
        parameters += [p.replace(kind=kind, annotation=fields[n]) for n, p in _parameters(groups[name]).items()]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        made = {name: group(**{n: given.pop(n) for n in _parameters(group)}) for name, group in groups.items()}
        command(**given, **made)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def writes(command: Callable[..., None]) -> Callable[..., None]:
    """As `opens`, for a command that writes."""
    return opens(command, opening=Writing)


def _parameters(group: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(group).parameters)
