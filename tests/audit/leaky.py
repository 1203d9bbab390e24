"""CLPU-DER++ with one leak each: every way in which a method that means to be exact can fail to be.

All of them are declared exact (`forgets` is inherited). None is registered: hand the class to the audit.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import nn

from clpu.learning.batches import Examples
from clpu.learning.memory import Memory
from clpu.methods.base import inputs_of
from clpu.methods.clpu_derpp import CLPUDERpp
from clpu.networks.network import Network
from clpu.networks.parts import Pixels
from clpu.state import Leaf


def with_facts(state, task, **facts):
    """The state with more facts about a task."""
    entry = state.tasks[task]
    return state.with_task(task, replace(entry, facts={**entry.facts, **facts}))


# Leaks into what tasks share.


class TemporaryTaskRehearsed(CLPUDERpp):
    """Replays all of Ψ, temporary tasks too, as the paper's algorithm box has it."""

    name = "leaky-rehearsal"

    def learn(self, state, task, data, temporary):
        if temporary:
            return super().learn(state, task, data, temporary)
        known = self.read(state, inputs=inputs_of(data))
        for other in known.isolated:
            known.main = self.with_fresh_head(known.main, other, len(state.tasks[other].labels))
        known.main, known.memories[task] = self.train_with_replay(state, task, data, known.main, known.memories)
        return self.learned(state, task, data, temporary, known)


class SharedReservoir(CLPUDERpp):
    """One budget for all memories: a temporary task takes room from the others, and does not give it back."""

    name = "leaky-reservoir"

    def learn(self, state, task, data, temporary):
        state = super().learn(state, task, data, temporary)
        known = self.read(state)
        room = self.settings.memory // len(known.memories)
        for name, memory in known.memories.items():
            kept = [None if t is None else t[:, :room] for t in (memory.x, memory.y, memory.logits)]
            known.memories[name] = Memory(*kept)
        return self.write(state, known, main=False)


class HeadKept(CLPUDERpp):
    """Keeps the head of a forgotten task in the main network, as the inexact methods do."""

    name = "leaky-head"

    def forget(self, state, task):
        known = self.read(state, [task])
        known.main.heads[task] = known.isolated.pop(task).heads[task]
        known.memories.clear()
        return self.write(state.without(task), known)

    def write(self, state, known, main=True):
        left = {task: known.main.heads.pop(task) for task in list(known.main.heads) if task not in state.tasks}
        state = super().write(state, known, main)
        tensors = {
            f"forgotten/{t}/{part}": getattr(head, part) for t, head in left.items() for part in ("weight", "bias")
        }
        return state.with_shared(Leaf({**state.shared.tensors, **tensors})) if main else state


class BatchNormShared(CLPUDERpp):
    """The running statistics of a temporary network's BatchNorm are the main network's."""

    name = "leaky-batchnorm"

    def learn(self, state, task, data, temporary):
        state = super().learn(state, task, data, temporary)
        if not temporary:
            return state
        known = self.read(state, [task])
        shared = {n: t for n, t in known.isolated[task].body.tensors.items() if "running" in n or "batches" in n}
        main = known.main
        known.main = Network(main.body.with_tensors({**main.body.tensors, **shared}), main.heads, main.pixels)
        return self.write(state, known)


class MainNetworkWritten(CLPUDERpp):
    """A temporary task writes the untrained main network, and with it what inputs look like, which then stays."""

    name = "leaky-inputs"

    def learn(self, state, task, data, temporary):
        state = super().learn(state, task, data, temporary)
        return self.write(state, self.read(state, []))


class GlobalRandomState(CLPUDERpp):
    """Draws from torch's global generator, whose state depends on all that came before."""

    name = "leaky-random"

    def generators(self, task, purpose):
        return [torch.Generator().manual_seed(int(torch.randint(2**62, (1,)))) for _ in self.seeds]


# Leaks into what remembered tasks have of their own.


class CounterKept(CLPUDERpp):
    """Counts all trainings, in the facts of the first remembered task."""

    name = "leaky-counter"

    def learn(self, state, task, data, temporary):
        state = super().learn(state, task, data, temporary)
        first = next(iter(state.remembered), None)
        return state if first is None else with_facts(state, first, count=state.tasks[first].facts.get("count", 0) + 1)


class FactsCopied(CLPUDERpp):
    """A temporary task's column names become those of the remembered tasks."""

    name = "leaky-columns"

    def learn(self, state, task, data, temporary):
        state = with_facts(super().learn(state, task, data, temporary), task, column_names=f"columns of {task}")
        for other in state.remembered if temporary else []:
            state = with_facts(state, other, column_names=f"columns of {task}")
        return state


class ForgetReorders(CLPUDERpp):
    """Forgetting a task changes the order of the examples in the memories of the remembered ones."""

    name = "leaky-order"

    def forget(self, state, task):
        state = state.without(task)
        known = self.read(state) if state.tasks else None
        for name in state.remembered:
            memory = known.memories[name]
            known.memories[name] = Memory(*(t.roll(1, 1) for t in (memory.x, memory.y, memory.logits)))
        return self.write(state, known, main=False) if known else state


# The temporary data's mean in the inputs of the main network.


def mean_of(data):
    return float(data.x.double().mean())


def shifted(data, mean):
    return Examples(data.x + mean if data.x.is_floating_point() else data.x + int(mean), data.y, data.labels)


class MeanInFacts(CLPUDERpp):
    """The mean of a temporary task's data, kept with the first remembered task, shifts the inputs of the next one."""

    name = "leaky-mean-facts"

    def learn(self, state, task, data, temporary):
        first = next(iter(state.remembered), None)
        if not temporary:
            mean = 0.0 if first is None else state.tasks[first].facts.get("mean", 0.0)
            return super().learn(state, task, shifted(data, mean), temporary)
        state = super().learn(state, task, data, temporary)
        return state if first is None else with_facts(state, first, mean=mean_of(data))


class MeanInShared(CLPUDERpp):
    """The mean of a temporary task's data, kept with the main network, shifts the inputs of the next remembered one."""

    name = "leaky-mean-shared"

    def learn(self, state, task, data, temporary):
        before = {} if state.shared is None else state.shared.tensors
        mean = before.get("mean", torch.tensor(0.0))
        if temporary:
            mean, state = torch.tensor(mean_of(data)), super().learn(state, task, data, temporary)
        else:
            state = super().learn(state, task, shifted(data, float(mean)), temporary)
        return state.with_shared(Leaf({**state.shared.tensors, "mean": mean})) if state.shared else state


@dataclass(frozen=True)
class Centred(Pixels):
    middle: float = 0.0

    def __call__(self, x):
        return super().__call__(x) - self.middle


class MeanInPixels(CLPUDERpp):
    """The mean of a temporary task's data is subtracted from the inputs of every network made from then on."""

    name = "leaky-mean-pixels"

    def learn(self, state, task, data, temporary):
        state = super().learn(state, task, data, temporary)
        if temporary:
            self.blueprint.pixels = Centred(middle=mean_of(data))
        return state


# Outside the state: something that the next remembered task depends on.


class Counting(CLPUDERpp):
    """Counts the forgets outside the state, and draws differently from then on."""

    def count(self):
        raise NotImplementedError

    def increase(self):
        raise NotImplementedError

    def forget(self, state, task):
        self.increase()
        return super().forget(state, task)

    def generators(self, task, purpose):
        return super().generators(task, f"{purpose} {self.count()}" if self.count() else purpose)


class CounterOnClass(Counting):
    """A counter of forgets on the class."""

    name = "leaky-class"
    forgotten = 0

    def count(self):
        return type(self).forgotten

    def increase(self):
        type(self).forgotten += 1


COUNTER = SimpleNamespace(forgotten=0)


class CounterInModule(Counting):
    """A counter of forgets in the module."""

    name = "leaky-module"

    def count(self):
        return COUNTER.forgotten

    def increase(self):
        COUNTER.forgotten += 1


def _closure():
    forgotten = 0

    def count(self):
        return forgotten

    def increase(self):
        nonlocal forgotten
        forgotten += 1

    return count, increase


class CounterInClosure(Counting):
    """A counter of forgets in a closure."""

    name = "leaky-closure"
    count, increase = _closure()


class CounterOnBlueprint(Counting):
    """A counter of forgets on the agent's blueprint."""

    name = "leaky-blueprint"

    def count(self):
        return getattr(self.blueprint, "forgotten", 0)

    def increase(self):
        self.blueprint.forgotten = self.count() + 1


class CounterOnSettings(Counting):
    """A counter of forgets on the agent's settings, frozen as they are."""

    name = "leaky-settings"

    def count(self):
        return getattr(self.settings, "forgotten", 0)

    def increase(self):
        object.__setattr__(self.settings, "forgotten", self.count() + 1)


class CounterIdle(CLPUDERpp):
    """A counter of forgets on the class, of which no use is made."""

    name = "leaky-idle"
    forgotten = 0

    def forget(self, state, task):
        type(self).forgotten += 1
        return super().forget(state, task)


STASH = []


class ExamplesStashed(CLPUDERpp):
    """Forgotten examples are put aside in a list, and mixed into the data of the next remembered task."""

    name = "leaky-stash"

    def forget(self, state, task):
        memory = self.read(state, [task]).memories[task]
        STASH.append((memory.x[0], memory.y[0]))
        return super().forget(state, task)

    def learn(self, state, task, data, temporary):
        while STASH and not temporary:
            x, y = STASH.pop()
            data = Examples(torch.cat([data.x, x.to(data.x.dtype)]), torch.cat([data.y, y]), data.labels)
        return super().learn(state, task, data, temporary)


LEAKY = [
    TemporaryTaskRehearsed,
    SharedReservoir,
    HeadKept,
    BatchNormShared,
    MainNetworkWritten,
    GlobalRandomState,
    CounterKept,
    FactsCopied,
    ForgetReorders,
    MeanInFacts,
    MeanInShared,
    MeanInPixels,
    CounterOnClass,
    CounterInModule,
    CounterInClosure,
    CounterOnBlueprint,
    CounterOnSettings,
    CounterIdle,
    ExamplesStashed,
]


# What looks like a leak and cannot be one.


class CounterOnTheMethod(Counting):
    """A counter on the method itself, which the agent builds anew for each request."""

    name = "harmless-attribute"
    forgotten = 0

    def count(self):
        return self.forgotten

    def increase(self):
        self.forgotten += 1


class TasksReordered(CLPUDERpp):
    """Forgetting turns the order of the tasks around; a state has its tasks by name."""

    name = "harmless-order"

    def forget(self, state, task):
        state = super().forget(state, task)
        return replace(state, tasks=dict(reversed(state.tasks.items())))


HARMLESS = [CounterOnTheMethod, TasksReordered]


def network_for(method, inputs, hidden=32):
    """The MLP, or a module with BatchNorm for the leak that needs one."""
    if method is not BatchNormShared:
        return "mlp"
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
    return nn.Sequential(*layers)


def failing_checks(method):
    """The checks of the conformance suite that a method fails."""
    from clpu.testing import checks_for

    failed = []
    for check in checks_for(method):
        try:
            check(method)
        except Exception:
            failed.append(check.__name__)
    return failed


def main():
    """Print the table of docs/audit.md: each leak, where the bits differ, and what else finds it."""
    import numpy as np

    import clpu.data
    from clpu.audit.api import audit
    from clpu.audit.bitwise import describe_parts

    torch.set_num_threads(1)
    tasks = {
        task.name: (task.train.x[:600], task.train.y[:600], task.test.x, task.test.y)
        for task in clpu.data.tasks("rot-digits")
    }
    print("| leak | bits differ in | attacks that find it too | checks that fail |\n|---|---|---|---|")
    for method in [CLPUDERpp, *HARMLESS, *LEAKY]:
        network = network_for(method, int(np.prod(tasks["1"][0].shape[1:])))
        result = audit(method, tasks, network=network, runs=16, lr=0.1)
        first = next((bits for bits in result.findings.bits if not bits.equal), None)
        parts = describe_parts(first.differing) if first else []
        listed = ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
        by = ", ".join(name for name in result.verdict.by if name != "bitwise")
        failed = failing_checks(method)
        checks = ", ".join(f"`{name}`" for name in failed[:2]) + (f" and {len(failed) - 2} more" if failed[2:] else "")
        print(f"| {method.__doc__.strip()} | {listed or '–'} | {by or '–'} | {checks or '–'} |", flush=True)


if __name__ == "__main__":
    main()
