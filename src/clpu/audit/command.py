"""What `clpu audit` does: plan, estimate the cost, run with progress, print the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clpu import jsonfile, terminal
from clpu.audit import run as auditing
from clpu.audit.page import page
from clpu.audit.plan import DESIGNS, AuditPlan, audit_profile, estimate
from clpu.audit.tables import markdown, show
from clpu.audit.verdict import verdict
from clpu.bench import plan as planning
from clpu.bench import run as benchmark
from clpu.bench.display import Display
from clpu.errors import BadSetting
from clpu.report.formatting import duration
from clpu.requests import Stream


def audit(
    stream: str,
    profile: str,
    methods: Sequence[str],
    requests: str,
    runs: int | None,
    folder: Path,
    workers: int | None,
    overrides: Sequence[str],
    error_rate: float,
    device: str,
    quiet: bool,
    store: bool = False,
    threads: int = 1,
    mix_machines: bool = False,
) -> int:
    """Run or resume an audit and report; the exit code. That a trace was found is a result, not a failure."""
    if workers is not None and workers < 1:
        raise BadSetting(f"--workers must be at least 1, got {workers}")
    chosen = planning.check_methods(methods)
    base = audit_profile(stream, profile)
    also = [method for method in benchmark.methods_in(folder, auditing.earlier(folder)) if method not in chosen]
    design = replace(DESIGNS[profile], error_rate=error_rate)
    design = design if runs is None else replace(design, runs=runs)
    sized = planning.with_settings(base, overrides, [*chosen, *also])
    plan = auditing.plan(stream, sized, chosen, design, requests, device, planning.command_line(), also, threads)
    auditing.continued(plan, folder)  # refused, if at all, before anything is timed
    auditing.origins(plan, folder, mix_machines)
    left = [probe for method in chosen for probe in auditing.unfinished(plan, folder, method)]
    processes = workers or planning.cores()
    if left and not quiet:
        agents = sum(len(probe.seeds) for probe in left)
        done = f", {plan.agents - agents:,} already done" if agents < plan.agents else ""
        time = duration(estimate(plan, left, processes))
        terminal.say(
            f"{stream} ({profile}): {agents:,} agents to train ({design.runs} per group and method{done}), "
            f"about {time} on {processes} process{'es' * (processes != 1)}. Output folder: {folder}",
            error=True,
        )
    try:
        with Display(left, terminal.console(error=True), quiet) as display:
            failures = auditing.run(plan, folder, processes, display, mix=mix_machines)
    except KeyboardInterrupt:
        terminal.say(f"Interrupted. Run the same command again to resume ({folder}).", error=True)
        return 130
    if store:
        _scan(plan, folder, chosen)
    made = auditing.read_audit(folder)
    if made.findings:
        written = write(made, folder)
        show(made)
        if not quiet:
            took = duration(made.recipe.seconds or 0)
            terminal.say(f"{took}; wrote {', '.join(map(str, written))}", error=True)
    if failures:
        total = sum(len(probes) for probes in plan.probes.values())
        text = f"{len(failures)} of {total} jobs failed. Run the same command again to retry them:"
        terminal.say(text, "bold red", error=True)
        for name, reason in failures.items():
            terminal.say(f"  {name}: {reason.strip().splitlines()[-1]}", error=True)
        return 1
    return 0


def _scan(plan: AuditPlan, folder: Path, methods: Sequence[str]) -> None:
    """Add to the findings what a durable agent leaves on disk, where that was not searched yet."""
    from clpu.audit.residue import residue

    stream, network = Stream(plan.recipe.requests), str(plan.recipe.network["name"])
    for method, findings in auditing.read_audit(folder).findings.items():
        if method in methods and findings.residue is None:
            left = residue(method, stream, plan.data, network, plan.recipe.settings[method])
            jsonfile.write(auditing.findings_path(folder, method), replace(findings, residue=left).to_json())


def write(made: auditing.Audit, folder: Path) -> list[Path]:
    """Write `verdicts.json`, `table.md` and `audit.html` about an audit into its folder."""
    verdicts = {method: {**vars(v), "title": v.title} for method, f in made.findings.items() for v in [verdict(f)]}
    return [
        jsonfile.write(folder / "verdicts.json", verdicts),
        jsonfile.write_text(folder / "table.md", markdown(made)),
        jsonfile.write_text(folder / "audit.html", page(made)),
    ]
