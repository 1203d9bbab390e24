"""The recipe of a benchmark's run: `run.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clpu.errors import BadRun, Error
from clpu.jsonfile import Fields
from clpu.machine import Machine
from clpu.requests import Stream

FORMAT, VERSION = "clpu-run", 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,99}")
_TITLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 +._-]{0,99}")
_JOB = re.compile(r"[A-Za-z0-9+._-]{1,100}--[a-z0-9-]{1,100}--[0-9]{1,20}")
_OVERRIDE = re.compile(r"[A-Za-z0-9+._-]{1,200}=[^<>`\n]{1,200}")


@dataclass(frozen=True)
class DataUsed:
    """The data of a run: enough to tell whether another run had the same.

    `sha256` is that of the data set, `tasks_sha256` that of the tasks as used: permuted, rotated, thinned out.
    """

    name: str
    sha256: str | Mapping[str, str]
    tasks: int
    train: int
    test: int
    classes: tuple[int, ...]
    seed: int = 0
    tasks_sha256: str = ""


@dataclass(frozen=True)
class MethodAbout:
    """What tables show about a method, taken from its class when the run was made.

    `forgets` is the trait of `Method` ("" if it was not recorded), `position` the method's place among those that were
    registered.
    """

    label: str
    forgets: str = ""
    upper_bound: bool = False
    position: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.label) <= 80 or not self.label.isprintable() or self.label != self.label.strip():
            raise BadRun(f"{self.label!r:.100} cannot be a method's label: 1 to 80 printable characters")
        if self.forgets not in ("", "nothing", "temporary", "tasks", "records"):
            raise BadRun(f"{self.forgets!r:.80} is not something that a method can forget")
        if self.position < 0:
            raise BadRun(f"a method's position must not be negative, got {self.position}")

    @property
    def exact(self) -> bool:
        """Whether the method forgets anything exactly."""
        return self.forgets not in ("", "nothing")


@dataclass(frozen=True)
class Recipe:
    """How a run was made, so that every number can be traced to it: `run.json`.

    `overrides` are the settings of `--set`, which make it another run than its profile says. `jobs` says for each job
    which of `machines` computed it, or None if that was not recorded. `methods_about` is what tables show about each
    method; older runs lack it.
    """

    stream: str
    requests: str
    profile: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    counterfactual_seeds: tuple[int, ...]
    settings: Mapping[str, Mapping[str, Any]]
    network: Mapping[str, Any]
    data: DataUsed
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: float | None = None
    overrides: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    jobs: Mapping[str, int | None] = field(default_factory=dict)
    methods_about: Mapping[str, MethodAbout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            stream = Stream(self.requests)
        except Error as error:
            raise BadRun(f"the recipe's requests cannot be read: {error}") from None
        if not self.seeds:
            raise BadRun("the recipe has no seeds")
        for method in [*self.methods, *self.methods_about]:
            check_method(method)
        for what, name in (("stream", self.stream), ("profile", self.profile), ("data set", self.data.name)):
            if not _TITLE.fullmatch(name):
                raise BadRun(f"{name!r:.80} cannot be the name of a {what}: letters, digits, spaces and + . _ - only")
        for text in self.overrides:
            if not _OVERRIDE.fullmatch(text):
                raise BadRun(f"{text!r:.80} is no setting: expected key=value")
        if len(self.data.classes) != self.data.tasks or any(c < 1 for c in self.data.classes):
            raise BadRun(f"the recipe has {self.data.tasks} tasks, and numbers of classes {self.data.classes}")
        if len(stream.tasks) > self.data.tasks:
            raise BadRun(f"the recipe's requests name {len(stream.tasks)} tasks, the data have {self.data.tasks}")
        for job, number in self.jobs.items():
            if not _JOB.fullmatch(job):
                raise BadRun(f"{job!r:.80} cannot be the name of a job: expected METHOD--GROUP--SEED")
            if number is not None and not 0 <= number < len(self.machines):
                raise BadRun(f"the job {job} names machine {number}, and the recipe has {len(self.machines)} machines")

    def machines_of(self, method: str) -> list[Machine | None]:
        """What computed a method's jobs, each machine once; None stands for jobs of which that was not recorded."""
        numbers = dict.fromkeys(number for job, number in self.jobs.items() if method_of(job) == method)
        return [None if number is None else self.machines[number] for number in numbers or [None]]

    def about(self, method: str) -> MethodAbout:
        """Return what tables show about a method; of one that was not recorded, its name."""
        return self.methods_about.get(method) or MethodAbout(method)

    def in_order(self, methods: Iterable[str]) -> list[str]:
        """Sort methods as tables list them: by recorded position, then in the recipe's order.

        Methods whose position was not recorded come last.
        """
        listed = list(self.methods)

        def place(method: str) -> tuple[int, int, int]:
            known = self.methods_about.get(method)
            order = listed.index(method) if method in listed else len(listed)
            return (known is None, known.position if known else 0, order)

        return sorted(methods, key=place)

    def to_json(self) -> dict[str, Any]:
        data = {**vars(self.data), "classes": list(self.data.classes)}
        machines = [machine.to_json() for machine in self.machines]
        about = {method: vars(facts) for method, facts in self.methods_about.items()}
        top = {"format": FORMAT, "version": VERSION, **vars(self), "data": data, "machines": machines}
        return {**top, "methods_about": about}

    @classmethod
    def from_json(cls, value: Any, where: str = "run.json") -> Recipe:
        top = Fields(value, where)
        if top.optional("format", None) != FORMAT:
            raise BadRun(
                f"{where} is not the recipe of a benchmark: its format is {top.optional('format', None)!r:.40}"
            )
        if top.integer("version") != VERSION:
            raise BadRun(f"{where} has version {top.integer('version')}; this clpu reads version {VERSION}")
        data = top.fields("data")
        sums = data.optional("sha256", "")
        seconds = top.optional("seconds", None)
        return cls(
            stream=top.text("stream"),
            requests=top.text("requests"),
            profile=top.text("profile"),
            methods=tuple(top.texts("methods")),
            seeds=tuple(top.integers("seeds")),
            counterfactual_seeds=tuple(top.integers("counterfactual_seeds")),
            settings={k: top.fields("settings").fields(k).value for k in top.fields("settings").value},
            network=top.fields("network").value,
            data=DataUsed(
                name=data.text("name"),
                sha256=data.fields("sha256").value if isinstance(sums, dict) else data.text("sha256"),
                tasks=data.integer("tasks"),
                train=data.integer("train"),
                test=data.integer("test"),
                classes=tuple(data.integers("classes")),
                seed=data.integer("seed"),
                tasks_sha256=data.text("tasks_sha256") if "tasks_sha256" in data.value else "",
            ),
            command=top.text("command"),
            versions=top.fields("versions").value,
            machine=top.fields("machine").value,
            started=top.text("started"),
            seconds=None if seconds is None else top.number("seconds"),
            overrides=tuple(top.texts("overrides")) if "overrides" in top.value else (),
            machines=tuple(
                Machine.from_json(record, f"{where}: machine {number}")
                for number, record in enumerate(top.items("machines") if "machines" in top.value else [])
            ),
            jobs=_jobs(top.fields("jobs")) if "jobs" in top.value else {},
            methods_about=_methods_about(top.fields("methods_about")) if "methods_about" in top.value else {},
        )


def _jobs(fields: Fields) -> dict[str, int | None]:
    return {job: None if number is None else fields.integer(job) for job, number in fields.value.items()}


def _methods_about(fields: Fields) -> dict[str, MethodAbout]:
    found = {}
    for method in fields.value:
        one = fields.fields(method)
        upper_bound = one.optional("upper_bound", False)
        if not isinstance(upper_bound, bool):
            raise BadRun(f"upper_bound of the method {method!r:.80} must be true or false")
        found[method] = MethodAbout(one.text("label"), one.text("forgets"), upper_bound, one.integer("position"))
    return found


def method_of(job: str) -> str:
    """The method that a job belongs to, from the job's name.

    >>> method_of("clpu-der++--counterfactual-6--1000")
    'clpu-der++'
    """
    return job.partition("--")[0]


def check_method(method: str) -> str:
    """A method's name, which is also a file's name, or `BadRun`."""
    if not isinstance(method, str) or not _NAME.fullmatch(method) or "--" in method:
        raise BadRun(f"{method!r:.80} cannot be a method's name: letters, digits and + . _ - only, and no --")
    return method
