"""A benchmark from end to end: jobs are run in a folder, and results made of what came out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from clpu.bench.measure import JobResult, load, measure
from clpu.metrics import jsd_matrix
from clpu.requests import Stream
from clpu.results import RESULTS, ForgetResult, Result, alive_after, decode_result
from clpu.runs import folder
from clpu.runs.folder import Kind, Plan


def combine(plan: Plan, method: str, measured: Mapping[str, JobResult]) -> Result:
    """One method's results from those of its jobs."""
    stream = Stream(plan.recipe.requests)
    groups: dict[str, list[JobResult]] = {}
    streams: dict[str, str] = {}
    for job in plan.jobs[method]:
        groups.setdefault(job.group, []).append(measured[job.name])
        streams[job.requests] = job.group
    actual = groups["actual"]
    forgets = []
    for number in stream.forgets:
        text = str(stream.counterfactual(number))
        never = groups[streams[text]]
        last = len(Stream(text))
        in_group, across = {}, {}
        for task in plan.data:
            runs = np.concatenate([m.outputs[number, task.name] for m in actual])
            others = np.concatenate([m.outputs[last, task.name] for m in never])
            in_group[task.name], across[task.name] = jsd_matrix(others), jsd_matrix(runs, others)
        forgets.append(
            ForgetResult(
                request=number,
                task=stream[number - 1].task,
                counterfactual=text,
                counterfactual_accuracy=np.concatenate([m.accuracy[-1] for m in never], axis=-1),
                in_group=in_group,
                across=across,
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


#: The kind of run that is a benchmark.
BENCHMARK = Kind("benchmark", RESULTS, decode_result, measure, load, combine)

run = partial(folder.run, BENCHMARK)
