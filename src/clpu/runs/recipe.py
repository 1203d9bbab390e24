"""The recipe of a run: `run.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from clpu import jsonfile
from clpu.errors import BadRun, Error
from clpu.jsonfile import Seconds
from clpu.machine import Machine
from clpu.requests import Stream

#: Values of settings in runs that are older than the setting.
ADDED = {"scaling": "none", "class_weight": "none"}

#: Between the commands that made a run one after the other.
AND = " && "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,99}")
_TITLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 +._-]{0,99}")
_JOB = re.compile(r"[A-Za-z0-9+._-]{1,100}--[a-z0-9-]{1,100}--[0-9]{1,20}")
_OVERRIDE = re.compile(r"[A-Za-z0-9+._-]{1,200}=[^<>`\n]{1,200}")


@dataclass(frozen=True)
class DataUsed:
    """The data of a run: enough to see whether a different run had the same.

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
    """A method as tables show it, taken from its class when the run was made.

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

    `overrides` are the settings of `--set`, which make it a different run than its profile says. `jobs` says for each
    job which of `machines` computed it, or None if that was not recorded. `methods_about` is what tables show about
    each method. `design` is how much an audit observes. `notes` are remarks for whoever reads the numbers.
    """

    format: ClassVar[str] = "clpu-run"

    benchmark: str
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
    seconds: Seconds | None = None
    overrides: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    jobs: Mapping[str, int | None] = field(default_factory=dict)
    methods_about: Mapping[str, MethodAbout] = field(default_factory=dict)
    kind: Literal["benchmark", "audit"] = "benchmark"
    design: Mapping[str, int | float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            stream = Stream(self.requests)
        except Error as error:
            raise BadRun(f"the recipe's requests cannot be read: {error}") from None
        if not self.seeds:
            raise BadRun("the recipe has no seeds")
        for method in [*self.methods, *self.methods_about]:
            check_method(method)
        for what, name in (("benchmark", self.benchmark), ("profile", self.profile), ("data set", self.data.name)):
            if not _TITLE.fullmatch(name):
                raise BadRun(f"{name!r:.80} cannot be the name of a {what}: letters, digits, spaces and + . _ - only")
        for text in self.overrides:
            if not _OVERRIDE.fullmatch(text):
                raise BadRun(f"{text!r:.80} is not a setting: expected key=value")
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
        """Return the machines that computed a method's jobs, each once; None if one was not recorded."""
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


def result_file(folder: Path | str, results: str, method: str) -> Path:
    """The file with a method's results in the folder `results` of a run."""
    return Path(folder) / results / f"{check_method(method)}.json"


def read_recipe(folder: Path | str, kind: str = "benchmark") -> Recipe:
    """Read `run.json`, or raise `BadRun`; also if it is the recipe of a different kind of run."""
    recipe = jsonfile.read(Path(folder) / "run.json", Recipe)
    if recipe.kind != kind:
        raise BadRun(f"{folder} contains {recipe.kind} results; expected those of a {kind}, or a different folder")
    return recipe


def merge_recipes(before: Recipe, recipe: Recipe, folder: Path) -> Recipe:
    """An earlier recipe with the methods of a later one; `BadRun` with the differences if they do not agree."""
    differences = []

    def compare(name: str, then: Any, now: Any) -> None:
        if _plain(then) != _plain(now):
            differences.append(f"{name}: {then} (existing), {now} (requested)")

    for name in ("benchmark", "requests", "profile", "seeds", "counterfactual_seeds"):
        compare(name, getattr(before, name), getattr(recipe, name))
    compare("network", before.network.get("name"), recipe.network.get("name"))
    for name, now in vars(recipe.data).items():
        if name != "tasks_sha256" or before.data.tasks_sha256:  # which converted runs do not have
            compare(f"data.{name}", getattr(before.data, name), now)
    for name in sorted({*before.design, *recipe.design}):
        compare(f"design.{name}", before.design.get(name), recipe.design.get(name))
    # Of an existing method that is not asked for now, the settings count that those asked for have too, or one table
    # would have rows of two learning rates; but what was set for it alone is its own.
    asked = {key for method in recipe.methods for key in recipe.settings[method]}
    for method in [method for method in recipe.settings if method in before.settings]:
        then, now = before.settings[method], recipe.settings[method]
        for key in sorted({*then, *now}):
            alone = any(text.startswith(f"{method}.{key}=") for text in before.overrides)
            if method in recipe.methods or (key in asked and not alone):
                compare(f"{method}.{key}", then.get(key, ADDED.get(key)), now.get(key))
    for name in (f"{m} (SHA-256)" for m in recipe.settings if m in before.settings):
        compare(f"version of {name}", before.versions.get(name), recipe.versions.get(name))
    compare("device", before.machine.get("device", "cpu"), recipe.machine.get("device", "cpu"))
    compare("threads", before.machine.get("threads", 1), recipe.machine.get("threads", 1))
    if differences:
        listed = "\n  ".join(differences)
        raise BadRun(
            f"{folder} contains a run with different settings:\n  {listed}\n"
            "Use the same settings, choose a different --out, or delete the folder."
        )
    commands = before.command.split(AND)
    return replace(
        before,
        methods=tuple(dict.fromkeys([*before.methods, *recipe.methods])),
        settings={**{method: recipe.settings[method] for method in recipe.methods}, **before.settings},
        versions={**recipe.versions, **before.versions},
        methods_about={**before.methods_about, **recipe.methods_about},
        overrides=tuple(dict.fromkeys([*before.overrides, *recipe.overrides])),
        command=before.command if recipe.command in commands else AND.join(filter(None, [*commands, recipe.command])),
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
