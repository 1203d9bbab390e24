"""CLPU-DER++ with one leak each: every way in which a method that means to be exact can fail to be.

All of them promise exactness (`exact` is inherited). None is registered: hand the class to the audit.
"""

import torch
from torch import nn

from clpu.memory import Memory
from clpu.methods.clpu_derpp import CLPUDERpp
from clpu.networks.network import Network


class TemporaryTaskRehearsed(CLPUDERpp):
    """Rehearses all of Ψ, temporary tasks too, as the paper's algorithm box has it; forgetting drops the head."""

    name = "leaky-rehearsal"

    def learn(self, task, data, temporary):
        if temporary:
            return super().learn(task, data, temporary)
        start = self.main
        for other in self.ledger:
            if other not in start.heads:
                start = self.with_fresh_head(start, other, len(self.ledger[other].labels))
        self.main, self.memories[task] = self.learned(task, data, start, self.memories)
        return None

    def forget(self, task):
        super().forget(task)
        if self.state.main is not None:
            self.main = self.main.without_head(task)


class SharedReservoir(CLPUDERpp):
    """One budget for all memories: a temporary task takes room from the others, and does not give it back."""

    name = "leaky-reservoir"

    def learn(self, task, data, temporary):
        super().learn(task, data, temporary)
        room = self.settings.memory // len(self.memories)
        for name, memory in self.memories.items():
            kept = [None if t is None else t[:, :room] for t in (memory.x, memory.y, memory.logits)]
            self.memories[name] = Memory(*kept)


class HeadKept(CLPUDERpp):
    """A temporary task's head is put beside the others in the main network, and stays there."""

    name = "leaky-head"

    def learn(self, task, data, temporary):
        super().learn(task, data, temporary)
        if temporary:
            self.main = self.main.with_head(task, self.isolated[task].heads[task])


class CounterKept(CLPUDERpp):
    """Counts all learnings, beside the first remembered task."""

    name = "leaky-counter"

    def learn(self, task, data, temporary):
        super().learn(task, data, temporary)
        first = next(iter(self.ledger.remembered), None if temporary else task)
        if first is not None:
            before = self.extras.get(first, {}).get("learnings", torch.zeros(len(self.seeds), 1))
            self.extras[first] = {"learnings": before + 1}


class CounterHidden(CLPUDERpp):
    """Counts all learnings in an attribute, which no snapshot and no digest sees."""

    name = "leaky-attribute"

    def learn(self, task, data, temporary):
        super().learn(task, data, temporary)
        self.learnings = getattr(self, "learnings", 0) + 1


class MemoryUnderAnotherName(CLPUDERpp):
    """Keeps a copy of every memory under a name that is no task, which no snapshot and no digest sees."""

    name = "leaky-archive"

    def learn(self, task, data, temporary):
        super().learn(task, data, temporary)
        self.memories[f"archive of {task}"] = self.memories[task]

    def remembered(self):
        return {t: self.memories[t] for t in self.ledger.remembered}


class GlobalRandomState(CLPUDERpp):
    """Draws from torch's global generator, whose state depends on all that came before."""

    name = "leaky-random"

    def sources(self, task, purpose):
        return [torch.Generator().manual_seed(int(torch.randint(2**62, (1,)))) for _ in self.seeds]


class BatchNormShared(CLPUDERpp):
    """The running statistics of a temporary network's BatchNorm are the main network's."""

    name = "leaky-batchnorm"

    def learn(self, task, data, temporary):
        super().learn(task, data, temporary)
        if temporary:
            shared = {n: t for n, t in self.isolated[task].body.tensors().items() if "running" in n or "batches" in n}
            main = self.main
            self.main = Network(main.body.with_tensors({**main.body.tensors(), **shared}), main.heads, main.pixels)


LEAKY = [
    TemporaryTaskRehearsed,
    SharedReservoir,
    HeadKept,
    CounterKept,
    CounterHidden,
    MemoryUnderAnotherName,
    GlobalRandomState,
    BatchNormShared,
]


def network_for(method, inputs, hidden=32):
    """The MLP, or a module with BatchNorm for the leak that needs one."""
    if method is not BatchNormShared:
        return "mlp"
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
    return nn.Sequential(*layers)


def main():
    """Print the table of docs/audit.md: each leak, where the bits differ, and what attacks find of it."""
    import numpy as np

    import clpu.data
    from clpu.audit.api import audit
    from clpu.audit.bitwise import plainly

    torch.set_num_threads(1)
    tasks = {
        task.name: (task.train.x[:600], task.train.y[:600], task.test.x, task.test.y)
        for task in clpu.data.tasks("rot-digits", tasks=4)
    }
    print("| leak | bits differ in | attacks that find it too |\n|---|---|---|")
    for method in [CLPUDERpp, *LEAKY]:
        network = network_for(method, int(np.prod(tasks["1"][0].shape[1:])))
        result = audit(method, tasks, "1R 2T 3R 2F 4R", network=network, runs=16, lr=0.1)
        differing = result.findings.bits[0].differing
        parts = plainly(differing) if differing else []
        by = [name for name in result.verdict.by if name != "bitwise"]
        print(f"| {method.__doc__.strip()} | {', '.join(parts) or '–'} | {', '.join(by) or '–'} |", flush=True)


if __name__ == "__main__":
    main()
