"""`clpu bases`: list, download and verify frozen networks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from clpu import terminal
from clpu.bases.catalog import BASES, base_spec
from clpu.errors import Error

app = typer.Typer(no_args_is_help=True, help="List, download and verify frozen public networks (bases).")


@app.command("list")
def list_bases() -> None:
    """List the bases and whether they are cached."""
    from clpu.bases.fetch import is_cached

    rows = [
        ("base:raw", "any numbers", "the inputs", "built in"),
        ("base:random", "any numbers", "1,000", "built in"),
        ("base:signals", "windows of signals", "37 a channel", "built in"),
        ("base:words", "text", "1,000", "built in"),
    ]
    for spec in BASES.values():
        state = "cached" if is_cached(spec) else f"clpu bases get {spec.name}"
        rows.append((spec.network, spec.takes, f"{spec.features:,}", state))
    for row in [("network=", "takes", "features", ""), *rows]:
        terminal.say(f"{row[0]:<26}{row[1]:<28}{row[2]:<12}{row[3]}")


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names as `clpu bases list` shows them.")],
) -> None:
    """Download and verify bases; cached ones are not downloaded again."""
    from clpu.bases import fetch

    def one(name: str) -> str:
        done = fetch.get(name, progress=lambda text, *_: terminal.say(f"{name}: {text}", error=True))
        return f"verified, {'already cached' if done.already else 'cached'}, {base_spec(name).terms}"

    _each(names, one)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Names; by default all cached bases.")
    ] = None,
) -> None:
    """Compare every cached byte with the pinned checksums."""
    from clpu.bases import fetch

    def one(name: str) -> str:
        fetch.read(name)
        return "OK, SHA-256 as pinned"

    chosen = names or [spec.name for spec in BASES.values() if fetch.is_cached(spec)]
    if not chosen:
        terminal.say("no base is cached")
    _each(chosen, one)


def _each(names: list[str], act: Callable[[str], str]) -> None:
    failures = 0
    for name in names:
        started = time.perf_counter()
        try:
            said = act(name)
            terminal.say(f"{name}: {said}, {time.perf_counter() - started:.1f} s")
        except Error as error:
            failures += 1
            terminal.say(f"{name}: {error}", error=True)
    if failures:
        raise typer.Exit(1)
