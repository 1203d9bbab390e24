"""An audit from end to end: agents are trained in resumable jobs, and the findings are put together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clpu import jsonfile
from clpu.audit.bitwise import compare
from clpu.audit.findings import Findings, ForgetFindings
from clpu.audit.observations import Observations
from clpu.audit.plan import AUDIT_REQUESTS, AuditPlan, Design, checked, probes
from clpu.audit.probes import Probe, ProbeResult, Sight, load, work
from clpu.audit.verdict import attack_all
from clpu.bench import engine
from clpu.bench import plan as planning
from clpu.bench import run as benchmark
from clpu.bench.origins import Origins, admitted, read_origins
from clpu.bench.pieces import computed_by, is_whole
from clpu.bench.profiles import Profile
from clpu.errors import BadRun
from clpu.methods import METHODS
from clpu.recipe import Recipe, check_method, method_of
from clpu.requests import Stream

FORMAT, VERSION = "clpu-audit", 2


def plan(
    stream: str,
    profile: Profile,
    methods: Sequence[str],
    design: Design,
    requests: str = AUDIT_REQUESTS,
    device: str = "cpu",
    command: str = "",
    also: Sequence[str] = (),
    threads: int = 1,
) -> AuditPlan:
    """Check everything that can be checked before the first step, and say what there is to do."""
    bench = planning.plan(stream, profile, methods, requests, design.runs, device, command, also, threads)
    asked, settings = Stream(bench.recipe.requests), bench.recipe.settings
    made = {
        method: list(probes(method, asked, bench.data, design, profile.network, settings[method], device, threads))
        for method in methods
    }
    return AuditPlan(bench.recipe, design, bench.data, made)


@dataclass(frozen=True)
class Audit:
    """An audit's folder as read: its recipe, and the findings so far, in the recipe's order."""

    name: str
    recipe: Recipe
    findings: dict[str, Findings]


def run(
    plan: AuditPlan,
    folder: Path,
    workers: int = 1,
    listener: engine.Listener = lambda event: None,
    work: engine.Work = work,
    declared_exact: Mapping[str, bool] | None = None,
    mix: bool = False,
) -> dict[str, str]:
    """Run the unfinished jobs of a plan. Returns {job name: error}.

    `declared_exact` says which methods are declared exact, where they are not registered. With `mix`, machines that
    compute differently may work on one audit.
    """
    declared = {name: method.forgets_exactly() for name, method in METHODS.items()} | dict(declared_exact or {})
    benchmark.make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _run(plan, folder, workers, listener, work, declared, mix)
    except Timeout:
        raise BadRun(f"another process is working in {folder}; wait for it or choose a different --out") from None


def _run(
    plan: AuditPlan,
    folder: Path,
    workers: int,
    listener: engine.Listener,
    work: engine.Work,
    declared_exact: Mapping[str, bool],
    mix: bool,
) -> dict[str, str]:
    recipe = continued(plan, folder)
    made_by = origins(plan, folder, mix)
    _write_recipe(folder, made_by.noted_in(recipe), plan.design)
    _drop_lone_twins(plan, folder)
    scratch = folder / "pieces"
    start, before = time.perf_counter(), recipe.seconds or 0.0
    waiting = {method: {probe.name for probe in unfinished(plan, folder, method)} for method in plan.probes}
    failures: dict[str, str] = {}

    def note() -> None:
        seconds = before + time.perf_counter() - start
        _write_recipe(folder, replace(made_by.noted_in(recipe), seconds=seconds), plan.design)

    def finish(method: str) -> None:
        if waiting[method] or _has_findings(folder, method):
            return
        try:
            note()  # before the files of the jobs, which say what computed them, are gone
            _finish(plan, folder, method, declared_exact[method])
            note()
        except (BadRun, OSError) as error:  # a full disk, say; the other methods continue
            failures[method] = f"{type(error).__name__}: {error}"

    def watch(event: engine.Event) -> None:
        event = admitted(made_by, event, scratch, failures)
        listener(event)
        if event.kind == "done":
            method = method_of(event.piece)
            waiting[method].discard(event.piece)
            finish(method)

    for method in waiting:
        finish(method)
    # Method by method, so that an interrupted audit has complete findings of the first ones.
    left = [probe for method in plan.probes for probe in unfinished(plan, folder, method)]
    failures |= engine.run_pieces(left, plan.data, scratch, workers, watch, work) if left else {}
    whole = [probe for m, made in plan.probes.items() if _has_findings(folder, m) for probe in made]
    benchmark.tidy(scratch, whole)
    return failures


def origins(plan: AuditPlan, folder: Path, mix: bool = False) -> Origins:
    """What computed what a folder holds; `BadRun` if there is more to do and this machine computes differently."""
    recipe = earlier(folder) or plan.recipe
    files = {p.name: engine.file_of(folder / "pieces", p) for m in plan.probes for p in _done(plan, folder, m)}
    made_by = read_origins(recipe, [m for m in recipe.methods if _has_findings(folder, m)], files, mix)
    left = [probe for method in plan.probes for probe in unfinished(plan, folder, method)]
    if left:
        made_by.check(engine.here(left[0].device, left[0].threads), folder)
    return made_by


def _drop_lone_twins(plan: AuditPlan, folder: Path) -> None:
    """Twins are compared bit for bit, so one machine computes them all: those of another one are computed again."""
    for method in plan.probes:
        left = [probe for probe in unfinished(plan, folder, method) if probe.group.startswith("bits")]
        if not left:
            continue
        here = engine.here(left[0].device, left[0].threads)
        for probe in _done(plan, folder, method):
            path = engine.file_of(folder / "pieces", probe)
            if probe.group.startswith("bits") and ((by := computed_by(path)) is None or by.key != here.key):
                path.unlink()


def _done(plan: AuditPlan, folder: Path, method: str) -> list[Probe]:
    """The finished probes of a method."""
    return [probe for probe in plan.probes[method] if is_whole(engine.file_of(folder / "pieces", probe), probe)]


def unfinished(plan: AuditPlan, folder: Path, method: str) -> list[Probe]:
    """The probes of a method that are not finished."""
    if _has_findings(folder, method):
        return []
    done = {probe.name for probe in _done(plan, folder, method)}
    return [probe for probe in plan.probes[method] if probe.name not in done]


def _has_findings(folder: Path, method: str) -> bool:
    """Whether the findings about a method exist and are intact; damaged ones are computed again."""
    path = findings_path(folder, method)
    return benchmark.trouble(path, lambda: Findings.from_json(jsonfile.read(path), str(path))) == ""


def findings_path(folder: Path, method: str) -> Path:
    """The file with the findings about a method."""
    return folder / "findings" / f"{check_method(method)}.json"


def _finish(plan: AuditPlan, folder: Path, method: str, declared_exact: bool) -> None:
    """Put the probes of a method together, write its findings, and remove the files that they were made from."""
    files = {probe.name: engine.file_of(folder / "pieces", probe) for probe in plan.probes[method]}
    results = {probe.name: benchmark.taken(load, files[probe.name], probe) for probe in plan.probes[method]}
    findings = assemble(plan, method, results, declared_exact)
    jsonfile.write(findings_path(folder, method), findings.to_json())
    for path in files.values():
        path.unlink()


def assemble(plan: AuditPlan, method: str, results: dict[str, ProbeResult], declared_exact: bool) -> Findings:
    """The findings about one method from the results of its probes."""
    stream = Stream(plan.recipe.requests)
    groups: dict[tuple[str | None, Sight], list[Observations]] = {}
    prints: dict[tuple[str | None, int], dict[str, str]] = {}
    for probe in plan.probes[method]:
        of = None if probe.group in ("actual", "bits") else probe.requests
        for sight, observed in results[probe.name].observations.items():
            groups.setdefault((of, sight), []).append(observed)
        for number, parts in results[probe.name].fingerprints.items():
            prints[of, number] = parts
    marks = next(probe.sizes for probe in plan.probes[method] if probe.sights).marks()
    forgets = []
    for number in stream.forgets:
        task, text = stream[number - 1].task, str(stream.counterfactual(number))
        actual = Observations.joined(groups[None, (number, task)])
        counterfactual = Observations.joined(groups[text, (len(Stream(text)), task)])
        forgets.append(ForgetFindings(number, task, text, attack_all(actual, counterfactual, marks)))
    bits = []
    for number in checked(stream):
        text = str(stream.counterfactual(number))
        seeds = next(probe.seeds for probe in plan.probes[method] if probe.group == "bits")
        bits.append(compare(number, text, seeds, prints[None, number], prints[text, len(Stream(text))]))
    findings = Findings(method, declared_exact, plan.design.runs, plan.design.error_rate, tuple(bits), tuple(forgets))
    return findings.corrected()


def _write_recipe(folder: Path, recipe: Recipe, design: Design) -> None:
    value = {"format": FORMAT, "version": VERSION, "recipe": recipe.to_json(), "design": asdict(design)}
    jsonfile.write(folder / "audit.json", value)


def earlier(folder: Path) -> Recipe | None:
    """The recipe of an earlier audit in a folder."""
    return _read_recipe(folder)[0] if (folder / "audit.json").is_file() else None


def continued(plan: AuditPlan, folder: Path) -> Recipe:
    """The folder's recipe if this plan resumes it; `BadRun` if it is about something else."""
    if not (folder / "audit.json").is_file():
        if (folder / "run.json").is_file():
            raise BadRun(f"{folder} contains a benchmark; choose a different --out")
        return plan.recipe
    before, design = _read_recipe(folder)
    if design != plan.design:
        raise BadRun(
            f"{folder} contains an audit with a different design ({design}); choose a different --out, or delete it"
        )
    return benchmark.joined(before, plan.recipe, folder)


def _read_recipe(folder: Path) -> tuple[Recipe, Design]:
    path = folder / "audit.json"
    fields = jsonfile.Fields(jsonfile.read(path), str(path))
    if fields.optional("format", None) != FORMAT or fields.integer("version") != VERSION:
        raise BadRun(
            f"{path} is not the recipe of an audit of version {VERSION}; run the audit again in a different folder"
        )
    known: dict[str, Any] = asdict(Design())
    given = fields.fields("design")
    values: dict[str, Any] = {k: given.integer(k) if type(v) is int else given.number(k) for k, v in known.items()}
    return Recipe.from_json(fields.fields("recipe").value, str(path)), Design(**values)


def read_audit(folder: Path | str) -> Audit:
    """Read an audit's folder, finished or not; `BadRun` if a file is damaged or foreign."""
    folder = Path(folder)
    if not (folder / "audit.json").is_file():
        raise BadRun(
            f"{str(folder)!r} is not the folder of an audit (no audit.json); `clpu audit --out {folder}` creates one"
        )
    recipe, _ = _read_recipe(folder)
    findings = {}
    for method in recipe.methods:
        path = findings_path(folder, method)
        if path.is_file():
            findings[method] = Findings.from_json(jsonfile.read(path), str(path))
    return Audit(folder.resolve().name, recipe, findings)
