"""The demonstration: one agent, the default stream of requests, and the two digests."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress
from rich.table import Table
from rich.text import Text

from clpu import terminal
from clpu.agent import Agent
from clpu.agent import Progress as Step
from clpu.data import Task, tasks
from clpu.errors import BadRequest
from clpu.methods import find_method
from clpu.requests import Request, Stream, meaning
from clpu.settings import setting_fields

SETTINGS: dict[str, Any] = {"epochs": 10, "lr": 0.1}
WORDS = {
    "learn R": "learn task {} permanently",
    "learn T": "learn task {} temporarily",
    "keep R": "make task {} permanent",
    "nothing R": "task {} is permanent already",
    "forget F": "forget task {}",
}


def show(method: str, requests: str, seed: int, threads: int = 1) -> None:
    """Run a stream and its counterfactual on rotated digits, and print what happens."""
    console = terminal.console()
    stream = Stream(requests)
    data = {task.name: task for task in tasks("rot-digits")}
    unknown = [task for task in stream.tasks if task not in data]
    if unknown:
        raise BadRequest(f"the demo has tasks {', '.join(data)}; the stream names {', '.join(unknown)}")
    agent = _agent(method, seed, threads)
    doing = " learns handwritten digits, each task rotated by a different angle, and forgets some of them."
    console.print(Text.assemble((agent.method, "bold"), doing))
    kinds = (("permanent", "green"), ", ", ("temporary", "yellow"))
    console.print(Text.assemble("Accuracy on test images after each request, in percent (", *kinds, "):\n"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("request", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=26)
    for name in stream.tasks:
        table.add_column(f"task {name}\n{data[name].detail.removeprefix('rotated by ')}", justify="right", min_width=6)
    with _bar(console) as bar:
        for request in stream:
            did = _handle(agent, request, data, bar, console)
            table.add_row(str(request), did, *(_cell(agent, data[name]) for name in stream.tasks))
    console.print(table)
    _compare(console, agent, stream, data)


def _agent(method: str, seed: int, threads: int) -> Agent:
    known = setting_fields(find_method(method).Settings)
    return Agent(method, seed=seed, threads=threads, **{k: v for k, v in SETTINGS.items() if k in known})


def _bar(console: Console) -> Progress:
    return terminal.progress(console, "{task.description}", BarColumn(), "{task.completed}/{task.total} steps")


def _handle(agent: Agent, request: Request, data: dict[str, Task], bar: Progress, console: Console) -> str:
    line = bar.add_task(str(request))
    agent.progress = lambda step: _advance(bar, line, step)
    what = meaning(request, agent.tasks, agent.forgets)
    train = data[request.task].train if what == "learn" else None
    agent.handle(request, *((train.x, train.y) if train else ()))
    bar.remove_task(line)
    return WORDS[f"{what} {request.instruction}"].format(request.task)


def _advance(bar: Progress, line: object, step: Step) -> None:
    if step.step % 20 == 0 or step.step == step.steps:
        bar.update(line, completed=step.step, total=step.steps, description=f"{step.request} {step.phase}")  # type: ignore[arg-type]


def _cell(agent: Agent, task: Task) -> Text:
    status = agent.tasks.get(task.name)
    if status is None:
        return terminal.text("·", "dim")
    share = agent.accuracy(task.name, task.test.x, task.test.y)
    return Text(f"{100 * share:.1f}", style="green" if status == "R" else "yellow")


def _compare(console: Console, agent: Agent, stream: Stream, data: dict[str, Task]) -> None:
    if not stream.forgets:
        console.print("\nNothing was to be forgotten, so there is nothing to compare.")
        return
    never = _agent(agent.method, agent.seeds[0], agent.threads)
    counterfactual = stream.counterfactual()
    with _bar(console) as bar:
        for request in counterfactual:
            _handle(never, request, data, bar, console)
    forgotten = [task for task in stream.tasks if task not in counterfactual.tasks]
    names = f"task{'s' * (len(forgotten) != 1)} {' and '.join(forgotten)}" if forgotten else "what was forgotten"
    asked = f"its requests were {counterfactual}" if len(counterfactual) else "it got no requests at all"
    console.print(f"\nA second agent never saw {names}: {asked}.")
    console.print("SHA-256 of all that each has learned:")
    for name, digest in {"stream": agent.digest(), "counterfactual": never.digest()}.items():
        console.print(Text.assemble(f"{name:<16}", (digest, "cyan")), soft_wrap=True)
    if agent.digest() == never.digest():
        console.print(Text.assemble(("Identical, bit for bit:", "bold green"), f" nothing is left of {names}."))
    else:
        console.print(Text.assemble(("Different:", "bold red"), f" {agent.method} keeps a trace of {names}."))
