"""`clpu audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def add_commands(app: typer.Typer) -> None:
    """Add `audit` to the program."""

    @app.command()
    def audit(
        stream: Annotated[
            str, typer.Argument(help="The stream of tasks: perm-, rot- or split- and a data set (`clpu data list`).")
        ] = "rot-digits",
        methods: Annotated[
            Optional[list[str]],  # noqa: UP045  typer reads the annotation on Python 3.10 too
            typer.Option(
                help="Methods, by name and as often as you like, or all (`clpu methods`).", show_default="all"
            ),
        ] = None,
        profile: Annotated[
            str, typer.Option(help="How big: paper, small (two CPU cores) or smoke (a test of the machinery).")
        ] = "small",
        seeds: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option(help="Runs of each group: that forgot, that never learned.", show_default="the profile's"),
        ] = None,
        requests: Annotated[
            str, typer.Option(help="Requests, such as '1R 2T 2F', or the name of a known stream.")
        ] = "clpu-2022",
        out: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="The audit's folder.", show_default="audits/STREAM-PROFILE"),
        ] = None,
        workers: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option(help="Worker processes, one thread each.", show_default="cores"),
        ] = None,
        set_: Annotated[
            Optional[list[str]],  # noqa: UP045
            typer.Option("--set", help="key=value or method.key=value: changes a setting; as often as you like."),
        ] = None,
        store: Annotated[
            bool, typer.Option("--store", help="Also let a durable agent forget, and search the disk for residue.")
        ] = False,
        error_rate: Annotated[
            float, typer.Option(help="How often a method without a trace may be accused, over all attacks.")
        ] = 0.01,
        device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")] = "cpu",
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the verdicts.")] = False,
    ) -> None:
        """Does a forgotten task leave a trace? Attack each method, and say what was found and how surely.

        Many agents learn and forget, as many never hear of the forgotten tasks; bits, outputs, confidence on single
        examples, relearning and features of the two kinds are compared. The cost is said before it starts, and an
        audit that was stopped goes on with the same command.
        """
        from clpu.audit.command import audit as command

        names = [name for text in methods or ["all"] for name in text.replace(",", " ").split()]
        folder = out or Path("audits") / f"{stream}-{profile}"
        code = command(
            stream, profile, names, requests, seeds, folder, workers, set_ or [], error_rate, device, quiet, store
        )
        raise typer.Exit(code)
