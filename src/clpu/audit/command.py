"""The command `clpu audit`: plan, estimate the cost, run with progress, print the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clpu import jsonfile, terminal
from clpu.audit.findings import Findings
from clpu.audit.page import page
from clpu.audit.plan import AUDIT_REQUESTS, DESIGNS, PEOPLE_LEAVE, audit_profile, estimate, plan
from clpu.audit.run import AUDIT, Audit
from clpu.audit.tables import markdown, show
from clpu.audit.verdict import verdict
from clpu.requests import Stream
from clpu.runs.command import ExecutionOptions, execute
from clpu.runs.folder import RunFolder
from clpu.runs.plan import check_methods, command_line, default_requests, with_settings
from clpu.terminal import duration


def audit(
    benchmark: str,
    profile: str,
    methods: Sequence[str],
    requests: str | None,
    runs: int | None,
    path: Path,
    overrides: Sequence[str],
    error_rate: float,
    options: ExecutionOptions,
    store: bool = False,
) -> int:
    """Run or resume an audit and report; the exit code. That a trace was found is a result, not a failure."""
    chosen = check_methods(methods, benchmark)
    base = audit_profile(benchmark, profile)
    design = replace(DESIGNS[profile], error_rate=error_rate)
    design = design if runs is None else replace(design, runs=runs)
    with RunFolder(path, AUDIT) as folder:
        also = [method for method in folder.methods() if method not in chosen]
        sized = with_settings(base, overrides, [*chosen, *also])
        where = (options.device, command_line(), also, options.threads)
        asked = default_requests(benchmark, AUDIT_REQUESTS, PEOPLE_LEAVE) if requests is None else requests
        made = plan(benchmark, sized, chosen, design, asked, *where)
        folder.resume(made, options.mix_machines)
        if folder.left and not options.quiet:
            agents, processes = sum(len(probe.seeds) for probe in folder.left), options.processes
            done = f", {made.agents - agents:,} already done" if agents < made.agents else ""
            time = duration(estimate(made, folder.left, processes))
            terminal.say(
                f"{benchmark} ({profile}): {agents:,} agents to train ({design.runs} per group and method{done}), "
                f"about {time} on {processes} process{'es' * (processes != 1)}. Output folder: {path}",
                error=True,
            )

        def report() -> list[Path]:
            if store:
                _scan(folder, chosen)
            finished = Audit(path.resolve().name, folder.recipe, folder.finished())
            written = write(finished, path)
            show(finished)
            return written

        return execute(folder, options, report, methods)


def _scan(folder: RunFolder[Findings], methods: Sequence[str]) -> None:
    """Add to the findings what a durable agent leaves on disk, where that was not searched yet."""
    from clpu.audit.residue import residue

    recipe = folder.recipe
    for method, findings in folder.finished().items():
        if method in methods and findings.residue is None:
            network, settings = str(recipe.network["name"]), recipe.settings[method]
            left = residue(method, Stream(recipe.requests), folder.plan.data, network, settings)
            folder.write(method, replace(findings, residue=left))


def write(made: Audit, folder: Path) -> list[Path]:
    """Write `verdicts.json`, `table.md` and `audit.html` about an audit into its folder."""
    verdicts = {method: {**vars(v), "title": v.title} for method, f in made.findings.items() for v in [verdict(f)]}
    return [
        jsonfile.write(folder / "verdicts.json", verdicts),
        jsonfile.write_text(folder / "table.md", markdown(made)),
        jsonfile.write_text(folder / "audit.html", page(made)),
    ]
