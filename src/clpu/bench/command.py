"""What `clpu bench` does: plan, run with progress, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clpu import terminal
from clpu.bench import engine
from clpu.bench import plan as planning
from clpu.bench import run as benchmark
from clpu.bench.display import Display
from clpu.bench.profiles import profile as named_profile
from clpu.errors import BadSetting
from clpu.report import write
from clpu.report.formatting import duration
from clpu.report.terminal import show
from clpu.results import read_run


@dataclass(frozen=True)
class Where:
    """Where the work is done, and whether machines that compute differently may share it."""

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    device: str = "cpu"
    threads: int = 1
    mix_machines: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise BadSetting(f"--engine must be local or ray, got {self.engine!r:.40}")
        if self.address and self.engine != "ray":
            raise BadSetting("--address goes with --engine ray")
        if self.workers is not None and self.workers < 1:
            raise BadSetting(f"--workers must be at least 1, got {self.workers}")

    @property
    def elsewhere(self) -> bool:
        """Whether other machines than this one compute."""
        return self.engine != "local"

    def performer(self) -> Callable[..., dict[str, str]]:
        """What performs pieces of work there."""
        if self.engine == "local":
            return engine.run_pieces
        from clpu.bench import cluster

        return partial(cluster.run_pieces, address=self.address)


def bench(
    stream: str,
    profile: str,
    methods: Sequence[str],
    requests: str,
    seeds: int,
    folder: Path,
    overrides: Sequence[str],
    where: Where,
    quiet: bool,
) -> int:
    """Run or go on with a benchmark and report; the exit code."""
    chosen = planning.check_methods(methods)
    base = named_profile(stream, profile)
    also = [method for method in benchmark.methods_in(folder, benchmark.earlier(folder)) if method not in chosen]
    sized = planning.with_settings(base, overrides, [*chosen, *also])
    plan = planning.plan(
        stream, sized, chosen, requests, seeds, where.device, planning.command_line(), also, where.threads
    )
    benchmark.continued(plan.recipe, folder)  # refused, if at all, before anything is said about the work
    benchmark.origins(plan, folder, where.mix_machines, where.elsewhere)
    left = [piece for method in chosen for piece in benchmark.unfinished(plan, folder, method)]
    for method in chosen:
        if reason := benchmark.damage(plan, folder, method):
            terminal.say(f"Recomputing the results of {method}: {reason}", error=True)
    total = sum(map(len, plan.pieces.values()))
    if not quiet and left:
        done = f", {total - len(left)} already done" if len(left) < total else ""
        jobs = f"{total} job{'s' * (total != 1)}{done}"
        terminal.say(f"{stream} ({profile}): {jobs}. Output folder: {folder}", error=True)
    try:
        with Display(left, terminal.console(error=True), quiet) as display:
            workers, mixing = where.workers or planning.cores(), (where.mix_machines, where.elsewhere)
            failures = benchmark.run(plan, folder, workers, display, where.performer(), *mixing)
    except KeyboardInterrupt:
        terminal.say(f"Interrupted. Run the same command again to resume ({folder}).", error=True)
        return 130
    damaged: dict[str, str] = {}
    run = read_run(folder, damaged)
    failures |= damaged
    if run.results:
        written = write([run], folder)
        show([run])
        if not quiet:
            terminal.say(f"{duration(run.recipe.seconds or 0)}; wrote {', '.join(map(str, written))}", error=True)
    if failures:
        terminal.say(
            f"{len(failures)} of {total} jobs failed. Run the same command again to retry them:", "bold red", error=True
        )
        for name, reason in failures.items():
            terminal.say(f"  {name}: {reason.strip().splitlines()[-1]}", error=True)
        return 1
    return 0
