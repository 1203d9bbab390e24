"""`clpu audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from clpu.bench import options


def add_commands(app: typer.Typer) -> None:
    """Add `audit` to the program."""

    @app.command()
    def audit(
        stream: options.StreamOfTasks = "rot-digits",
        methods: options.Methods = None,
        profile: options.Size = "small",
        seeds: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option(help="Runs of each group: that forgot, that never learned.", show_default="the profile's"),
        ] = None,
        requests: options.Requests = "clpu-2022",
        out: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="The audit's folder.", show_default="audits/STREAM-PROFILE"),
        ] = None,
        workers: options.Workers = None,
        threads: options.Threads = 1,
        set_: options.Overrides = None,
        load: options.Load = None,
        store: Annotated[
            bool, typer.Option("--store", help="Also let a durable agent forget, and search the disk for residue.")
        ] = False,
        error_rate: Annotated[
            float, typer.Option(help="How often a method without a trace may be accused, over all attacks.")
        ] = 0.01,
        device: options.Device = "cpu",
        mix_machines: options.MixMachines = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the verdicts.")] = False,
    ) -> None:
        """Does a forgotten task leave a trace? Attack each method, and say what was found and how surely.

        Many agents learn and forget, as many never hear of the forgotten tasks; bits, outputs, confidence on single
        examples, relearning and features of the two kinds are compared. The cost is said before it starts, and an
        audit that was stopped goes on with the same command.
        """
        from clpu.audit.command import audit as command

        options.load_methods(load)
        names = options.names_of(methods)
        folder = out or Path("audits") / f"{stream}-{profile}"
        code = command(
            stream,
            profile,
            names,
            requests,
            seeds,
            folder,
            workers,
            set_ or [],
            error_rate,
            device,
            quiet,
            store,
            threads,
            mix_machines,
        )
        raise typer.Exit(code)
