"""`clpu bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def add_commands(app: typer.Typer) -> None:
    """Add `bench` to the program."""

    @app.command()
    def bench(
        stream: Annotated[
            str, typer.Argument(help="The stream of tasks: perm-, rot- or split- and a data set (`clpu data list`).")
        ] = "rot-digits",
        methods: Annotated[
            Optional[list[str]],  # noqa: UP045  typer reads the annotation on Python 3.10 too
            typer.Option(
                help="Methods, by name and as often as you like, or all (`clpu methods`).", show_default="all"
            ),
        ] = None,
        seeds: Annotated[int, typer.Option(help="Replicas of each method, actual and counterfactual each.")] = 5,
        profile: Annotated[
            str, typer.Option(help="How big: paper, small (two CPU cores) or smoke (a test of the machinery).")
        ] = "small",
        requests: Annotated[
            str, typer.Option(help="Requests, such as '1R 2T 2F', or the name of a known stream.")
        ] = "clpu-2022",
        out: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="The run folder.", show_default="runs/STREAM-PROFILE"),
        ] = None,
        workers: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option(help="Worker processes, one thread each.", show_default="cores"),
        ] = None,
        set_: Annotated[
            Optional[list[str]],  # noqa: UP045
            typer.Option("--set", help="key=value or method.key=value: changes a setting; as often as you like."),
        ] = None,
        device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")] = "cpu",
        engine: Annotated[str, typer.Option(help="Where the work is done: local, or ray (many machines).")] = "local",
        address: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(help="With --engine ray: the address of a running cluster.", show_default="a local one"),
        ] = None,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")] = False,
    ) -> None:
        """Run methods × seeds on a stream of tasks and show how they learn and how privately they forget.

        Each method runs the requests, and runs of other seeds have the requests that would have been, had the
        forgotten tasks never been asked for. A run that was stopped goes on with the same command.
        """
        from clpu.bench.command import Where
        from clpu.bench.command import bench as command

        names = [name for text in methods or ["all"] for name in text.replace(",", " ").split()]
        folder = out or Path("runs") / f"{stream}-{profile}"
        where = Where(engine, address, workers, device)
        code = command(stream, profile, names, requests, seeds, folder, set_ or [], where, quiet)
        raise typer.Exit(code)
