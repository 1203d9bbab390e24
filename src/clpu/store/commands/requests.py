"""init, learn, add, relearn, keep, predict and export: what needs the agent's method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    from clpu.agent import Agent, Progress
    from clpu.outcome import Outcome
    from clpu.store.data_files import Table
    from clpu.store.durable import DurableAgent
    from clpu.store.store import Store as OpenStore


@dataclass(frozen=True)
class Reading:
    """The data of a request, and what is in which column."""

    data: Data
    label: Label = None
    ignore: Ignore = None
    person: PersonColumn = None
    record: RecordColumn = None

    def table(self, text: Sequence[str] | None = None, labels: type | None = None) -> Table:
        """Read a request's data, and print at once how the file was read.

        Columns of text stay text, whatever is in the file; so do labels, if those that the task has are text.
        """
        table = self._read(text or (), labels)
        for note in table.notes:
            terminal.say(f"note: {note}", error=True)
        return table

    def as_in(self, tasks: Mapping[str, Any], table: Table, text: Sequence[str] | None) -> Table:
        """A table as it was read or, if further columns hold text in these tasks, with those columns read as text."""
        from clpu.tables import text_columns

        wanted = {*(text or ()), *text_columns(tasks)}
        return self._read(sorted(wanted)) if wanted - {*(text or ())} else table

    def _read(self, text: Sequence[str], labels: type | None = None) -> Table:
        from clpu.store.data_files import read

        who, ids, ignore = self.person or (), self.record, self.ignore or ()
        return read(self.data, label=self.label, ignore=ignore, people=who, records=ids, text=text, labels=labels)


@dataclass(frozen=True)
class Training:
    """How a task is learned."""

    text: TextColumn = None
    holdout: Holdout = 0.1
    epochs: Epochs = None
    lr: Rate = None
    setting: Settings = None

    def options(self, table: Table) -> dict[str, Any]:
        settings = _settings(self.setting, epochs=self.epochs, lr=self.lr)
        text = [name for name in self.text or () if name != table.label]
        return settings | {"holdout": self.holdout, "text": text or None}


@dataclass(frozen=True)
class Computing:
    """With how many threads and processes, and where."""

    threads: Threads = 1
    workers: WorkerCount = 1
    engine: Engine = "local"
    address: Address = None

    def sharing(self) -> Workers:
        return Workers(self.workers, self.engine, self.address)


@opens
def init(
    store: Store,
    method: Annotated[str, typer.Option(help="The method; `clpu methods` lists them.")] = DEFAULT_METHOD,
    network: Annotated[
        str | None,
        typer.Option(help="mlp, resnet18, a base, or a network from a --load file; by default the method's."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    epochs: Epochs = None,
    lr: Rate = None,
    memory: Annotated[int | None, typer.Option(help="Examples kept per task.")] = None,
    setting: Settings = None,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Create a store: a folder with a durable agent."""
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
    reading: Reading,
    temporary: Annotated[
        bool, typer.Option("--temporary", help="Learn the task temporarily, so that it can be forgotten.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="With --temporary: the date from which `clpu expire` forgets it."),
    ] = None,
    *,
    training: Training,
    computing: Computing,
    load: Load = None,
    opening: Opening,
) -> None:
    """Learn a new task permanently or, with --temporary, temporarily."""
    load_files(load)
    read, sharing = reading.table(training.text), computing.sharing()

    def request(agent: DurableAgent) -> Callable[[], str]:
        table = reading.as_in(agent.state().tasks, read, training.text)
        more = {"people": table.people, "records": table.records, **training.options(table)}
        outcome = agent.learn(task, table.x, table.y, temporary=temporary, until=until, **more)
        done = "learned temporarily" if temporary else "learned permanently"
        return lambda: _learned(done, table, outcome, task, training.holdout)

    agent_request(store, opening, computing.threads, request, sharing)


@writes
def add(
    store: Store,
    task: Task,
    reading: Reading,
    *,
    computing: Computing,
    load: Load = None,
    opening: Opening,
) -> None:
    """Add records to a task (methods that forget records); existing ids are refused."""
    from clpu.tables import text_columns

    load_files(load)
    sharing = computing.sharing()

    def request(agent: DurableAgent) -> Callable[[], str]:
        table = reading.table(text_columns(agent.state().tasks), type(agent.labels(task)[0]))
        agent.add(task, table.x, table.y, people=table.people, records=table.records)
        return lambda: f"added {table.examples} records"

    agent_request(store, opening, computing.threads, request, sharing)


@writes
def relearn(
    store: Store,
    task: Task,
    reading: Reading,
    *,
    training: Training,
    computing: Computing,
    load: Load = None,
    opening: Opening,
) -> None:
    """Learn a task again from different data, as if it had not been learned before."""
    load_files(load)
    read, sharing = reading.table(training.text), computing.sharing()

    def request(agent: DurableAgent) -> Callable[[], str]:
        table = reading.as_in(agent.state().without(task).tasks, read, training.text)
        more = {"people": table.people, "records": table.records, **training.options(table)}
        outcome = agent.relearn(task, table.x, table.y, **more)
        return lambda: _learned("learned again", table, outcome, task, training.holdout)

    agent_request(store, opening, computing.threads, request, sharing)


def _learned(done: str, table: Table, outcome: Outcome, task: str, holdout: float) -> str:
    """Report what was learned and from what, how good it is, and the effect on other tasks."""
    from clpu.store.output import with_outcome

    held = outcome.held_out
    if held is not None:
        terminal.say(f"accuracy: {held}")
    taught = table.examples - (held.examples if held else 0)
    unknown = " (too few different ones to hold some out)" if holdout and held is None else ""
    return with_outcome(f"{done} from {taught} examples{unknown}", outcome, task)


@writes
def keep(store: Store, task: Task, threads: Threads = 1, load: Load = None, *, opening: Opening) -> None:
    """Make a temporary task permanent."""
    from clpu.store.output import with_outcome

    load_files(load)

    def request(agent: DurableAgent) -> Callable[[], str]:
        done = "permanent already" if agent.tasks.get(task) == "R" else "made permanent"
        outcome = agent.keep(task)
        return lambda: with_outcome(done, outcome, task)

    agent_request(store, opening, threads, request)


@opens
def predict(
    store: Store,
    data: Data,
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="The task's name; by default every task is considered.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help=".npz or .csv; by default standard output.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label-column", metavar="COLUMN", help="A table column to leave out.")
    ] = None,
    threads: Threads = 1,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Predict labels: one row per input with the most likely label and the probability of every label.

    Without a task: the most likely (task, label) pair, or "none of these".
    """
    from clpu.store.data_files import read
    from clpu.store.files import refuse_inside
    from clpu.store.output import write_predictions
    from clpu.store.store import Store as OpenStore
    from clpu.tables import text_columns

    load_files(load)
    if out is not None:
        refuse_inside(store, out)
    with OpenStore(store, opening.access(), write=False) as opened:
        table = read(data, label=label, labelled=False, text=text_columns(opened.load().tasks))
        agent = reader_of(opened, threads)
        write_predictions(agent.predict(task, table.x), agent.classify(task, table.x), agent.labels(task), out)


@opens
def export(
    store: Store,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help=".pt2 (torch.export) or .onnx.", show_default=False)],
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="The task; by default all remembered tasks.")
    ] = None,
    forgettable: Annotated[
        bool, typer.Option("--forgettable", help="Export tasks that can still be forgotten; the copy cannot be.")
    ] = False,
    load: Load = None,
    *,
    opening: Opening,
) -> None:
    """Write a task's network, or those of all remembered tasks, for use without clpu."""
    from clpu.export import export as write
    from clpu.store.files import refuse_inside
    from clpu.store.store import Store as OpenStore

    load_files(load)
    refuse_inside(store, to)
    with OpenStore(store, opening.access(), write=False) as opened:
        opened.load()
        about = write(reader_of(opened), to, task, forgettable=forgettable)
    count = len(about["tasks"])
    held = "the network of one task" if count == 1 else f"the networks of {count} tasks"
    terminal.say(f"{to} holds {held} and takes {about['takes']}")


def store_request(store: Path, opening: Opening, request: Callable[[OpenStore], str]) -> None:
    """Handle one request; Ctrl-C undoes it unless it is saved already.

    The message on success names no task: standard output may end in a log, which forgetting does not reach.
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
    store: Path,
    opening: Opening,
    threads: int,
    request: Callable[[DurableAgent], Callable[[], str]],
    workers: Workers = ONE,
) -> None:
    """Handle one request that takes the agent's method, with a progress bar; then what it did is said."""

    def work(opened: OpenStore) -> str:
        with working_agent(opened, threads) as agent:
            agent.workers = workers
            tell = request(agent)
        return tell()

    store_request(store, opening, work)


def reader_of(opened: OpenStore, threads: int = 1) -> Agent:
    """The agent in a store that was loaded, as it is now: what a command says must not mix two states."""
    from clpu.store.durable import DurableAgent

    return DurableAgent.of_store(opened, threads=threads).copy()


@contextmanager
def working_agent(opened: OpenStore, threads: int) -> Iterator[DurableAgent]:
    """The agent in a store that was loaded, with a progress bar."""
    from clpu.store.durable import DurableAgent

    agent = DurableAgent.of_store(opened, threads=threads)
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
