"""Audit a custom method and custom tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clpu
from clpu import auto, jsonfile
from clpu.agent import Agent
from clpu.audit import run as auditing
from clpu.audit.findings import Findings
from clpu.audit.plan import AUDIT_REQUESTS, AuditPlan, Design, plan_of
from clpu.audit.probes import work
from clpu.audit.verdict import Verdict, verdict
from clpu.data.benchmarks import person_id
from clpu.errors import BadData, BadRun, BadSetting
from clpu.inputs import read_inputs
from clpu.labels import classes, encode, read_labels
from clpu.methods import METHODS, Method
from clpu.requests import Stream, check_id
from clpu.runs import folder as folders
from clpu.runs.engine import Event
from clpu.runs.jobs import TaskData
from clpu.runs.plan import COUNTERFACTUAL_SEEDS, checksum
from clpu.runs.recipe import DataUsed, MethodAbout, Recipe
from clpu.scaling import Scaling


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: `verdict` and `findings`; as a string, `to_json()` or `page()`."""

    recipe: Recipe
    findings: Findings

    @property
    def verdict(self) -> Verdict:
        return verdict(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `json.dump`."""
        plain = {"recipe": self.recipe, "findings": self.findings, "verdict": self.verdict}
        return {name: jsonfile.to_plain(value) for name, value in plain.items()}

    def page(self) -> str:
        """A self-contained HTML page."""
        from clpu.audit.page import page

        return page(auditing.Audit(self.findings.method, self.recipe, {self.findings.method: self.findings}))

    def __str__(self) -> str:
        return f"{self.findings.method}: {self.verdict.title}. {self.verdict.explanation}"


def audit(
    method: str | type[Method],
    tasks: Mapping[str, Sequence[Any]] | Sequence[Any],
    requests: str | Stream = AUDIT_REQUESTS,
    *,
    network: str | nn.Module | None = None,
    runs: int = 32,
    pairs: int = 2,
    error_rate: float = 0.01,
    device: str = "cpu",
    threads: int = 1,
    folder: Path | str | None = None,
    mix_machines: bool = False,
    progress: Callable[[Event], None] = lambda event: None,
    **settings: Any,
) -> AuditResult:
    """Test whether a task that this method forgot leaves a trace.

    `tasks` is what `clpu.data.tasks` gives, or a mapping from names to (train_x, train_y, test_x, test_y); without
    test data (train_x, train_y) the training examples are used. For requests such as "1R @p7F", two more entries say
    who each training and each test record is about. `runs` agents per group are trained on `requests` and
    on its counterfactuals. With `folder`, an interrupted audit can be resumed; on a machine that computes differently
    only with `mix_machines`. Further keyword arguments are settings of training, method and network, as for
    `clpu.Agent`.

    >>> from clpu.testing import make_task
    >>> tasks = {name: make_task(name) for name in ("1", "2")}
    >>> print(audit("clpu-der++", tasks, "1R 2T 2F", runs=4, epochs=1, hidden=(8,)).verdict.title)
    exact (proved bitwise)
    """
    chosen = METHODS[method] if isinstance(method, str) and method in METHODS else method
    if network is None:
        network = getattr(chosen, "default_network", "mlp")
    own = isinstance(network, nn.Module)
    kind = network if isinstance(network, str) else "module"
    based = kind.startswith("base:")  # which makes integers by itself, by constants that no data were asked about
    scaled = not own and not based and settings.get("scaling", "auto") in ("auto", "task")
    data = [_task(name, arrays, kind, scaled) for name, arrays in _named(tasks)]
    asked = requests if isinstance(requests, Stream) else Stream(requests)
    unknown = [task for task in asked.tasks if task not in {d.name for d in data}]
    if unknown:
        raise BadSetting(f"the tasks are {', '.join(d.name for d in data)}; the requests name {', '.join(unknown)} too")
    agent = Agent(method, network, device=device, threads=threads, **settings)
    # The attacks see what the networks see, with settings that do not depend on the task.
    found = auto.resolved(agent.settings, len(data[0].train_y), data[0].train_x[0].numel(), kind)
    options = {**settings, **found, **({} if based else {"scaling": "none"})}
    agent = Agent(method, network, device=device, threads=threads, **options)
    asked.check(agent.forgets)
    assert not isinstance(chosen, str)  # the agent has refused a name that is not a method's
    design = Design(runs=runs, pairs=pairs, error_rate=error_rate)
    recipe = Recipe(
        benchmark="custom tasks",
        requests=str(asked),
        profile="custom",
        methods=(agent.method,),
        seeds=tuple(range(runs)),
        counterfactual_seeds=tuple(range(COUNTERFACTUAL_SEEDS, COUNTERFACTUAL_SEEDS + runs)),
        settings={agent.method: agent.settings},
        network={"name": kind},
        data=DataUsed(
            name="custom tasks",
            sha256="",
            tasks=len(data),
            train=len(data[0].train_y),
            test=len(data[0].test_y),
            classes=tuple(len(d.classes) for d in data),
            tasks_sha256=checksum(data),
        ),
        versions={"clpu": clpu.__version__, "torch": torch.__version__},
        machine={"device": str(device), "threads": threads},
        methods_about={chosen.name: MethodAbout(chosen.label or chosen.name, chosen.forgets, chosen.upper_bound)},
    )
    plan = plan_of(recipe, data, design)
    job = partial(work, method=chosen, network=network if isinstance(network, nn.Module) else None)
    if folder is not None:
        return _audited(plan, chosen, Path(folder), job, progress, mix_machines)
    with tempfile.TemporaryDirectory() as scratch:
        return _audited(plan, chosen, Path(scratch), job, progress)


def _audited(
    plan: AuditPlan, method: type[Method], folder: Path, job: Any, progress: Callable[[Event], None], mix: bool = False
) -> AuditResult:
    with folders.RunFolder(folder, replace(auditing.AUDIT, work=job)) as run:
        run.resume(plan, mix)
        failures = run.execute(1, progress)
        if failures:
            name, reason = next(iter(failures.items()))
            raise BadRun(f"{len(failures)} jobs of the audit failed. The first, {name}: {reason.strip()}")
        return AuditResult(run.recipe, run.results[method.name])


def _named(tasks: Any) -> list[tuple[str, Sequence[Any]]]:
    if isinstance(tasks, Mapping):
        return [(str(name), arrays) for name, arrays in tasks.items()]
    return [(task.name, (task.train.x, task.train.y, task.test.x, task.test.y, *_ids(task))) for task in tasks]


def _ids(task: Any) -> list[list[str]]:
    """Who a benchmark's records are about, if they are about people."""
    both = (task.train.people, task.test.people)
    return [] if any(people is None for people in both) else [[*map(person_id, people.tolist())] for people in both]


def _task(name: str, arrays: Sequence[Any], network: str, scaled: bool) -> TaskData:
    """A task's data as the agent would read and scale them; only a user's module takes integers as they are."""
    if len(arrays) not in (2, 4, 6):
        raise BadData(
            f"task {name!r} needs (train_x, train_y, test_x, test_y), with (…, train_people, test_people) or without, "
            "or (train_x, train_y)"
        )
    *arrays, people, test_people = arrays if len(arrays) == 6 else (*arrays, (), ())
    cpu = torch.device("cpu")
    tokens = network == "module"
    x, test_x = (read_inputs(array, None, tokens, cpu, wide=scaled) for array in (arrays[0], arrays[-2]))
    if scaled and x.is_floating_point() and test_x.is_floating_point():
        scaling = Scaling.fitted(x, network)
        x, test_x = scaling(x), scaling(test_x)
    labels, y = classes(read_labels(arrays[1], len(x)))
    test_y = encode(read_labels(arrays[-1], len(test_x)), labels, name)
    about = [tuple(check_id(who) for who in ids) for ids in (people, test_people) if len(ids)]
    if [len(ids) for ids in about] not in ([], [len(y), len(test_y)]):
        raise BadData(f"task {name!r} needs one person per record")
    known = tuple(range(len(labels)))
    return TaskData(name, x, torch.from_numpy(y), test_x, torch.from_numpy(test_y), known, *about)
