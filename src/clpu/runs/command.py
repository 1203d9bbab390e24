"""The common part of `clpu bench` and `clpu audit`: run with progress, report, list failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from clpu import terminal
from clpu.errors import BadSetting
from clpu.requests import Stream
from clpu.runs import engine
from clpu.runs.display import Display
from clpu.runs.folder import RunFolder
from clpu.runs.plan import cores
from clpu.terminal import duration


@dataclass(frozen=True)
class ExecutionOptions:
    """Options for running jobs, and whether machines that compute differently may share them."""

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    device: str = "cpu"
    threads: int = 1
    mix_machines: bool = False
    nice: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise BadSetting(f"--engine must be local or ray, got {self.engine!r:.40}")
        if self.address and self.engine != "ray":
            raise BadSetting("--address goes with --engine ray")
        if self.nice and self.engine != "local":
            raise BadSetting("--nice goes with --engine local")
        if self.workers is not None and self.workers < 1:
            raise BadSetting(f"--workers must be at least 1, got {self.workers}")

    @property
    def elsewhere(self) -> bool:
        """Whether machines other than this one compute."""
        return self.engine != "local"

    @property
    def processes(self) -> int:
        """The number of worker processes."""
        return self.workers or cores()

    def performer(self) -> Callable[..., dict[str, str]]:
        """The function that performs jobs there."""
        if self.engine == "local":
            return partial(engine.run_jobs, nice=self.nice)
        from clpu.runs import cluster

        return partial(cluster.run_jobs, address=self.address)


def execute(
    folder: RunFolder[Any], options: ExecutionOptions, report: Callable[[], Sequence[Path]], methods: Sequence[str]
) -> int:
    """Run what is left in a folder, write and print the report of what is finished; the exit code.

    Methods that are named run in that order; with `all`, the costliest of the others runs first.
    """
    order = list(dict.fromkeys(takewhile(lambda name: name != "all", methods)))
    try:
        jobs = [job for jobs in folder.plan.jobs.values() for job in jobs]
        behind = {job.name: folder.begun.get(job.name, len(Stream(job.requests))) for job in jobs}
        # The seconds that the run took are known for all its methods together.
        spent = folder.recipe.seconds if set(folder.plan.jobs) >= set(folder.methods()) else None
        with Display(jobs, terminal.console(error=True), options.quiet, behind, spent) as display:
            failures = folder.execute(options.processes, display, options.performer(), order)
    except KeyboardInterrupt:
        terminal.say(f"Interrupted. Run the same command again to resume ({folder.path}).", error=True)
        return 130
    failures |= folder.damaged
    if folder.results:
        written = ", ".join(path.name for path in report())
        if not options.quiet:
            terminal.say(f"{duration(folder.recipe.seconds or 0)}; wrote {written} to {folder.path}", error=True)
    if failures:
        total = sum(map(len, folder.plan.jobs.values()))
        text = f"{len(failures)} of {total} jobs failed. Run the same command again to retry them:"
        terminal.say(text, "bold red", error=True)
        for name, reason in failures.items():
            terminal.say(f"  {name}: {reason.strip().splitlines()[-1]}", error=True)
        return 1
    return 0
