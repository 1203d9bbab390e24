"""Audit a custom method and custom tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clpu
from clpu.agent import Agent
from clpu.audit import run as auditing
from clpu.audit.findings import Findings
from clpu.audit.plan import AUDIT_REQUESTS, AuditPlan, Design, probes
from clpu.audit.probes import Probe, work
from clpu.audit.verdict import Verdict, verdict
from clpu.bench.engine import Event
from clpu.bench.pieces import TaskData
from clpu.bench.plan import checksum
from clpu.errors import BadData, BadRun, BadSetting
from clpu.inputs import read_inputs, read_labels
from clpu.methods import METHODS, Method
from clpu.recipe import DataUsed, MethodAbout, Recipe
from clpu.requests import Stream


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
        return {"recipe": self.recipe.to_json(), "findings": self.findings.to_json(), "verdict": vars(self.verdict)}

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
    network: str | nn.Module = "mlp",
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
    test data (train_x, train_y) the training examples are used. `runs` agents per group are trained on `requests` and
    on its counterfactuals. With `folder`, an interrupted audit can be resumed; on a machine that computes differently
    only with `mix_machines`. Further keyword arguments are settings of training, method and network, as for
    `clpu.Agent`.

    >>> from clpu.testing import make_task
    >>> tasks = {name: make_task(name) for name in ("1", "2")}
    >>> print(audit("clpu-der++", tasks, "1R 2T 2F", runs=4, epochs=1, hidden=(8,)).verdict.title)
    exact (proved bitwise)
    """
    own = isinstance(network, nn.Module)
    data = [_task(name, arrays, tokens=own) for name, arrays in _named(tasks)]
    asked = requests if isinstance(requests, Stream) else Stream(requests)
    unknown = [task for task in asked.tasks if task not in {d.name for d in data}]
    if unknown:
        raise BadSetting(f"the tasks are {', '.join(d.name for d in data)}; the requests name {', '.join(unknown)} too")
    agent = Agent(method, network, device=device, threads=threads, **settings)
    asked.check(agent.forgets)
    chosen = METHODS[method] if isinstance(method, str) else method
    kind = network if isinstance(network, str) else "module"
    design = Design(runs=runs, pairs=pairs, error_rate=error_rate)
    made = list(probes(agent.method, asked, data, design, kind, agent.settings, device, threads))
    recipe = Recipe(
        stream="custom tasks",
        requests=str(asked),
        profile="custom",
        methods=(agent.method,),
        seeds=tuple(range(runs)),
        counterfactual_seeds=_counterfactual_seeds(made),
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
    plan = AuditPlan(recipe, design, data, {agent.method: made})
    job = partial(work, method=chosen, network=network if isinstance(network, nn.Module) else None)
    if folder is not None:
        return _audited(plan, chosen, Path(folder), job, progress, mix_machines)
    with tempfile.TemporaryDirectory() as scratch:
        return _audited(plan, chosen, Path(scratch), job, progress)


def _counterfactual_seeds(made: Sequence[Probe]) -> tuple[int, ...]:
    """The seeds of the counterfactual runs."""
    return tuple(sorted({seed for probe in made if probe.group.startswith("counterfactual") for seed in probe.seeds}))


def _audited(
    plan: AuditPlan, method: type[Method], folder: Path, job: Any, progress: Callable[[Event], None], mix: bool = False
) -> AuditResult:
    failures = auditing.run(plan, folder, 1, progress, job, {method.name: method.forgets_exactly()}, mix)
    if failures:
        name, reason = next(iter(failures.items()))
        raise BadRun(f"{len(failures)} jobs of the audit failed. The first, {name}: {reason.strip()}")
    made = auditing.read_audit(folder)
    return AuditResult(made.recipe, made.findings[method.name])


def _named(tasks: Any) -> list[tuple[str, Sequence[Any]]]:
    if isinstance(tasks, Mapping):
        return [(str(name), arrays) for name, arrays in tasks.items()]
    return [(task.name, (task.train.x, task.train.y, task.test.x, task.test.y)) for task in tasks]


def _task(name: str, arrays: Sequence[Any], tokens: bool = False) -> TaskData:
    """A task's data as the agent would read them; only a user's module takes integers as they are."""
    if len(arrays) not in (2, 4):
        raise BadData(f"task {name!r} needs (train_x, train_y, test_x, test_y) or (train_x, train_y)")
    cpu = torch.device("cpu")
    x, test_x = read_inputs(arrays[0], None, tokens, cpu), read_inputs(arrays[-2], None, tokens, cpu)
    y, test_y = read_labels(arrays[1], len(x)), read_labels(arrays[-1], len(test_x))
    classes = tuple(y.unique().tolist())
    if not set(test_y.tolist()) <= set(classes):
        raise BadData(f"task {name!r} has test labels that do not occur in its training data")
    return TaskData(name, x, y, test_x, test_y, classes)
