"""The command `clpu bench`: plan, run with progress, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clpu import terminal
from clpu.bench.plan import plan
from clpu.bench.run import BENCHMARK
from clpu.report import write
from clpu.report.terminal import show
from clpu.results import Run
from clpu.runs.command import ExecutionOptions, execute
from clpu.runs.folder import RunFolder
from clpu.runs.plan import check_methods, command_line, default_requests, with_settings
from clpu.runs.profiles import profile as named_profile


def say_features(done: int, total: int) -> None:
    """Say how far a base is with the features of public images, ten times in all."""
    if done == 1:
        terminal.say(f"Computing the base's features of {total:,} images, once; they are cached", error=True)
    elif done % max(1, total // 10) == 0:
        terminal.say(f"{done:,} of {total:,} images", error=True)


def bench(
    benchmark: str,
    profile: str,
    methods: Sequence[str],
    requests: str | None,
    seeds: int | None,
    path: Path,
    overrides: Sequence[str],
    options: ExecutionOptions,
) -> int:
    """Run or resume a benchmark and report; the exit code."""
    chosen = check_methods(methods, benchmark)
    base = named_profile(benchmark, profile)
    asked = default_requests(benchmark) if requests is None else requests
    with RunFolder(path, BENCHMARK) as folder:
        also = [method for method in folder.methods() if method not in chosen]
        sized = with_settings(base, overrides, [*chosen, *also])
        where = (options.device, command_line(), also, options.threads)
        folder.resume(
            plan(
                benchmark,
                sized,
                chosen,
                asked,
                base.seeds if seeds is None else seeds,
                *where,
                features=None if options.quiet else say_features,
            ),
            options.mix_machines,
            options.elsewhere,
        )
        for method, reason in folder.damaged.items():
            if method in chosen:
                terminal.say(f"Recomputing the results of {method}: {reason}", error=True)
        if not options.quiet and folder.left:
            total = sum(map(len, folder.plan.jobs.values()))
            done = f", {total - len(folder.left)} already done" if len(folder.left) < total else ""
            jobs = f"{total} job{'s' * (total != 1)}{done}"
            terminal.say(f"{benchmark} ({profile}): {jobs}. Output folder: {path}", error=True)

        def report() -> list[Path]:
            run = Run(path.resolve().name, folder.recipe, folder.finished())
            written = write([run], path)
            show([run])
            return written

        return execute(folder, options, report, methods)
