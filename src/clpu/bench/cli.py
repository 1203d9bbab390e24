"""`clpu bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from clpu import options


def add_commands(app: typer.Typer) -> None:
    """Add `bench` to the program."""

    @app.command()
    def bench(
        benchmark: options.Benchmark = "rot-digits",
        methods: options.Methods = None,
        seeds: Annotated[
            Optional[int],  # noqa: UP045  typer reads the annotation on Python 3.10 too
            typer.Option(
                help="Replicas per method in each group (actual and counterfactual).",
                show_default="the profile's, 3 or 5",
            ),
        ] = None,
        profile: options.ProfileName = "small",
        requests: options.Requests = "clpu-2022",
        out: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="The run folder.", show_default="runs/BENCHMARK-PROFILE"),
        ] = None,
        workers: options.Workers = None,
        threads: options.Threads = 1,
        set_: options.Overrides = None,
        load: options.Load = None,
        device: options.Device = "cpu",
        engine: Annotated[str, typer.Option(help="Where jobs run: local, or ray (many machines).")] = "local",
        address: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(help="With --engine ray: the address of a running cluster.", show_default="a local one"),
        ] = None,
        mix_machines: options.MixMachines = False,
        nice: options.Nice = False,
        quiet: options.Quiet = False,
    ) -> None:
        """Benchmark methods: accuracy, forgetting, and privacy of unlearning.

        Each method is trained on the requests and, with different seeds, on their counterfactual (the same requests
        without the forgotten tasks). Rerun the same command to resume an interrupted run.
        """
        from clpu.bench.command import bench as command
        from clpu.runs.command import ExecutionOptions

        options.load_files(load)
        names = options.names_of(methods)
        folder = out or Path("runs") / f"{benchmark}-{profile}"
        execution = ExecutionOptions(engine, address, workers, device, threads, mix_machines, nice, quiet)
        raise typer.Exit(command(benchmark, profile, names, requests, seeds, folder, set_ or [], execution))
