"""Record which machine computed which job, so that results of machines that compute differently are not mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clpu.errors import BadRun
from clpu.machine import Machine, differences
from clpu.runs.engine import Event
from clpu.runs.jobs import computed_by
from clpu.runs.recipe import Recipe, method_of

#: Advice about a machine that computes differently.
ADVICE = (
    "choose a different --out, or give --mix-machines, which records in the run and its report what computed which row"
)


@dataclass
class Origins:
    """The machines that computed the jobs in a run folder; None where that was not recorded.

    `unrecorded` are methods with results of which nothing was recorded; `versions` are all that is known of them. With
    `mix`, machines that compute differently may work on one run.
    """

    jobs: dict[str, Machine | None]
    unrecorded: tuple[str, ...]
    versions: Mapping[str, str]
    mix: bool = False

    def refusal(self, machine: Machine | None) -> str:
        """Why a result that this machine computed must not join the others; empty if it may."""
        if self.mix or not (self.jobs or self.unrecorded):
            return ""
        if machine is None:
            return f"what computed it was not recorded, so it may not be like the others; {ADVICE}"
        reasons = []
        for other in {m.key: m for m in self.jobs.values() if m}.values():
            reasons += [text for text in differences(other, machine) if text not in reasons]
        unknown = sorted({*self.unrecorded, *(method_of(job) for job, m in self.jobs.items() if m is None)})
        if unknown:
            known = ", ".join(f"{name} {self.versions[name]}" for name in ("clpu", "torch") if name in self.versions)
            reasons.append(f"what computed {', '.join(unknown)} was not recorded ({known or 'not even versions'})")
        return f"{'; '.join(reasons)}. Results of both would be mixed: {ADVICE}" if reasons else ""

    def check(self, machine: Machine, folder: Path) -> None:
        """`BadRun` if this machine may not add to what a folder holds."""
        if reason := self.refusal(machine):
            raise BadRun(f"{folder} contains results that this machine may compute differently: {reason}")

    def admit(self, job: str, path: Path) -> str:
        """Note what computed a job that was just finished; if it must not join the others, remove it and say why."""
        try:
            machine = computed_by(path)
        except BadRun as error:
            path.unlink(missing_ok=True)
            return str(error)
        if reason := self.refusal(machine):
            path.unlink(missing_ok=True)
            return f"its result is not used, because its machine may compute differently: {reason}"
        self.jobs[job] = machine
        return ""

    def noted_in(self, recipe: Recipe) -> Recipe:
        """The recipe with the machines that computed its jobs."""
        machines: list[Machine] = []
        for machine in self.jobs.values():
            if machine is not None and machine not in machines:
                machines.append(machine)
        jobs = {job: None if machine is None else machines.index(machine) for job, machine in self.jobs.items()}
        return replace(recipe, machines=tuple(machines), jobs=jobs)


def read_origins(recipe: Recipe, finished: Iterable[str], done: Mapping[str, Machine | None], mix: bool) -> Origins:
    """Return the machines that computed finished methods, by the recipe, and jobs that are done."""
    jobs: dict[str, Machine | None] = {}
    unrecorded = []
    for method in finished:
        own = {job: number for job, number in recipe.jobs.items() if method_of(job) == method}
        jobs |= {job: None if number is None else recipe.machines[number] for job, number in own.items()}
        unrecorded += [] if own else [method]
    return Origins({**jobs, **done}, tuple(unrecorded), recipe.versions, mix)


def admitted(made_by: Origins, event: Event, folder: Path, failures: dict[str, str]) -> Event:
    """Admit a job's event; a job that was computed differently counts as failed, whatever its worker reports."""
    reason = made_by.admit(event.job, folder / f"{event.job}.safetensors") if event.kind == "done" else ""
    if not reason:
        return event
    failures[event.job] = reason
    return replace(event, kind="failed", reason=reason)
