"""Bit for bit: what an agent holds after a stream against what it holds after the stream's counterfactual."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from clpu.agent import Agent
from clpu.audit.outside import outside
from clpu.io import canonical, sha256
from clpu.runs.jobs import TaskData, answers
from clpu.state import Leaf


def fingerprint(agent: Agent, data: Sequence[TaskData] = (), images: int = 100) -> dict[str, str]:
    """SHA-256 of every part of an agent, by name, and of its outputs for every task, active or not.

    >>> sorted(part for part in fingerprint(Agent("ind")) if not part.startswith("outside/"))
    ['about', 'digest']
    """
    state = agent.state()
    parts = {"digest": state.digest(), "about": sha256(canonical(dict(state.about)))}
    for name, task in state.tasks.items():
        parts[f"task/{quote(name, safe='')}/facts"] = sha256(canonical([task.status, dict(task.facts)]))
    for path, leaf in state.leaves():
        parts |= {f"{path}/{name}": Leaf({name: tensor}).sha256 for name, tensor in leaf.tensors.items()}
    for task_data in data:
        outputs = answers(agent, task_data, task_data.test_x[:images])
        parts[f"outputs/{quote(task_data.name, safe='')}"] = Leaf({"outputs": outputs}).sha256
    # Last, when everything that is computed once and then kept, such as a module's number of features, was needed.
    return parts | {f"outside/{place}": value for place, value in outside(agent).items()}


def describe_parts(parts: Sequence[str]) -> list[str]:
    """The names of parts in words, each once; what is kept comes before the answers that follow from it.

    >>> describe_parts(["digest", "outputs/1", "shared/body/0.bias", "shared/body/0.weight", "task/1/own/extra/count"])
    ['main network', 'count of task 1', 'answers for task 1']
    """
    kept = sorted((part for part in parts if part != "digest"), key=lambda part: part.startswith("outputs/"))
    return list(dict.fromkeys(map(_described, kept))) or ["digest"]


def _described(part: str) -> str:
    kind, *rest = part.split("/")
    if kind == "shared":
        names = {"forgotten": f"head of forgotten task {unquote(''.join(rest[1:2]))}", "body": "main network"}
        return names.get(rest[0], f"shared {'/'.join(rest)}")
    if kind == "outputs":
        return f"answers for task {unquote(rest[0])}"
    if kind == "outside":
        return f"{rest[0]} (outside the state)"
    if kind == "task" and rest[1] == "people":
        who = ", ".join(json.loads(unquote(rest[2]))) or "nobody in particular"
        return f"records about {who} in task {unquote(rest[0])}"
    if kind == "task":
        names = {
            "memory": "memory",
            "network": "own network",
            "isolated": "own network",
            "head": "head",
            "facts": "facts",
        }
        what = names.get(rest[2] if rest[1] == "own" else rest[1], "/".join(rest[3:]))
        return f"{what} of task {unquote(rest[0])}"
    return part


@dataclass(frozen=True)
class Bits:
    """One comparison: the state after `request`, and that of runs with the same seeds after the counterfactual."""

    request: int
    counterfactual: str
    seeds: tuple[int, ...]
    digest: str
    digest_counterfactual: str
    differing: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differing


def compare(
    request: int, stream: str, seeds: Sequence[int], actual: Mapping[str, str], counterfactual: Mapping[str, str]
) -> Bits:
    """List the parts that differ, or exist in only one of the two; `stream` is the counterfactual's.

    >>> compare(2, "", [0], {"digest": "a", "x": "1"}, {"digest": "b"}).differing
    ('digest', 'x')
    """
    names = sorted(name for name in {*actual, *counterfactual} if actual.get(name) != counterfactual.get(name))
    return Bits(request, stream, tuple(seeds), actual["digest"], counterfactual["digest"], tuple(names))
