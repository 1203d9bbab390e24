"""`clpu audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from clpu import options


def add_commands(app: typer.Typer) -> None:
    """Add `audit` to the program."""

    @app.command()
    def audit(
        benchmark: options.Benchmark = "rot-digits",
        methods: options.Methods = None,
        profile: options.ProfileName = "small",
        runs: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option("--runs", "--seeds", help="Agents per group.", show_default="the profile's"),
        ] = None,
        requests: options.Requests = "clpu-audit",
        out: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="Output folder.", show_default="audits/BENCHMARK-PROFILE"),
        ] = None,
        workers: options.Workers = None,
        threads: options.Threads = 1,
        set_: options.Overrides = None,
        load: options.Load = None,
        store: Annotated[
            bool, typer.Option("--store", help="Also let a durable agent forget, and search its folder for remnants.")
        ] = False,
        error_rate: Annotated[
            float, typer.Option(help="Accepted probability that a method without a trace is flagged by any attack.")
        ] = 0.01,
        device: options.Device = "cpu",
        mix_machines: options.MixMachines = False,
        nice: options.Nice = False,
        quiet: options.Quiet = False,
    ) -> None:
        """Test whether a forgotten task leaves a trace.

        Trains two groups of agents, one that forgets the tasks and one that never sees them, and compares their states
        bit for bit and their behaviour statistically. Prints a cost estimate first; rerun the same command to resume.
        """
        from clpu.audit.command import audit as command
        from clpu.runs.command import ExecutionOptions

        options.load_files(load)
        names = options.names_of(methods)
        folder = out or Path("audits") / f"{benchmark}-{profile}"
        execution = ExecutionOptions("local", None, workers, device, threads, mix_machines, nice, quiet)
        asked = (benchmark, profile, names, requests, runs, folder, set_ or [], error_rate, execution, store)
        raise typer.Exit(command(*asked))
