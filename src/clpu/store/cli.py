"""The commands of a durable agent: init, learn, keep, forget, predict, status, verify, verify-receipt.

`status`, `verify`, `verify-receipt` and, with an exact method, `forget` need neither torch nor the agent's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clpu import terminal
from clpu.errors import BadData, BadSetting, Error
from clpu.options import Load, load_files

if TYPE_CHECKING:
    from clpu.agent import Progress
    from clpu.store.durable import DurableAgent
    from clpu.store.store import Store as OpenStore

Store = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store: the folder that holds the agent.", show_default=False)
]
Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", show_default=False)]
Keys = Annotated[
    Path | None,
    typer.Option("--keys", envvar="CLPU_KEYS", metavar="PATH", help="The key file, if it is stored outside the store."),
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
    network: Annotated[str, typer.Option(help="mlp, resnet18, or a network from a file of --load.")] = "mlp",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over a task's data.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    memory: Annotated[int | None, typer.Option(help="Examples kept of each task.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
    ] = None,
    load: Load = None,
    keys: Keys = None,
) -> None:
    """Create a store: a folder that holds a durable agent."""
    from clpu.store import create

    load_files(load)
    named = {"epochs": epochs, "lr": lr, "memory": memory}
    settings = {name: value for name, value in named.items() if value is not None} | _settings(setting or [])
    with create(store, method, network, seed, keys=keys, **settings) as agent:
        terminal.say(f"{store} is ready: {agent.method} on {network}, forgetting is {_exactness(agent)}")


def learn(
    store: Store,
    task: Task,
    data: Data,
    temporary: Annotated[bool, typer.Option("--temporary", help="Learn it temporarily: it can be forgotten.")] = False,
    label: Label = None,
    threads: Threads = 1,
    load: Load = None,
    keys: Keys = None,
) -> None:
    """Learn a new task permanently or, with --temporary, temporarily."""
    load_files(load)

    def request(agent: DurableAgent) -> str:
        from clpu.store.data_files import read

        table = read(data, label=label)
        agent.learn(task, table.x, table.y, temporary=temporary)
        named = ", ".join(f"{number} = {name}" for number, name in (table.meanings or {}).items())
        kind = "temporarily" if temporary else "permanently"
        return f"learned {kind} from {len(table.x)} examples{f' (labels: {named})' if named else ''}"

    _agent_request(store, keys, threads, request)


def keep(store: Store, task: Task, threads: Threads = 1, load: Load = None, keys: Keys = None) -> None:
    """Make a temporary task permanent."""
    load_files(load)

    def request(agent: DurableAgent) -> str:
        agent.keep(task)
        return "made permanent"

    _agent_request(store, keys, threads, request)


def forget(
    store: Store,
    task: Task,
    receipt: Annotated[
        Path | None, typer.Option("--receipt", metavar="FILE", help="Write a signed receipt to FILE.")
    ] = None,
    threads: Threads = 1,
    load: Load = None,
    keys: Keys = None,
) -> None:
    """Forget a task: destroy its key, delete its files, keep no record of it."""
    load_files(load)

    def request(opened: OpenStore) -> str:
        from clpu.store import forgetting

        before = opened.standing
        exact = forgetting.is_exact(before.state)
        with nullcontext() if receipt is None else _receipt_file(receipt, store) as write:
            if exact:
                forgetting.forget(opened, task)
            else:
                with _working_agent(opened, threads) as agent:
                    agent.forget(task)
            if write is not None:
                write(forgetting.receipt(opened, before, task).to_json())
        method = before.state.about["method"]
        note = "" if exact else f", but only approximately: {method} does not guarantee exact forgetting"
        return f"forgotten{note}" + (f"; the receipt is in {receipt}" if receipt else "")

    _request(store, keys, request)


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
    load: Load = None,
    keys: Keys = None,
) -> None:
    """Predict labels: one row per input with the most likely label and the probability of every label."""
    from clpu.store import open as open_store
    from clpu.store.data_files import read
    from clpu.store.output import write_predictions

    load_files(load)
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
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    threads: Threads = 1,
    load: Load = None,
    keys: Keys = None,
) -> None:
    """Show what the agent knows: tasks, accuracy where a test file is given, bytes, digest."""
    from clpu.store.output import describe, show_status
    from clpu.store.store import Store as OpenStore

    load_files(load)
    files = dict(_pair(text, "--test TASK=FILE") for text in test or [])
    with OpenStore(store, keys, write=False) as opened:
        state = opened.load()
        accuracies = _accuracies(opened, files, threads) if files else {}
        show_status(describe(state, opened.path, opened.standing.manifest.identity, accuracies), json)


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


def _request(store: Path, keys: Path | None, request: Callable[[OpenStore], str]) -> None:
    """Handle one request; Ctrl-C undoes it unless it is saved already.

    The message on success names no task: standard output may end in a log, which a forget does not reach.
    """
    from clpu.store.store import Store as OpenStore

    saved = False
    try:
        with OpenStore(store, keys, write=True) as opened:
            before = opened.load()
            try:
                done = request(opened)
            finally:
                saved = opened.standing.state is not before
    except KeyboardInterrupt:
        outcome = "the request was saved already" if saved else "the store is as it was"
        terminal.say(f"interrupted; {outcome}", error=True)
        raise typer.Exit(130) from None
    terminal.say(done)


def _agent_request(store: Path, keys: Path | None, threads: int, request: Callable[[DurableAgent], str]) -> None:
    """Handle one request that takes the agent's method, with a progress bar."""

    def work(opened: OpenStore) -> str:
        with _working_agent(opened, threads) as agent:
            return request(agent)

    _request(store, keys, work)


@contextmanager
def _working_agent(opened: OpenStore, threads: int) -> Iterator[DurableAgent]:
    """The agent in a store, with a progress bar."""
    from clpu.store.durable import DurableAgent

    agent = DurableAgent.of_store(opened, threads=threads)
    with _progress_bar() as agent.progress:
        yield agent


def _accuracies(opened: OpenStore, files: Mapping[str, str], threads: int) -> dict[str, list[float]]:
    """The accuracy of each replica on labelled data, by task."""
    import numpy as np

    from clpu.store.data_files import read
    from clpu.store.durable import DurableAgent

    agent = DurableAgent.of_store(opened, threads=threads)
    found = {}
    for name, file in files.items():
        table = read(file)
        found[name] = np.atleast_1d(agent.accuracy(name, table.x, table.y)).tolist()
    return found


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
    """The file of the receipt, made before anything is forgotten, so that a bad path does not cost the receipt."""
    from clpu.errors import BadReceipt

    if store.resolve() in path.resolve().parents:
        raise BadReceipt(f"{path} is inside the store, which keeps nothing of a receipt; choose a different path")
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                yield file.write
            except BaseException:
                path.unlink()
                raise
    except FileExistsError:
        raise BadReceipt(f"{path} already exists; choose a different name for the receipt") from None
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise BadReceipt(f"the receipt cannot be written to {path}: {error.strerror}") from None


def _settings(pairs: list[str]) -> dict[str, Any]:
    """`--set lr=0.1 --set hidden=100,100` as settings."""
    from clpu.settings import parse_value

    named = (_pair(text, "--set NAME=VALUE") for text in pairs)
    return {name: parse_value(value) for name, value in named}


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=") if form.startswith("--test") else text.partition("=")
    if not equals or not name or not value:
        raise (BadData if form.startswith("--test") else BadSetting)(f"expected {form}, got {text!r:.80}")
    return name, value


def _exactness(agent: DurableAgent) -> str:
    return "exact" if agent.exact else "approximate"
