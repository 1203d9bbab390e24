"""An audit from end to end: agents are trained in jobs, and the findings made of what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clpu import jsonfile
from clpu.audit.bitwise import compare
from clpu.audit.findings import Findings, ForgetFindings, decode_findings
from clpu.audit.observations import Observations
from clpu.audit.plan import checked, forgotten_in
from clpu.audit.probes import Probe, ProbeResult, Sight, load, work
from clpu.audit.verdict import attack_all
from clpu.errors import BadRun
from clpu.requests import Stream
from clpu.runs import folder as folders
from clpu.runs.folder import Kind, Plan, has_recipe
from clpu.runs.recipe import Recipe, read_recipe, result_file

#: The folder of the findings inside that of an audit.
FINDINGS = "findings"


@dataclass(frozen=True)
class Audit:
    """An audit's folder as read: its recipe, and the findings so far, in the recipe's order."""

    name: str
    recipe: Recipe
    findings: dict[str, Findings]


def findings_path(folder: Path, method: str) -> Path:
    """The file with the findings about a method."""
    return result_file(folder, FINDINGS, method)


def read_audit(folder: Path | str) -> Audit:
    """Read an audit's folder, finished or not; `BadRun` if a file is damaged or foreign."""
    folder = Path(folder)
    if not has_recipe(folder):
        raise BadRun(
            f"{str(folder)!r} is not the folder of an audit (no run.json); `clpu audit --out {folder}` creates one"
        )
    recipe = read_recipe(folder, "audit")
    paths = {method: findings_path(folder, method) for method in recipe.methods}
    found = {
        method: decode_findings(jsonfile.content_of(path), recipe, method, str(path))
        for method, path in paths.items()
        if path.is_file()
    }
    return Audit(folder.resolve().name, recipe, found)


def combine(plan: Plan, method: str, results: Mapping[str, ProbeResult]) -> Findings:
    """The findings about one method from the results of its probes."""
    stream, design = Stream(plan.recipe.requests), plan.recipe.design
    probes = [probe for probe in plan.jobs[method] if isinstance(probe, Probe)]
    declared_exact = plan.recipe.about(method).exact
    groups: dict[tuple[str | None, Sight], list[Observations]] = {}
    prints: dict[tuple[str | None, int], dict[str, str]] = {}
    for probe in probes:
        of = None if probe.group in ("actual", "bits") else probe.requests
        for sight, observed in results[probe.name].observations.items():
            groups.setdefault((of, sight), []).append(observed)
        for number, parts in results[probe.name].fingerprints.items():
            prints[of, number] = parts
    marks = next(probe.sizes for probe in probes if probe.sights).marks()
    forgets = []
    for number in stream.forgets:
        text = str(stream.counterfactual(number))
        for task, records in forgotten_in(stream, number, plan.data):
            actual = Observations.joined(groups[None, (number, task, records)])
            counterfactual = Observations.joined(groups[text, (len(Stream(text)), task, records)])
            attacks = attack_all(actual, counterfactual, marks)
            forgets.append(ForgetFindings(number, task, text, attacks, records))
    bits = []
    for number in checked(stream):
        text = str(stream.counterfactual(number))
        seeds = next(probe.seeds for probe in probes if probe.group == "bits")
        bits.append(compare(number, text, seeds, prints[None, number], prints[text, len(Stream(text))]))
    runs, error_rate = int(design["runs"]), float(design["error_rate"])
    return Findings(method, declared_exact, runs, error_rate, tuple(bits), tuple(forgets)).corrected()


#: The kind of run that is an audit.
AUDIT = Kind("audit", FINDINGS, decode_findings, work, load, combine)

run = partial(folders.run, AUDIT)
