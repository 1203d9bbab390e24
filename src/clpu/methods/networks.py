"""The common part of methods that answer with networks: main and isolated ones, memories, further tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from clpu.errors import BadState
from clpu.io import canonical
from clpu.learning.batches import Batch, Batches, Examples
from clpu.learning.losses import Loss, cross_entropy
from clpu.learning.memory import Memory, Rehearsal, Reservoir
from clpu.methods.base import Method, inputs_of, known_classes
from clpu.networks.blueprint import Inputs
from clpu.networks.body import Body
from clpu.networks.learner import QuadraticPenalty, Trainee
from clpu.networks.linear import Linear
from clpu.networks.network import ROWS_AT_ONCE, Network
from clpu.state import Leaf, Spec, State, Task
from clpu.state.schema import Schema


@dataclass
class Knowledge:
    """The leaves of a state as networks and memories: a working copy for one request.

    `main` is the main network with the heads of its tasks; `isolated` are networks of single tasks.
    """

    inputs: Inputs
    main: Network
    isolated: dict[str, Network] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    extras: dict[str, dict[str, Tensor]] = field(default_factory=dict)


class NetworkMethod(Method):
    """A method that keeps networks, memories and further tensors.

    `read` makes networks and memories of a state's leaves, `write` makes leaves of them again. The main network's body
    is the shared leaf; its heads belong to their tasks' leaves. Heads of forgotten tasks, which inexact methods keep as
    the paper's do, are in the shared leaf, under names that say so.
    """

    #: What is kept of each task besides networks, by which saved states are checked: "memory", "logits".
    stores: ClassVar[tuple[str, ...]] = ()

    def extra_shapes(self, inputs: Inputs, classes: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a task's extras, float32 and without the replica axis."""
        return {}

    def isolated_body(self, tensors: dict[str, Tensor], inputs: Inputs) -> Body:
        """The body of an isolated network, from the tensors in its task's leaf."""
        return self.blueprint.body_of(tensors, inputs, self.seeds)

    def isolated_shapes(self, inputs: Inputs) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The type and shape of each of these tensors, without the replica axis."""
        return self.blueprint.shapes(inputs, self.seeds)

    # Between leaves and networks

    def read(self, state: State, tasks: Collection[str] | None = None, inputs: Inputs | None = None) -> Knowledge:
        """Read the networks and memories of some tasks (all by default); `inputs` are those of a new task."""
        inputs = inputs_of_state(state) or inputs
        assert inputs is not None, "nothing is learned, and no inputs were given"
        names = list(state.tasks) if tasks is None else [t for t in state.tasks if t in tasks]
        known = Knowledge(inputs, self._main(state, inputs))
        for task in names:
            own = state.tasks[task].own
            parts = {} if own is None else _grouped({n: t.to(self.device) for n, t in own.tensors.items()})
            if "isolated" in parts:
                known.isolated[task] = self._isolated(task, parts.get("network", {}), parts["isolated"], inputs)
            elif "head" in parts:
                known.main.heads[task] = Linear(parts["head"]["weight"], parts["head"]["bias"])
            if "memory" in parts:
                known.memories[task] = Memory(**parts["memory"])
            if "extra" in parts:
                known.extras[task] = parts["extra"]
        return known

    def _main(self, state: State, inputs: Inputs) -> Network:
        """The main network with the heads of forgotten tasks; as drawn for the seeds if nothing was learned into it."""
        if state.shared is None:
            return self.fresh_network(inputs, None)
        parts = _grouped({n: t.to(self.device) for n, t in state.shared.tensors.items()})
        body = self.blueprint.body_of(parts.get("body", {}), inputs, self.seeds)
        forgotten = _by_task(parts.get("forgotten", {}))
        heads = {task: Linear(head["weight"], head["bias"]) for task, head in forgotten.items()}
        return Network(body, heads, self.blueprint.pixels)

    def _isolated(self, task: str, body: dict[str, Tensor], head: dict[str, Tensor], inputs: Inputs) -> Network:
        made = self.isolated_body(body, inputs)
        return Network(made, {task: Linear(head["weight"], head["bias"])}, self.blueprint.pixels)

    def write(self, state: State, known: Knowledge, main: bool = True) -> State:
        """The state with these networks and memories in its leaves; `main=False` leaves the shared leaf as it is.

        Whatever belongs to a task that the state does not have is refused: it would be out of reach of forgetting.
        """
        strangers = {*known.isolated, *known.memories, *known.extras} - state.tasks.keys()
        if strangers:
            raise RuntimeError(f"networks or memories of tasks that are not active: {sorted(strangers)}")
        touched = {*known.main.heads, *known.isolated, *known.memories, *known.extras} & state.tasks.keys()
        for task in touched:
            before = state.tasks[task]
            own = _same_or_new(before.own, self._own(known, task))
            if own is not before.own:
                state = state.with_task(task, Task(before.status, before.facts, own, before.people))
        if not main:
            return state
        left = {task: head for task, head in known.main.heads.items() if task not in state.tasks}
        if left and self.forgets_exactly():
            raise RuntimeError(f"the main network has heads of tasks that are not active: {sorted(left)}")
        tensors = {f"body/{name}": t for name, t in known.main.body.tensors.items()}
        for task, head in left.items():
            tensors |= {f"forgotten/{_quoted(task)}/{part}": getattr(head, part) for part in ("weight", "bias")}
        shape = [int(known.inputs.integer), *known.inputs.shape]
        tensors["inputs"] = torch.tensor(shape, dtype=torch.int64, device="cpu")
        return state.with_shared(_same_or_new(state.shared, tensors))

    def without_training(self, state: State, task: str) -> State:
        """The state without a task, as inexact methods forget: the main network stays as it is, the head included."""
        known = self.read(state, [task])
        known.memories.pop(task, None)
        known.extras.pop(task, None)
        return self.write(state.without(task), known)

    def _own(self, known: Knowledge, task: str) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        isolated = known.isolated.get(task)
        head = (isolated or known.main).heads.get(task)
        if isolated is not None:
            named |= {f"network/{name}": t for name, t in isolated.body.tensors.items()}
        if head is not None:
            # A frozen body has no tensors to store, so the head's name says whose it is.
            whose = "head" if isolated is None else "isolated"
            named |= {f"{whose}/weight": head.weight, f"{whose}/bias": head.bias}
        if task in known.memories:
            named |= {f"memory/{name}": t for name, t in known.memories[task].tensors().items()}
        return named | {f"extra/{name}": t for name, t in known.extras.get(task, {}).items()}

    def network(self, state: State, task: str, inputs: Inputs | None = None) -> Network:
        known = self.read(state, [task], inputs)
        return known.isolated.get(task) or known.main

    def logits(self, state: State, task: str, x: Tensor, classes: int | None = None) -> Tensor:
        wanted = known_classes(state, task, classes)
        network = self.network(state, task, inputs_of(x))
        head = network.heads.get(task)
        if head is None or head.outputs != wanted:
            head = self.blueprint.head(network.body.features, wanted, self.seeds, task)
        return network.evaluate(head, x)

    def memory_accuracy(self, state: State, task: str) -> float | None:
        known = self.read(state, [task])
        network, memory = known.isolated.get(task) or known.main, known.memories.get(task)
        if memory is None or task not in network.heads:
            return None
        right = [
            network.logits((task, x))[0].argmax(-1) == y
            for x, y in zip(memory.x.split(ROWS_AT_ONCE, 1), memory.y.split(ROWS_AT_ONCE, 1))
        ]
        return float(torch.cat(right, 1).double().mean())

    # Schemas of saved states

    def shared_schema(self, state: State) -> Schema:
        inputs = inputs_of_state(state)
        if inputs is None:
            raise BadState("the shared leaf does not describe the inputs")
        replicas, features = len(self.seeds), self.feature_count(inputs)
        heads = {
            "forgotten/*/weight?": Spec("F32", (replicas, features, None)),
            "forgotten/*/bias?": Spec("F32", (replicas, 1, None)),
        }
        rank = Spec("I64", (len(inputs.shape) + 1,))
        body = _with_prefix("body", self.blueprint.shapes(inputs, self.seeds), replicas)
        return {**body, "inputs": rank, **({} if self.forgets_exactly() else heads)}

    def task_schema(self, state: State, task: Task) -> Schema:
        inputs, classes, replicas = inputs_of(task), len(task.labels), len(self.seeds)
        features = self.feature_count(inputs)
        isolated = task.own is not None and "isolated/weight" in task.own.specs
        whose = "isolated" if isolated else "head"
        schema: dict[str, Spec | tuple[Spec, ...]] = {
            f"{whose}/weight": Spec("F32", (replicas, features, classes)),
            f"{whose}/bias": Spec("F32", (replicas, 1, classes)),
        }
        if isolated:
            schema |= _with_prefix("network", self.isolated_shapes(inputs), replicas)
        if "memory" in self.stores:
            kinds = ("I64",) if inputs.integer else ("F32", "U8")
            schema["memory/x"] = tuple(Spec(kind, (replicas, None, *inputs.shape)) for kind in kinds)
            schema["memory/y"] = Spec("I64", (replicas, None))
        if "logits" in self.stores:
            schema["memory/logits"] = Spec("F32", (replicas, None, classes))
        extras = self.extra_shapes(inputs, classes).items()
        return schema | {f"extra/{name}": Spec("F32", (replicas, *shape)) for name, shape in extras}

    def check(self, state: State) -> None:
        shapes = {canonical(task.facts["inputs"]) for task in state.tasks.values()}
        shared = state.shared.tensors["inputs"].tolist() if state.shared is not None else None
        inputs = inputs_of_state(state)
        if len(shapes) > 1 or (shared is not None and inputs and shared != [int(inputs.integer), *inputs.shape]):
            raise BadState("the tasks have inputs of different shapes")
        for name, task in state.tasks.items():
            on_main = task.own is not None and "head/weight" in task.own.specs
            if state.shared is None and on_main and inputs and self.blueprint.shapes(inputs, self.seeds):
                raise BadState(f"task {name!r} has a head of the main network, which is missing")
            y = None if task.own is None else task.own.tensors.get("memory/y")
            if y is None:
                continue
            if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < len(task.labels):
                raise BadState(f"the classes in the memory of task {name!r} must be 0 to {len(task.labels) - 1}")
            assert task.own is not None
            lengths = {tuple(t.shape[:2]) for n, t in task.own.tensors.items() if n.startswith("memory/")}
            if len(lengths) > 1:
                raise BadState(f"the memory of task {name!r} has inputs, labels and logits of different numbers")

    # Training

    def reservoir(self, task: str, batches: Batches) -> Reservoir:
        """An empty memory for a task that is about to be learned."""
        return Reservoir(batches, self.settings.memory, self.generators(task, "reservoir"))

    def rehearsal(self, state: State, memories: Mapping[str, Memory], task: str, purpose: str) -> Rehearsal:
        """Draws from memories, `settings.replay_batch_size` examples per step."""
        classes = {t: len(state.tasks[t].labels) for t in memories}
        augment = self.augmentation(task, purpose)
        draws = self.generators(task, purpose)
        return Rehearsal(memories, classes, self.settings.replay_batch_size, draws, augment)

    def train_plain(
        self, task: str, data: Examples, start: Network, penalty: QuadraticPenalty | None = None
    ) -> tuple[Network, Memory | None]:
        """The network after training on the task's own data, and a memory of it if the settings have one."""
        start = self.with_fresh_head(start, task, data.classes)
        batches = self.batches(task, data)
        reservoir = self.reservoir(task, batches) if hasattr(self.settings, "memory") else None

        def loss(net: Trainee, batch: Batch) -> Loss:
            outputs = net.logits((task, batch.x))[0]
            if reservoir is not None:
                reservoir.see(batch, outputs)
            return cross_entropy(outputs, batch.y)

        network = self.fit(task, start, batches, loss, penalty=penalty)
        return network, None if reservoir is None else reservoir.memory()

    def learned(
        self, state: State, task: str, data: Examples, temporary: bool, known: Knowledge, **options: Any
    ) -> State:
        """The state with a task that was just learned, its networks and memory in its leaf."""
        steps = len(self.batches(task, data))
        return self.write(state.with_task(task, self.entry(data, temporary, steps=steps)), known, **options)


def inputs_of_state(state: State) -> Inputs | None:
    """Describe inputs by the active tasks or, if inexact methods forgot all, by the shared leaf."""
    for task in state.tasks.values():
        return inputs_of(task)
    if state.shared is None or "inputs" not in state.shared.specs:
        return None
    integer, *shape = state.shared.tensors["inputs"].tolist()
    return Inputs(tuple(shape), integer == 1)


def _with_prefix(prefix: str, shapes: Mapping[str, tuple[str, tuple[int, ...]]], replicas: int) -> dict[str, Spec]:
    return {f"{prefix}/{name}": Spec(kind, (replicas, *shape)) for name, (kind, shape) in shapes.items()}


def _grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def _by_task(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    return {unquote(name): parts for name, parts in _grouped(tensors).items()}


def _quoted(task: str) -> str:
    return quote(task, safe="")


def _same_or_new(before: Leaf | None, tensors: Mapping[str, Tensor]) -> Leaf | None:
    """The leaf that was there if it holds just these bits, so that what did not change keeps its file on disk."""
    if not tensors:
        return None
    made = Leaf(tensors)
    if before is None or before.specs != made.specs:
        return made
    unchanged = all(t is before.tensors[name] or _same_bits(t, before.tensors[name]) for name, t in tensors.items())
    return before if unchanged else made


def _same_bits(one: Tensor, other: Tensor) -> bool:
    one, other = one.detach().cpu().contiguous(), other.detach().cpu().contiguous()
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


__all__ = ["Knowledge", "NetworkMethod", "inputs_of", "inputs_of_state"]
