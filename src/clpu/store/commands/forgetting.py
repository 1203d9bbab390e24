"""forget, expire, verify-receipt and the journal."""

from __future__ import annotations

import secrets
from collections.abc import Sized
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clpu import terminal
from clpu.errors import BadReceipt, BadRequest, Error
from clpu.options import Load, load_files
from clpu.store.commands.options import Json, OneTask, Opening, Signer, Store, Threads, opens, writes
from clpu.store.commands.requests import store_request, working_agent

if TYPE_CHECKING:
    from clpu.state import State
    from clpu.store.forgetting import Order
    from clpu.store.journal import Journal as Book
    from clpu.store.store import Store as OpenStore

ReceiptFile = Annotated[
    Path | None, typer.Option("--receipt", metavar="FILE", help="Write a signed receipt to FILE before forgetting.")
]
Receipts = Annotated[
    Path | None, typer.Option("--receipts", metavar="FOLDER", help="Write a receipt for each request to FOLDER.")
]
Journal = Annotated[
    Path | None, typer.Option("--journal", metavar="FILE", help="Append each receipt's hash to this journal.")
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, copied into the receipt.")]
Digests = Annotated[
    bool, typer.Option("--digests", help="Add digests of the full state to the receipt; reads the whole state.")
]


@writes
def forget(
    store: Store,
    task: OneTask = None,
    from_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One request per line: a task name, or JSON (task, id, reason, requester)."),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Forget this person's records in the task or, without a task, in all tasks."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="LABEL", help="Forget a label of the task; may be repeated.")
    ] = None,
    record: Annotated[
        list[str] | None, typer.Option("--record", metavar="ID", help="Forget a record of the task; may be repeated.")
    ] = None,
    receipt: ReceiptFile = None,
    receipts: Receipts = None,
    journal: Journal = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="TEXT", help="The request's id; repeating the request returns the same receipt."),
    ] = None,
    reason: Reason = None,
    requester: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The requester, copied into the receipt.")
    ] = None,
    digests: Digests = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, but forget nothing.")] = False,
    threads: Threads = 1,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Forget a task or a person: destroy the keys, delete the files, and keep no record of it."""
    from clpu.store.forgetting import Order

    load_files(load)
    given = {"task": task, "person": person, "labels": label, "records": record}
    scope = {name: value for name, value in given.items() if value is not None}
    if bool(scope) == (from_file is not None):
        raise BadRequest("name what to forget, or give --from-file FILE")
    if from_file is not None and (receipt is not None or id is not None):
        raise BadRequest("with --from-file, ids are in the file, and receipts go to the folder of --receipts")
    said: dict[str, Any] = {"reason": reason, "requester": requester}
    fixed: dict[str, Any] = {"digests": digests, "threads": threads}
    if from_file is not None:
        orders = [Order(**{**said, **line}, **fixed) for line in _lines(from_file)]
    else:
        orders = [Order(scope, id, **said, **fixed)]
    if dry_run:
        _show_footprints(store, opening, orders)
        return

    def request(opened: OpenStore) -> str:
        return _forget_all(opened, orders, receipt, receipts, journal)

    store_request(store, opening, request)


def _forget_all(
    opened: OpenStore, orders: list[Order], receipt: Path | None, receipts: Path | None, journal: Path | None
) -> str:
    """Carry requests out one by one; what an earlier attempt did already is not done again."""
    from clpu.store import forgetting
    from clpu.store.files import refuse_inside

    state = opened.standing.state
    book = _book(opened, journal, receipt or receipts)
    orders = [replace(order, scope=forgetting.with_labels(state, order.scope)) for order in orders]
    exact, method = forgetting.is_exact(state), state.about["method"]
    places = [receipt if receipts is None else _place(receipts, order) for order in orders]
    for file in filter(None, places):
        refuse_inside(opened.path, file)
    if len(orders) > 1:  # a batch with a mistake changes nothing
        _check_batch(state, [order for order, place in zip(orders, places) if place is None or not place.exists()])
    for order, place in zip(orders, places):
        act = partial(_ask, opened, order.threads)
        if place is None and exact:
            forgetting.forget(opened, **order.scope)
        elif place is None:
            act(order.scope)
        else:
            made = forgetting.forget_with_receipt(opened, order, place, act)
            if book is not None:
                book.append([made])
    note = "" if exact else f", but only approximately: {method} does not guarantee exact forgetting"
    many = "forgotten" if len(orders) == 1 else f"{len(orders)} requests carried out"
    where = receipt if receipts is None else receipts
    receipted = "the receipt is" if receipts is None else "receipts are"
    return f"{many}{note}" + (f"; {receipted} in {where}" if where else "")


def _check_batch(state: State, orders: list[Order]) -> None:
    """Refuse a batch of which a request would be refused after those before it."""
    from clpu.store import forgetting

    for number, order in enumerate(orders, 1):
        try:
            state = forgetting.without(state, **order.scope)
        except Error as error:
            raise type(error)(f"request {number} of {len(orders)}: {error}; nothing was forgotten") from None


def _ask(opened: OpenStore, threads: int, scope: Any) -> None:
    """Forget with the method itself, for those that are not exact."""
    with working_agent(opened, threads) as agent:
        agent.forget(**scope)


def _book(opened: OpenStore, journal: Path | None, receipts: Path | None) -> Book | None:
    """The journal to append to, if there is to be one; what is wrong with it shows before anything is forgotten."""
    from clpu.store.files import refuse_inside
    from clpu.store.journal import Journal as Book

    if journal is None:
        return None
    if receipts is None:
        raise BadReceipt("a journal commits to receipts: give --receipt FILE or --receipts FOLDER as well")
    refuse_inside(opened.path, journal)
    return Book(journal, opened.secrets.signing)


def _place(folder: Path, order: Order) -> Path:
    """The file of a request's receipt, by a hash of the request's id."""
    from clpu.io import canonical, sha256

    if not folder.is_dir():
        raise BadReceipt(f"there is no folder {folder} for the receipts")
    return folder / f"{sha256(order.id or canonical(dict(order.scope)))[:32]}.json"


def _lines(path: Path) -> list[dict[str, Any]]:
    """The requests of a file: each with its scope and, perhaps, an id, a reason and a requester."""
    from clpu.io import sha256
    from clpu.store.forgetting import as_json
    from clpu.store.receipt import read_text, strict_json

    found: list[dict[str, Any]] = []
    content_of_file = read_text(path, 64 << 20)
    batch = sha256(content_of_file)[:16]  # so that the same file, given again, is the same requests
    for number, line in enumerate(content_of_file.splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        try:
            content = strict_json(text) if text.startswith("{") else {"task": text}
            said = {name: content.pop(name) for name in ("id", "reason", "requester") if name in content}
            if not all(isinstance(value, str) for value in said.values()):
                raise ValueError("id, reason and requester are texts")
            as_json(content)
        except (ValueError, RecursionError, BadRequest) as error:
            raise BadRequest(f"line {number} of {path} cannot be used: {error!s:.200}") from None
        found.append({"id": f"batch {batch} line {number}", "scope": content, **said})
    if not found:
        raise BadRequest(f"{path} holds no requests")
    return found


def _show_footprints(store: Path, opening: Opening, orders: list[Order]) -> None:
    from clpu.store.forgetting import footprint, with_labels
    from clpu.store.store import Store as OpenStore

    with OpenStore(store, opening.access(), write=False) as opened:
        opened.load()
        for order in orders:
            found = footprint(opened.standing, with_labels(opened.standing.state, order.scope))
            rewritten = f", {len(found.rewritten)} rewritten under new keys" if found.rewritten else ""
            kind = "exactly" if found.exact else "approximately"
            tasks, removed = _count(found.tasks, "task"), _count(found.removed, "file")
            records = f"{_count(range(found.records), 'record')}, " if found.records else ""
            terminal.say(
                f"would forget {kind}: {records}{tasks} touched, {removed} removed{rewritten}, "
                f"{found.bytes:,} bytes; nothing was changed"
            )


@writes
def expire(
    store: Store,
    receipts: Receipts = None,
    journal: Journal = None,
    digests: Digests = False,
    threads: Threads = 1,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Forget every temporary task that has expired (`learn --until`)."""
    from clpu.store.expiry import due
    from clpu.store.forgetting import Order, receipts_in

    load_files(load)

    def request(opened: OpenStore) -> str:
        book = _book(opened, journal, receipts)
        if receipts is not None:  # what an earlier attempt left, in the receipts or in the journal, is completed
            found = list(receipts_in(opened, receipts, partial(_ask, opened, threads)))
            if book is not None:
                book.append(found)
        fixed: dict[str, Any] = {"reason": "expired", "digests": digests, "threads": threads}
        tasks = due(opened.standing.state)
        orders = [Order({"task": task}, f"expired {secrets.token_hex(16)}", **fixed) for task in tasks]
        if not orders:
            return "nothing is due"
        return _forget_all(opened, orders, None, receipts, journal)

    store_request(store, opening, request)


@opens
def verify_receipt(
    receipt: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt.", show_default=False)],
    signer: Signer,
) -> None:
    """Check a receipt's signature and show its contents."""
    from clpu.store.output import show_receipt
    from clpu.store.receipt import read_receipt

    found = read_receipt(receipt)
    expected = signer.key()
    found.verify(expected)
    show_receipt(found, checked=expected is not None)


journal_app = typer.Typer(no_args_is_help=True, help="Check the journal of forget requests, if you keep one.")


@journal_app.command("verify")
@opens
def verify_journal(
    journal: Annotated[Path, typer.Argument(metavar="FILE", help="The journal.", show_default=False)],
    signer: Signer,
    receipts: Annotated[
        Path | None,
        typer.Option("--receipts", metavar="FOLDER", help="Check that each receipt in FOLDER is in the journal."),
    ] = None,
    json: Json = False,
) -> None:
    """Check that no journal entry is missing or changed."""
    from clpu.store.journal import verify_journal as verify

    entries = verify(journal, signer.key(), receipts)
    if json:
        terminal.say_json(entries)
    else:
        terminal.say(f"{len(entries)} entries, none missing or changed; the last is of {entries[-1]['done']}")


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"
