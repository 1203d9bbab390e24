"""LSF with the F of the authors' code, that of all heads' outputs: does it explain why ours comes out better?

EWC's F there is, like ours, of p(y|x) over the task's own classes. LSF's is of p(y|x) over the classes of all five
tasks, heads not trained yet among them, and the penalty holds every head to where it was after each task: those not
trained yet to where they began. This program runs LSF as it is, with that F for the body and the task's own head, and
with that F for all heads, through the requests of the benchmark. About ten minutes each on one core.

    python reproduction/lsf_fisher.py [STREAM [IMAGES [lsf|lsf-all-outputs|lsf-all-heads]]]
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

import clpu
from clpu.data import tasks
from clpu.learning.batches import Examples
from clpu.methods.lsf import LSF
from clpu.methods.networks import Knowledge
from clpu.metrics import accuracy_and_forgetting
from clpu.networks.linear import Linear

TASKS, CLASSES = "12345", 10


class AllOutputs(LSF):
    """LSF whose F is that of p(y|x) over the outputs of all heads, trained or not."""

    name = "lsf-all-outputs"
    every_head = False

    def consolidate(self, known: Knowledge, task: str, data: Examples) -> None:
        whole = network = known.main
        for other in TASKS:
            if other not in network.heads:
                whole = self.with_fresh_head(whole, other, CLASSES)
        parts = [whole.heads[t] for t in TASKS]
        joint = Linear(torch.cat([h.weight for h in parts], 2), torch.cat([h.bias for h in parts], 2))
        whole = whole.with_head("all", joint)
        first = CLASSES * TASKS.index(task)
        kept = known.extras.setdefault(task, {})
        fisher, y = whole.fisher("all", data.x, data.y + first), data.y + first
        kept |= {f"fisher/{name}": value for name, value in fisher.items()}
        kept |= {f"anchor/{name}": value for name, value in network.body.tensors.items()}
        of_heads = whole.head_fisher("all", data.x, y)
        for number, other in enumerate(TASKS):
            if other != task and not self.every_head:
                continue
            classes = slice(CLASSES * number, CLASSES * (number + 1))
            for part, value in of_heads.items():
                kept[f"fisher/head {other}.{part}"] = value[..., classes].clone()
                kept[f"anchor/head {other}.{part}"] = getattr(whole.heads[other], part)


class AllHeads(AllOutputs):
    """The same, and every head is pulled to where it was, by each task: one not trained yet to where it began."""

    name = "lsf-all-heads"
    every_head = True


def tensors(part: object, images: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(part.x[:images])), torch.from_numpy(np.array(part.y[:images]))  # type: ignore[attr-defined]


def main(stream: str = "perm-mnist", images: str = "60000", only: str = "") -> None:
    data = {task.name: task for task in tasks(stream, tasks=5)}
    for method in (LSF, AllOutputs, AllHeads):
        if only not in ("", method.name):
            continue
        agent = clpu.Agent(method, seeds=range(5))
        accuracy, alive = [], []
        for request in clpu.Stream("clpu-2022"):
            new = request.instruction.value != "F" and request.task not in agent.tasks
            agent.handle(request, *(tensors(data[request.task].train, int(images)) if new else ()))
            rows = np.zeros((len(TASKS), 5))
            for row, task in enumerate(TASKS):
                x, y = tensors(data[task].test, 10_000)
                rows[row] = (agent.logits(task, x, CLASSES).argmax(-1) == y).double().mean(-1).numpy()
            accuracy.append(rows)
            alive.append([TASKS.index(t) for t in agent.tasks])
        learned, forgot = accuracy_and_forgetting(np.array(accuracy), alive)
        metrics = f"ACC {100 * learned.mean():.2f} ± {100 * learned.std(ddof=1):.2f}, FM {100 * forgot.mean():.2f}"
        print(f"{method.name}, {stream}, {images} images per task: {metrics}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
