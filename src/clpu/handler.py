"""Everything that an agent computes: the new state after a request, and the answers of a state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clpu import auto
from clpu.errors import BadData, BadSetting, Diverged, UnknownTask
from clpu.holdout import measured
from clpu.intake import Intake, RequestData
from clpu.methods import Method, familiarity, inputs_of
from clpu.networks.blueprint import Blueprint
from clpu.outcome import Change, Outcome
from clpu.requests import Instruction, Request
from clpu.settings import from_json, make, refuse_unknown, setting_fields, to_json
from clpu.state import State
from clpu.threads import computing_with
from clpu.workers import Workers


@dataclass(frozen=True)
class Handler:
    """Computes new states and answers with a method, built anew each time; holds no state itself."""

    method: type[Method]
    blueprint: Blueprint
    #: The agent's settings of the method.
    settings: Any
    seeds: tuple[int, ...]
    threads: int
    workers: Workers
    #: Called with the phase of a request, the step, and the number of steps.
    report: Callable[[str, int, int], None]

    @property
    def intake(self) -> Intake:
        return Intake(self.method, self.blueprint, self.workers)

    # Settings and methods

    def settings_for(self, given: Mapping[str, Any]) -> Any:
        """The agent's settings of the method with some of them replaced for one request."""
        refuse_unknown(given, setting_fields(self.method.Settings))
        for name in self.method.same_for_all_tasks:
            if name in given:
                raise BadSetting(f"{name} is a setting of the agent, chosen when it is made, not of one request")
        return make(self.method.Settings, {**dataclasses.asdict(self.settings), **given}) if given else self.settings

    def settings_of(self, state: State, task: str | None) -> Any:
        """The settings that a task was learned with; the agent's, if there is no such task."""
        facts = state.tasks[task].facts if task is not None and task in state.tasks else {}
        return self.settings_for(from_json(facts.get("settings", {})))

    def build(self, settings: Any) -> Method:
        """The method with these settings."""
        method = self.method(settings, self.blueprint, self.seeds, self.report)
        method.workers = self.workers
        return method

    def build_for(self, state: State, task: str | None = None) -> Method:
        """The method with the settings that a task was learned with, or with the agent's."""
        return self.build(self.settings_of(state, task))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In full precision, with the agent's threads and with gradients, whatever the caller uses."""
        precision = torch.autocast(self.blueprint.device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), computing_with(self.threads), precision:
            yield

    # Requests

    def learn(
        self, state: State, task: str, temporary: bool, given: RequestData, holdout: float, settings: Mapping[str, Any]
    ) -> tuple[State, Outcome]:
        """Learn a task that the state does not have."""
        chosen = self.settings_for(settings)
        new_task = self.intake.new_task(state, task, given, holdout, self.seeds[0])
        data, inputs = new_task.data, inputs_of(new_task.data)
        self.blueprint.features(inputs, self.seeds)
        if getattr(chosen, "augment", "none") != "none" and len(inputs.shape) != 3:
            raise BadData(f"augmentation needs images (channels, height, width), got inputs of shape {inputs.shape}")
        found = auto.resolved(dataclasses.asdict(chosen), len(data), data.x[0].numel(), self.blueprint.name)

        def work(method: Method) -> State:
            return method.learn(state, task, data, temporary)

        with self.computing():
            new, used = self._trained(work, dataclasses.replace(chosen, **found), "lr" in found)
            named = to_json({name: getattr(used, name) for name in sorted({*settings, *found})})
            new = _with_facts(new, task, **({"settings": named} if named else {}), **new_task.facts)
            new = self._calibrated(new, task, data.x)
            result = None
            if new_task.held_out is not None:
                with torch.no_grad():
                    logits = self.build(used).logits(new, task, new_task.held_out.x)
                result = measured(logits, new_task.held_out.y, data.y)
                if not self.intake.single:  # without a person, the result would have been different
                    new = _with_facts(new, task, held_out=result.to_json())
            return new, dataclasses.replace(self.outcome(state, new, task), held_out=result)

    def add(self, state: State, task: str, given: RequestData) -> State:
        """Add records to an active task."""
        data = self.intake.more(state, task, given)
        with self.computing():
            return self.build_for(state, task).add(state, task, data)

    def keep(self, state: State, task: str) -> tuple[State, Outcome]:
        """Make a temporary task permanent."""
        adapts = getattr(self.settings, "lr", None) == "auto"
        with self.computing():
            new, _ = self._trained(lambda method: method.keep(state, task), self.settings_of(state, task), adapts)
            new = new.with_task(task, dataclasses.replace(new.tasks[task], status="R"))
            return new, self.outcome(state, new, task)

    def forget(self, state: State, request: Request) -> State:
        """Forget a task, or the records that a request names."""
        with self.computing():
            method = self.build_for(state, request.task or None)
            if request.parts:
                return method.forget_records(state, request.scope)
            return method.forget(state, request.task)

    def take_along(self, before: State, after: State, request: Request) -> None:
        """Spare the new state work that was done for the old one, where records were forgotten."""
        if request.instruction is Instruction.FORGET and request.parts:
            with self.computing():
                self.build(self.settings).take_along(before, after, request.scope)

    def outcome(self, before: State, after: State, task: str) -> Outcome:
        """Compare two states by their accuracy on the memories of the remembered tasks and of this one."""
        method, changes = self.build(self.settings), {}
        with self.computing():
            for name in sorted({*after.remembered, task}):
                now = method.memory_accuracy(after, name)
                if now is None:
                    continue
                then = method.memory_accuracy(before, name) if name in before.tasks else None
                changes[name] = Change(then, now)
        return Outcome(changes)

    def _trained(self, work: Callable[[Method], State], settings: Any, adapts: bool) -> tuple[State, Any]:
        """Train, and return the state and the settings used: a learning rate that adapts is lowered on divergence."""
        for attempt in range(auto.ATTEMPTS):
            try:
                return work(self.build(settings)), settings
            except Diverged:
                if not adapts or attempt == auto.ATTEMPTS - 1:
                    raise
                settings = dataclasses.replace(settings, lr=settings.lr / auto.SLOWER)
        raise AssertionError

    def _calibrated(self, state: State, task: str, x: Tensor) -> State:
        """The state with what a task needs to recognise its own inputs; nothing where single records can be forgotten.

        (The calibration would remember them; such a method defines its own `scores`.)
        """
        if self.intake.single:
            return state
        some = familiarity.sample(x)
        with torch.no_grad():
            logits = self.build_for(state, task).logits(state, task, some)
        scaled = "scaling" in state.tasks[task].facts
        return _with_facts(state, task, familiar=familiarity.calibration(some, logits, scaled))

    # Answers

    def logits(self, state: State, task: str, x: Any, classes: int | None = None) -> Tensor:
        """Outputs (replicas, n, classes) of a task; of one that is not active, through a fresh head."""
        inputs = self.intake.inputs(state, task, x)
        with self.computing(), torch.no_grad():
            return self.build_for(state, task).logits(state, task, inputs, classes)

    def scores(self, state: State, x: Any) -> Tensor:
        """Log-likelihoods, up to a constant, that inputs belong to each pair (task, label) or to none."""
        if not state.tasks:
            raise UnknownTask("no task is active, so there is nothing to choose from; learn one first")
        with self.computing(), torch.no_grad():
            return self.build(self.settings).scores(state, self.intake.inputs_by_task(state, x))


def _with_facts(state: State, task: str, **facts: Any) -> State:
    entry = state.tasks[task]
    return state.with_task(task, dataclasses.replace(entry, facts={**entry.facts, **facts}))
