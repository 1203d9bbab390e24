"""A benchmark from end to end: jobs are run in a folder, and results made of what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from clpu.bench.measure import JobResult, load, measure
from clpu.metrics import jsd_matrix
from clpu.requests import Scope, Stream
from clpu.results import RESULTS, ForgetResult, Result, alive_after, decode_result
from clpu.runs import folder
from clpu.runs.folder import Kind, Plan
from clpu.runs.jobs import TaskData


def combine(plan: Plan, method: str, measured: Mapping[str, JobResult]) -> Result:
    """One method's results from those of its jobs."""
    stream = Stream(plan.recipe.requests)
    groups: dict[tuple[str, str], list[JobResult]] = {}
    for job in plan.jobs[method]:
        groups.setdefault((job.group.partition("-")[0], job.requests), []).append(measured[job.name])
    actual = groups["actual", str(stream)]
    forgets = []
    for number in stream.forgets:
        request, text = stream[number - 1], str(stream.counterfactual(number))
        never = groups["counterfactual", text]
        last = len(Stream(text))
        in_group, across, rights = {}, {}, []
        for task in plan.data:
            which = task.covered(request.scope if request.parts else Scope()).numpy()
            runs = np.concatenate([m.outputs[number, task.name] for m in actual])[:, which]
            others = np.concatenate([m.outputs[last, task.name] for m in never])[:, which]
            if runs.shape[1]:
                in_group[task.name], across[task.name] = jsd_matrix(others), jsd_matrix(runs, others)
            if request.parts:
                rights.append([_shares(group, task, which) for group in (runs, others)])
        forgets.append(
            ForgetResult(
                request=number,
                task=request.task,
                counterfactual=text,
                counterfactual_accuracy=np.stack([share for _, share in rights])
                if rights
                else np.concatenate([m.accuracy[-1] for m in never], axis=-1),
                in_group=in_group,
                across=across,
                records=str(request.scope) if request.parts else "",
                accuracy=np.stack([share for share, _ in rights]) if rights else np.empty((0, 0)),
                same_digest=_same_digest(number, actual, groups["twin", text]) if request.parts else None,
            )
        )
    return Result(
        method=method,
        tasks=tuple(task.name for task in plan.data),
        requests=tuple(str(request) for request in stream),
        accuracy=np.concatenate([m.accuracy for m in actual], axis=-1),
        alive=tuple(tuple(names) for names in alive_after(stream)),
        bytes=tuple(actual[0].cost.bytes),
        seconds=tuple(float(s) for s in np.sum([m.cost.seconds for m in actual], axis=0)),
        forgets=tuple(forgets),
        class_incremental=tuple(float(share) for m in actual for share in m.class_incremental),
    )


def _shares(outputs: NDArray[np.float32], task: TaskData, which: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share (replica,) of right answers among some of a task's test records; 0 if there are none."""
    if not outputs.shape[1]:
        return np.zeros(len(outputs))
    right = np.array(task.classes)[outputs.argmax(-1)] == task.test_y[which].numpy()
    return np.asarray(right.mean(-1), dtype=np.float64)


def _same_digest(number: int, actual: Sequence[JobResult], twins: Sequence[JobResult]) -> bool:
    """Whether each agent has, after a request, the digest of one with its seed that never had what was forgotten."""
    return [m.cost.digests[number - 1] for m in actual] == [m.cost.digests[-1] for m in twins]


#: The kind of run that is a benchmark.
BENCHMARK = Kind("benchmark", RESULTS, decode_result, measure, load, combine)

run = partial(folder.run, BENCHMARK)
