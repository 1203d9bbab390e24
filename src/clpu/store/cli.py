"""The commands of a durable agent: init, learn, keep, forget, predict, status, verify, verify-receipt.

Nothing heavy is imported before a command runs, so that `clpu --help` stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clpu import terminal
from clpu.errors import BadData, BadSetting, Error

if TYPE_CHECKING:
    from clpu.agent import Progress
    from clpu.store.durable import DurableAgent

Store = Annotated[
    Path, typer.Argument(metavar="STORE", help="The folder in which the agent lives.", show_default=False)
]
Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", show_default=False)]
Keys = Annotated[
    Path | None,
    typer.Option("--keys", envvar="CLPU_KEYS", metavar="PATH", help="The key file, if it lives outside the store."),
]
Data = Annotated[
    Path,
    typer.Option("--data", metavar="FILE", help=".npz (x, y), .csv, or a folder of images.", show_default=False),
]
Threads = Annotated[int, typer.Option(help="Threads to compute with. A different number may give a different digest.")]
Label = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="The label column of a .csv; the last by default.")
]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of a durable agent to a program."""
    for command in (init, learn, keep, forget, predict, status, verify, verify_receipt):
        app.command()(command)


def init(
    store: Store,
    method: Annotated[str, typer.Option(help="How it learns and forgets.")] = "clpu-der++",
    network: Annotated[str, typer.Option(help="mlp or resnet18.")] = "mlp",
    seed: Annotated[int, typer.Option(help="Where its random numbers start.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over a task's data.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    memory: Annotated[int | None, typer.Option(help="Examples kept of each task.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
    ] = None,
    keys: Keys = None,
) -> None:
    """Make a folder in which an agent lives."""
    from clpu.store import create

    named = {"epochs": epochs, "lr": lr, "memory": memory}
    settings = {name: value for name, value in named.items() if value is not None} | _settings(setting or [])
    with create(store, method, network, seed, keys=keys, **settings) as agent:
        terminal.say(f"{store} is ready: {agent.method} on {network}, forgetting is {_exactness(agent)}")


def learn(
    store: Store,
    task: Task,
    data: Data,
    temporary: Annotated[bool, typer.Option("--temporary", help="Learn it for now: it can be forgotten.")] = False,
    label: Label = None,
    threads: Threads = 1,
    keys: Keys = None,
) -> None:
    """Learn a new task, for good or, with --temporary, for now."""

    def request(agent: DurableAgent) -> str:
        from clpu.store.data_files import read

        table = read(data, label=label)
        agent.learn(task, table.x, table.y, temporary=temporary)
        named = ", ".join(f"{number} = {name}" for number, name in (table.meanings or {}).items())
        kind = "for now" if temporary else "for good"
        return f"learned {kind} from {len(table.x)} examples{f' (labels: {named})' if named else ''}"

    _request(store, keys, threads, request)


def keep(store: Store, task: Task, threads: Threads = 1, keys: Keys = None) -> None:
    """Remember a temporary task for good."""

    def request(agent: DurableAgent) -> str:
        agent.keep(task)
        return "remembered for good"

    _request(store, keys, threads, request)


def forget(
    store: Store,
    task: Task,
    receipt: Annotated[
        Path | None, typer.Option("--receipt", metavar="FILE", help="Write a signed statement for who asked.")
    ] = None,
    threads: Threads = 1,
    keys: Keys = None,
) -> None:
    """Forget a temporary task: its key is destroyed, its files are removed, and nothing says it was there."""

    def request(agent: DurableAgent) -> str:
        if receipt is None:
            agent.forget(task)
        else:
            with _receipt_file(receipt, store) as write:
                write(agent.forget_with_receipt(task).to_json())
        note = "" if agent.exact else f" as well as {agent.method} can: its forgetting is approximate"
        return f"forgotten{note}" + (f"; the receipt is in {receipt}" if receipt else "")

    _request(store, keys, threads, request)


def predict(
    store: Store,
    task: Task,
    data: Data,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help=".npz or .csv; to the screen by default.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="A .csv's column to leave out.")
    ] = None,
    threads: Threads = 1,
    keys: Keys = None,
) -> None:
    """Predict labels: a row an input, with the most probable label and the probability of each."""
    from clpu.store import open as open_store
    from clpu.store.data_files import read
    from clpu.store.output import write_predictions

    with open_store(store, keys=keys, read_only=True, threads=threads) as agent:
        table = read(data, label=label, labelled=False)
        probabilities = agent.predict(task, table.x)
        write_predictions(probabilities, agent.labels(task), out)


def status(
    store: Store,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", metavar="TASK=FILE", help="Show the accuracy on labelled data; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    threads: Threads = 1,
    keys: Keys = None,
) -> None:
    """Show what the agent knows: tasks, accuracy where a test file is given, bytes, digest."""
    from clpu.store import open as open_store
    from clpu.store.data_files import read
    from clpu.store.output import describe, show_status

    files = dict(_pair(text, "--test TASK=FILE") for text in test or [])
    with open_store(store, keys=keys, read_only=True, threads=threads) as agent:
        accuracies = {}
        for name, file in files.items():
            table = read(file)
            accuracies[name] = agent.accuracy(name, table.x, table.y)
        show_status(describe(agent, accuracies), json)


def verify(store: Store, keys: Keys = None) -> None:
    """Check every file of the store; exit code 1 if one is damaged."""
    from clpu.store import verify as verify_store
    from clpu.store.output import show_report

    report = verify_store(store, keys)
    show_report(report)
    if not report.good:
        raise typer.Exit(1)


def verify_receipt(
    receipt: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt.", show_default=False)],
    store: Annotated[
        Path | None, typer.Option("--store", metavar="STORE", help="Check that this store signed it.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="HEX", help="Check that this public key signed it.")
    ] = None,
) -> None:
    """Check a receipt's signature and show what it says."""
    from clpu.store.output import show_receipt
    from clpu.store.receipt import read_receipt, store_identity

    found = read_receipt(receipt)
    expected = identity if store is None else store_identity(store)
    found.verify(expected)
    show_receipt(found, checked=expected is not None)


def _request(store: Path, keys: Path | None, threads: int, request: Callable[[DurableAgent], str]) -> None:
    """Handle one request with a progress bar; Ctrl-C undoes it unless it is saved already.

    What is said on success names no task: standard output may end in a log, which a forget does not reach.
    """
    from clpu.store import open as open_store

    saved = False
    try:
        with open_store(store, keys=keys, threads=threads) as agent:
            before = agent.tasks
            try:
                with _progress_bar() as agent.progress:
                    done = request(agent)
            finally:
                saved = agent.tasks != before
    except KeyboardInterrupt:
        state = "the request was saved already" if saved else "the store is as it was"
        terminal.say(f"interrupted; {state}", error=True)
        raise typer.Exit(130) from None
    terminal.say(done)


@contextmanager
def _progress_bar() -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with terminal.progress(terminal.console(error=True), *columns) as bars:
        shown: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            if progress.phase not in shown:
                shown[progress.phase] = bars.add_task(progress.phase, total=progress.steps)
            bars.update(shown[progress.phase], completed=progress.step)

        yield show


@contextmanager
def _receipt_file(path: Path, store: Path) -> Iterator[Callable[[str], object]]:
    """A place for the receipt, made before anything is forgotten, so that a bad path does not cost the receipt."""
    from clpu.errors import BadReceipt

    if store.resolve() in path.resolve().parents:
        raise BadReceipt(f"{path} lies in the store, which keeps nothing of a receipt; choose another place")
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                yield file.write
            except BaseException:
                path.unlink()
                raise
    except FileExistsError:
        raise BadReceipt(f"{path} exists already; choose another name for the receipt") from None
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise BadReceipt(f"the receipt cannot be written to {path}: {error.strerror}") from None


def _settings(pairs: list[str]) -> dict[str, Any]:
    """`--set lr=0.1 --set hidden=100,100` as settings."""
    import json

    settings = {}
    for text in pairs:
        name, value = _pair(text, "--set NAME=VALUE")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            numbers = value.split(",")
            settings[name] = [int(n) for n in numbers] if all(n.strip().isdecimal() for n in numbers) else value
        if name == "hidden" and isinstance(settings[name], int):
            settings[name] = [settings[name]]
    return settings


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=") if form.startswith("--test") else text.partition("=")
    if not equals or not name or not value:
        raise (BadData if form.startswith("--test") else BadSetting)(f"expected {form}, got {text!r:.80}")
    return name, value


def _exactness(agent: DurableAgent) -> str:
    return "exact" if agent.exact else "approximate"
