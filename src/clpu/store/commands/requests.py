"""init, learn, relearn, keep, predict and export: what needs the agent's method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clpu import terminal
from clpu.errors import BadData, BadSetting
from clpu.options import Load, load_files
from clpu.settings import DEFAULT_METHOD
from clpu.store.commands.options import (
    Address,
    Data,
    Engine,
    Epochs,
    Holdout,
    Ignore,
    Label,
    Opening,
    PersonColumn,
    Rate,
    RecordColumn,
    Settings,
    Store,
    Task,
    TextColumn,
    Threads,
    WorkerCount,
    opens,
    writes,
)
from clpu.workers import ONE, Workers

if TYPE_CHECKING:
    from clpu.agent import Progress
    from clpu.outcome import Outcome
    from clpu.store.data_files import Table
    from clpu.store.durable import DurableAgent
    from clpu.store.store import Store as OpenStore


@opens
def init(
    store: Store,
    method: Annotated[str, typer.Option(help="How it learns and forgets.")] = DEFAULT_METHOD,
    network: Annotated[
        str | None, typer.Option(help="mlp, resnet18, a base, or a network from a file of --load; the method's own.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    epochs: Epochs = None,
    lr: Rate = None,
    memory: Annotated[int | None, typer.Option(help="Examples kept of each task.")] = None,
    setting: Settings = None,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Create a store: a folder that holds a durable agent."""
    from clpu.store import create

    load_files(load)
    settings = _settings(setting, epochs=epochs, lr=lr, memory=memory)
    access = opening.access()
    with create(store, method, network, seed, keys=access.keys, unlock=access.unlock, **settings) as agent:
        exactness = "exact" if agent.exact else "approximate"
        terminal.say(f"{store} is ready: {agent.method} on {agent.state().about['network']}, forgetting is {exactness}")


@writes
def learn(
    store: Store,
    task: Task,
    data: Data,
    temporary: Annotated[bool, typer.Option("--temporary", help="Learn it temporarily: it can be forgotten.")] = False,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="With --temporary: when `clpu expire` forgets it.")
    ] = None,
    label: Label = None,
    ignore: Ignore = None,
    person: PersonColumn = None,
    record: RecordColumn = None,
    text: TextColumn = None,
    holdout: Holdout = 0.1,
    epochs: Epochs = None,
    lr: Rate = None,
    setting: Settings = None,
    threads: Threads = 1,
    workers: WorkerCount = 1,
    engine: Engine = "local",
    address: Address = None,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Learn a new task permanently or, with --temporary, temporarily."""
    load_files(load)
    sharing = Workers(workers, engine, address)
    table = _read(data, label, ignore, person, record, text)
    options = _settings(setting, epochs=epochs, lr=lr) | {"holdout": holdout, "text": text}

    def request(agent: DurableAgent) -> str:
        more = {"people": table.people, "records": table.records}
        outcome = agent.learn(task, table.x, table.y, temporary=temporary, until=until, **more, **options)
        return _learned("learned temporarily" if temporary else "learned permanently", table, outcome, task)

    agent_request(store, opening, threads, request, sharing)


@writes
def add(
    store: Store,
    task: Task,
    data: Data,
    label: Label = None,
    ignore: Ignore = None,
    person: PersonColumn = None,
    record: RecordColumn = None,
    threads: Threads = 1,
    workers: WorkerCount = 1,
    engine: Engine = "local",
    address: Address = None,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Add records to a task, with a method that forgets records; one whose id is there already is refused."""
    from clpu.tables import text_columns

    load_files(load)
    sharing = Workers(workers, engine, address)

    def request(agent: DurableAgent) -> str:
        table = _read(data, label, ignore, person, record, text_columns(agent.state().tasks))
        agent.add(task, table.x, table.y, people=table.people, records=table.records)
        return f"added {table.examples} records"

    agent_request(store, opening, threads, request, sharing)


@writes
def relearn(
    store: Store,
    task: Task,
    data: Data,
    label: Label = None,
    ignore: Ignore = None,
    person: PersonColumn = None,
    record: RecordColumn = None,
    text: TextColumn = None,
    holdout: Holdout = 0.1,
    epochs: Epochs = None,
    lr: Rate = None,
    setting: Settings = None,
    threads: Threads = 1,
    workers: WorkerCount = 1,
    engine: Engine = "local",
    address: Address = None,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Learn a task again from different data, as if the first time had not been."""
    load_files(load)
    sharing = Workers(workers, engine, address)
    table = _read(data, label, ignore, person, record, text)
    options = _settings(setting, epochs=epochs, lr=lr) | {"holdout": holdout, "text": text}

    def request(agent: DurableAgent) -> str:
        outcome = agent.relearn(task, table.x, table.y, people=table.people, records=table.records, **options)
        return _learned("learned again", table, outcome, task)

    agent_request(store, opening, threads, request, sharing)


def _read(
    data: Path,
    label: str | None,
    ignore: list[str] | None,
    person: list[str] | None,
    record: str | None,
    text: list[str] | None,
) -> Table:
    """A request's data, before the lock is taken: others may write meanwhile."""
    from clpu.store.data_files import read

    return read(data, label=label, ignore=ignore or (), people=person or (), records=record, text=text or ())


def _learned(done: str, table: Table, outcome: Outcome, task: str) -> str:
    """What was learned and from what, how good it is, and what that did to other tasks."""
    from clpu.store.output import with_outcome

    for note in table.notes:
        terminal.say(f"note: {note}", error=True)
    held = outcome.held_out
    if held is not None:
        terminal.say(f"accuracy: {held}")
        if not held.better:
            terminal.say("warning: that is no better than always answering with the most frequent label", error=True)
    taught = table.examples - (held.examples if held else 0)
    return with_outcome(f"{done} from {taught} examples", outcome, task)


@writes
def keep(store: Store, task: Task, threads: Threads = 1, load: Load = None, *, opening: Opening) -> None:
    """Make a temporary task permanent."""
    from clpu.store.output import with_outcome

    load_files(load)

    def request(agent: DurableAgent) -> str:
        return with_outcome("made permanent", agent.keep(task), task)

    agent_request(store, opening, threads, request)


@opens
def predict(
    store: Store,
    data: Data,
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="The task's name; left out, every task is considered.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help=".npz or .csv; to the screen by default.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label-column", metavar="COLUMN", help="A table's column to leave out.")
    ] = None,
    threads: Threads = 1,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Predict labels: one row per input with the most likely label and the probability of every label.

    Without a task: the most likely pair of task and label, or "none of these".
    """
    from clpu.store.data_files import read
    from clpu.store.output import write_predictions
    from clpu.store.store import Store as OpenStore
    from clpu.tables import text_columns

    load_files(load)
    with OpenStore(store, opening.access(), write=False) as opened:
        table = read(data, label=label, labelled=False, text=text_columns(opened.load().tasks))
        agent = agent_of(opened, threads)
        write_predictions(agent.predict(task, table.x), agent.classify(task, table.x), agent.labels(task), out)


@opens
def export(
    store: Store,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help=".pt2 (torch.export) or .onnx.", show_default=False)],
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="The task; all remembered ones by default.")
    ] = None,
    forgettable: Annotated[
        bool, typer.Option("--forgettable", help="Export what can still be forgotten: the copy will not be.")
    ] = False,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Write a task's network, or those of all remembered tasks, for use without clpu."""
    from clpu.export import export as write
    from clpu.store.store import Store as OpenStore

    load_files(load)
    with OpenStore(store, opening.access(), write=False) as opened:
        opened.load()
        about = write(agent_of(opened, 1), to, task, forgettable=forgettable)
    terminal.say(f"{to} holds the networks of {len(about['tasks'])} task(s) and takes {about['takes']}")


def store_request(store: Path, opening: Opening, request: Callable[[OpenStore], str]) -> None:
    """Handle one request; Ctrl-C undoes it unless it is saved already.

    The message on success names no task: standard output may end in a log, which a forget does not reach.
    """
    from clpu.store.store import Store as OpenStore

    saved = False
    try:
        with OpenStore(store, opening.access(), write=True) as opened:
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


def agent_request(
    store: Path, opening: Opening, threads: int, request: Callable[[DurableAgent], str], workers: Workers = ONE
) -> None:
    """Handle one request that takes the agent's method, with a progress bar."""

    def work(opened: OpenStore) -> str:
        with working_agent(opened, threads) as agent:
            agent.workers = workers
            return request(agent)

    store_request(store, opening, work)


def agent_of(opened: OpenStore, threads: int) -> DurableAgent:
    """The agent in a store that was loaded."""
    from clpu.store.durable import DurableAgent

    return DurableAgent.of_store(opened, threads=threads)


@contextmanager
def working_agent(opened: OpenStore, threads: int) -> Iterator[DurableAgent]:
    """The agent in a store, with a progress bar."""
    agent = agent_of(opened, threads)
    with _progress_bar() as agent.progress:
        yield agent


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


def _settings(pairs: list[str] | None, **named: Any) -> dict[str, Any]:
    """`--epochs 5 --set lr=0.1 --set hidden=100,100` as settings."""
    from clpu.settings import parse_value

    further = (pair(text, "--set NAME=VALUE") for text in pairs or [])
    given = {name: value for name, value in named.items() if value is not None}
    return given | {name: parse_value(value) for name, value in further}


def pair(text: str, form: str) -> tuple[str, str]:
    """The two sides of an option such as `--set NAME=VALUE`."""
    name, equals, value = text.rpartition("=") if form.startswith("--test") else text.partition("=")
    if not equals or not name or not value:
        raise (BadData if form.startswith("--test") else BadSetting)(f"expected {form}, got {text!r:.80}")
    return name, value
