"""The plan of an audit: which agents it trains, what it observes, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from clpu.agent import Agent, Progress
from clpu.audit.observations import Sizes
from clpu.audit.probes import Probe, Sight
from clpu.errors import BadSetting
from clpu.requests import Stream
from clpu.runs.folder import Plan
from clpu.runs.jobs import Job, TaskData
from clpu.runs.plan import COUNTERFACTUAL_SEEDS, counterfactuals, prepare
from clpu.runs.profiles import Profile
from clpu.runs.profiles import profile as named_profile
from clpu.runs.recipe import Recipe

#: The default requests of an audit: all that was learned is forgotten; then tasks are made permanent
#: and learned, one of them anew, after a forget request, so that what was kept of a forgotten task can reappear.
AUDIT_REQUESTS = "clpu-audit"
#: Of people, so many leave by default.
PEOPLE_LEAVE = 3
#: Seeds of the pairs whose bits are compared begin here.
PAIR_SEEDS = 2000
#: Replicas of the MLP in one probe: more gain little, and several probes keep two cores busy.
REPLICAS_PER_PROBE = 16
#: Steps that are timed to estimate what an audit costs.
TIMED_STEPS = 20
# Seconds that a probe takes besides its steps: outputs, attacks, files.
_SECONDS_PER_PROBE = 0.3


@dataclass(frozen=True)
class Design:
    """The extent of an audit.

    `runs` agents are trained per group, and `pairs` twins are compared bit for bit. `images` test images and `members`
    training examples are observed. Relearning takes a share `relearning` of the original training steps, with `stops`
    to measure. `error_rate` is how often a method without a trace may be flagged.
    """

    runs: int = 32
    pairs: int = 2
    images: int = 200
    members: int = 300
    relearning: float = 0.3
    stops: int = 16
    error_rate: float = 0.01

    def __post_init__(self) -> None:
        if not 4 <= self.runs <= COUNTERFACTUAL_SEEDS:
            raise BadSetting(f"an audit needs 4 to {COUNTERFACTUAL_SEEDS} runs per group, got {self.runs}")
        if not 0 < self.error_rate < 1:
            raise BadSetting(f"error_rate must be between 0 and 1, got {self.error_rate}")

    def sizes(self, steps: int) -> Sizes:
        """Return the extent of observation, where learning a task takes `steps` steps."""
        return Sizes(self.images, self.members, max(self.stops, round(self.relearning * steps)), self.stops)


#: The design of each profile's audit.
DESIGNS = {
    "smoke": Design(runs=8, images=60, members=60),
    "small": Design(),
    "medium": Design(),
    "paper": Design(runs=64),
}

#: An audit trains six times as many agents as a benchmark, so at `small` it takes fewer images of each task.
MAX_IMAGES = {"small": 1_500}


def audit_profile(benchmark: str, name: str) -> Profile:
    """The profile of that name as audits use it."""
    base = named_profile(benchmark, name)
    most = MAX_IMAGES.get(name)
    return base if most is None or (base.train or 0) <= most else replace(base, train=most)


class AuditPlan(Plan):
    """A plan whose jobs are probes."""

    @property
    def agents(self) -> int:
        """Count the agents that are trained through a stream."""
        return sum(len(probe.seeds) for probes in self.jobs.values() for probe in probes)

    @property
    def design(self) -> Design:
        return Design(**self.recipe.design)  # type: ignore[arg-type]


def plan(
    benchmark: str, profile: Profile, methods: Sequence[str], design: Design, *rest: Any, **named: Any
) -> AuditPlan:
    """Check everything that can be checked before the first step, and list the probes; arguments as for `prepare`."""
    requests, *others = rest or [named.pop("requests", AUDIT_REQUESTS)]
    recipe, data = prepare(benchmark, profile, methods, requests, design.runs, *others, **named)
    return plan_of(recipe, data, design)


def plan_of(recipe: Recipe, data: list[TaskData], design: Design) -> AuditPlan:
    """The plan of an audit with a recipe that is complete but for the design."""
    recipe = replace(recipe, kind="audit", design=asdict(design))
    stream, network = Stream(recipe.requests), str(recipe.network["name"])
    where = str(recipe.machine["device"]), int(recipe.machine["threads"])
    settings = recipe.settings
    made = {m: list(probes(m, stream, data, design, network, settings[m], *where)) for m in recipe.methods}
    return AuditPlan(recipe, data, made)


def steps_of(task: TaskData, settings: Mapping[str, Any]) -> int:
    """The steps with which a task is learned, or could be by a method that does not train."""
    return int(-(-len(task.train_y) // settings.get("batch_size", 32)) * settings.get("epochs", 1))


def probes(
    method: str,
    stream: Stream,
    data: Sequence[TaskData],
    design: Design,
    network: str,
    settings: Any,
    device: str,
    threads: int = 1,
) -> Iterator[Probe]:
    """The runs of one method: actual, counterfactual, and the twins whose bits are compared.

    The two groups have different seeds, so that they are independent; twins have the same.
    """
    if not stream.forgets:
        raise BadSetting(f"nothing is forgotten in the requests {stream}, so there is nothing to audit")
    by_name = {task.name: task for task in data}
    sizes = design.sizes(steps_of(by_name[stream[0].task], settings))
    # The task that is learned to see whether a forgotten one reappears must not be a forgotten one.
    forgotten = {stream[n - 1].task for n in stream.forgets}
    leaving = tuple(str(request) for request in stream if request.forgets_records)
    spare = [task.name for task in data if task.name not in stream.tasks]
    later = next(iter([*spare, *(t for t in stream.tasks if t not in forgotten), stream[0].task]))
    size = REPLICAS_PER_PROBE if network == "mlp" else 1
    actual = tuple((n, *what) for n in stream.forgets for what in forgotten_in(stream, n, data))
    groups: list[tuple[str, str, int, tuple[Sight, ...]]] = [("actual", str(stream), 0, actual)]
    for text, numbers in counterfactuals(stream).items():
        seen = [what for n in numbers for what in forgotten_in(stream, n, data)]
        sights = tuple(dict.fromkeys((len(Stream(text)), *what) for what in seen))
        groups.append((f"counterfactual-{numbers[-1]}", text, COUNTERFACTUAL_SEEDS, sights))
    for group, text, first, sights in groups:
        for start in range(first, first + design.runs, size):
            seeds = tuple(range(start, min(start + size, first + design.runs)))
            common = (network, settings, (), device, threads, leaving)
            yield Probe(method, group, text, seeds, *common, sights, sizes, later)
    twins = tuple(range(PAIR_SEEDS, PAIR_SEEDS + design.pairs))
    checkpoints = tuple(checked(stream))
    yield Probe(method, "bits", str(stream), twins, network, settings, checkpoints, device, threads)
    for text, numbers in counterfactuals(stream, checked(stream)).items():
        group = f"bits-counterfactual-{numbers[-1]}"
        yield Probe(method, group, text, twins, network, settings, (len(Stream(text)),), device, threads)


def forgotten_in(stream: Stream, number: int, data: Sequence[TaskData]) -> list[tuple[str, str]]:
    """What a request forgets, as pairs of a task and which of its records, "" for all; a person may be in several."""
    request = stream[number - 1]
    if not request.parts:
        return [(request.task, "")]
    active = [active for _, _, active in stream.walk()][number - 1]
    concerned = [task.name for task in data if task.name in active and task.covered(request.scope, train=True).any()]
    return [(name, str(request.parts[0])) for name in concerned]


def checked(stream: Stream) -> list[int]:
    """The requests after which bits are compared: those that forget, and the last."""
    return sorted({*stream.forgets, len(stream)})


class _Enough(Exception):
    """Ends a training that was only begun to be timed."""


def estimate(plan: AuditPlan, left: Sequence[Job], workers: int) -> float:
    """Seconds that probes will take, from the time of a few steps and the rough cost of each request."""
    if not left:
        return 0.0
    probe = max(left, key=lambda p: len(p.seeds))
    task = next(t for t in plan.data if t.name == Stream(plan.recipe.requests)[0].task)
    stamps: list[float] = []

    def watch(step: Progress) -> None:
        stamps.append(time.perf_counter())
        if step.step >= TIMED_STEPS:
            raise _Enough

    base = {k: v for k, v in probe.settings.items() if k in Agent("seq", probe.network).settings}
    agent = replace(probe, method="seq", settings=base).agent()
    agent.progress = watch
    with suppress(_Enough):
        agent.learn(task.name, task.train_x, task.train_y)
    a_step = (stamps[-1] - stamps[len(stamps) // 4]) / max(1, len(stamps) - 1 - len(stamps) // 4) / len(probe.seeds)
    total = 0.0
    for one in left:
        # Observing takes about as long as learning a task, each time.
        sights = one.sights if isinstance(one, Probe) else ()
        extra = replace(one, requests=f"{task.name}R") if sights else None
        looks = len({number for number, *_ in sights})
        cost = sum(one.costs()) + (looks * sum(extra.costs()) if extra else 0.0)
        total += cost * steps_of(task, one.settings) * a_step + _SECONDS_PER_PROBE
    return total / max(1, min(workers, len(left)))
