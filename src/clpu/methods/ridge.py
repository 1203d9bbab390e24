"""Ridge regression on frozen features that are small integers: forgets any record exactly.

A record is a row φ of 8-bit integers and a label. All that a task's answers need are two sums over its records,

    G = Σ φφᵀ    and    M = Σ φ·1[y]ᵀ,    in 64-bit integers, with a constant 1 at the end of φ,

so that the last row of M counts the records of each label. Integer sums are exact: taking a record's part away leaves
what would be there without it, to the last bit, in any order, on every machine. The rows are the state; the sums and
the weights W = (G + λ·tr(G)/n)⁻¹ M of n records are derived from them, in memory only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import solve_triangular

from clpu.bases.base import OneAtATime
from clpu.bases.integers import MAX_VALUE, ROWS_AT_ONCE, exact_product, expanded, quantised
from clpu.errors import BadData, BadState
from clpu.io import canonical
from clpu.learning.batches import Examples
from clpu.methods.base import Method, inputs_of, known_classes, register
from clpu.networks.blueprint import Blueprint
from clpu.requests import Label, Scope
from clpu.settings import setting
from clpu.state import Leaves, People, Records, State, Task
from clpu.state.records import IDS, SCHEMA, ids_of
from clpu.state.schema import Schema
from clpu.threads import computing_with

#: How many rows a worker sums at a time.
ROWS_PER_WORKER = 256 * ROWS_AT_ONCE


@dataclass(frozen=True)
class RidgeSettings:  # not Training: there are no epochs and there is no learning rate
    penalty: float = setting(0.3, "penalty λ on the weights, relative to the mean squared length of a record", above=0)
    expand: int = setting(0, "number of ReLU features of a fixed ternary projection in place of the base's", at_least=0)
    scale: float = setting(
        32.0, "features of your own module are multiplied by this, rounded and clipped to ±127", above=0
    )


@dataclass(frozen=True)
class Sums:
    """G (d + 1, d + 1) and M (d + 1, labels) of some records."""

    gram: Tensor
    moments: Tensor
    labels: tuple[Label, ...]

    @classmethod
    def of(cls, parts: Iterable[Records], features: int, labels: Iterable[Label]) -> Sums:
        """The sums over records with these labels."""
        named = tuple(labels)
        gram = torch.zeros(features + 1, features + 1, dtype=torch.int64)
        return cls(gram, torch.zeros(features + 1, len(named), dtype=torch.int64), named)._with(parts, 1)

    def changed(self, parts: Sequence[Records], sign: int) -> Sums:
        """These sums with those of other records added, or taken away with -1; labels without records are gone."""
        named = tuple(sorted({*self.labels, *(label for part in parts for label in part.labels)}))
        moments = torch.zeros(len(self.gram), len(named), dtype=torch.int64)
        moments[:, [named.index(label) for label in self.labels]] = self.moments
        sums = Sums(self.gram.clone(), moments, named)._with(parts, sign)
        alive = [i for i, count in enumerate(sums.moments[-1].tolist()) if count]
        return Sums(sums.gram, sums.moments[:, alive], tuple(named[i] for i in alive))

    def _with(self, parts: Iterable[Records], sign: int) -> Sums:
        """These sums, changed in place, by up to 1,024 rows at a time."""
        waiting: list[tuple[Tensor, Tensor]] = []

        def add() -> None:
            phi = F.pad(torch.cat([rows for rows, _ in waiting]), (0, 1), value=1)
            y = torch.cat([classes for _, classes in waiting])
            largest = ROWS_AT_ONCE * MAX_VALUE**2
            self.gram.add_(exact_product(phi.mT, phi, largest), alpha=sign)
            ones = F.one_hot(y, len(self.labels)).to(torch.int8)
            self.moments.add_(exact_product(phi.mT, ones, largest), alpha=sign)
            waiting.clear()

        for part in parts:  # small leaves are summed together
            rows, classes = part.rows, torch.from_numpy(np.searchsorted(self.labels, part.labels)[part.y])
            for start in range(0, len(rows), ROWS_AT_ONCE):
                some = torch.from_numpy(np.array(rows[start : start + ROWS_AT_ONCE]))
                if sum(len(phi) for phi, _ in waiting) + len(some) > ROWS_AT_ONCE:
                    add()
                waiting.append((some, classes[start : start + ROWS_AT_ONCE]))
        if waiting:
            add()
        return self

    def weights(self, penalty: float) -> Tensor:
        """W = (G + λ·tr(G)/n)⁻¹ M in float64; the constant, whose sum of squares is n, is not penalised."""
        gram, moments = self.gram.double().mT, self.moments.double()  # symmetric; LAPACK goes by columns
        size = penalty * (gram.diagonal()[:-1].sum() / gram[-1, -1]).clamp_min(1.0)
        gram.diagonal()[:-1].add_(size)
        failed = torch.empty((), dtype=torch.int32)
        torch.linalg.cholesky_ex(gram, check_errors=True, out=(gram, failed))  # in place: a copy would take longer
        return solve_triangular(gram.mT, solve_triangular(gram, moments, upper=False), upper=True)


def in_pieces(parts: Iterable[Records], rows: int) -> list[list[Records]]:
    """Records without their ids, in pieces of at most so many rows, for workers to sum."""
    pieces: list[list[Records]] = [[]]
    for part in parts:
        start = 0
        while start < len(part):
            room = rows - sum(map(len, pieces[-1]))
            pieces[-1].append(Records(part.rows[start : start + room], part.y[start : start + room], part.labels))
            start += room
            if sum(map(len, pieces[-1])) == rows:
                pieces.append([])
    return [piece for piece in pieces if piece]


def _sums(setup: tuple[int, tuple[Label, ...]], parts: list[Records]) -> tuple[NDArray[Any], NDArray[Any]]:
    """In a worker: the sums over some records."""
    sums = Sums.of(parts, *setup)
    return sums.gram.numpy(), sums.moments.numpy()


def _module_features(setup: tuple[Any, dict[str, Any], tuple[int, ...]], x: NDArray[Any]) -> NDArray[Any]:
    """In a worker: what a user's module makes of some inputs."""
    module, options, seeds = setup
    ridge = Ridge(RidgeSettings(), Blueprint(module, options, torch.device("cpu")), seeds)
    with torch.no_grad():
        return ridge.module_features(torch.from_numpy(np.array(x))).numpy()


@register
class Ridge(Method):
    """Ridge regression on the integer features of a frozen base; every record can be forgotten exactly."""

    name, label = "ridge", "Ridge"
    forgets = "records"
    default_network = "base:random"
    costs = (0.1, 0, 0.1)
    same_for_all_tasks = ("expand", "scale")  # one regression is over the rows of all tasks
    Settings = RidgeSettings

    @classmethod
    def takes(cls, network: object) -> bool:
        """Features that are never trained and the same for all seeds: those of a base, or of a user's module."""
        return not isinstance(network, str) or network.startswith("base:")

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        empty = replace(self.entry(data, temporary), people=Leaves({}))
        return self.add(state.with_task(task, empty), task, data)

    def add(self, state: State, task: str, data: Examples) -> State:
        """The state with more records of a task."""
        before, new = state.tasks[task], self.records(data)
        self.refuse_repeated(before, new.values())
        width = next(iter(new.values())).rows.shape[1]
        widths = {
            leaf.specs["rows"].shape[1] for other in state.tasks.values() for leaf in [*other.people.values()][:1]
        }
        if widths - {width}:
            raise BadData(f"these records have {width} features, those before had {widths.pop()}")
        leaves = dict(before.people)
        for people, records in new.items():
            merged = Records.of_leaf(leaves[people]).joined(records) if people in leaves else records
            leaves[people] = merged.to_leaf()
        after = before.with_records(leaves)
        whole = state.with_task(task, after)
        leaves_of_all = [leaf for one in whole.tasks.values() for leaf in one.people.values()]
        if sum(leaf.specs["y"].shape[0] or 0 for leaf in leaves_of_all) * MAX_VALUE**2 >= 2**63:
            raise BadData("the sums of this many records would not fit into 64 bits")
        self.carry(before, after, new.values(), 1)
        return whole

    def take_along(self, before: State, after: State, scope: Scope) -> None:
        """The sums, without the part of the records that are gone."""
        known = [name for name in after.tasks if before.tasks[name].records.known("sums") is not None]
        gone: dict[str, list[Records]] = {}
        for held in before.held(scope) if known else []:
            gone.setdefault(held.task, []).append(held.records.chosen(held.chosen))
        for name in gone.keys() & {*known}:
            self.carry(before.tasks[name], after.tasks[name], gone[name], -1)

    def logits(self, state: State, task: str, x: Tensor, classes: int | None = None) -> Tensor:
        known_classes(state, task, classes)
        if task not in state.tasks:  # without records all weights are zero
            return torch.zeros(len(self.seeds), len(x), classes or 1, device=self.device)
        active = state.tasks[task]
        weights = active.records.derived("weights", lambda: self.sums(active).weights(self.settings.penalty))
        return self.answers(x, weights)

    def scores(self, state: State, inputs: Mapping[str, Tensor]) -> Tensor:
        """One regression over the records of all tasks, each task and label being a separate class.

        "None of these" is as likely as a class with twice the average score, at most one half.
        """
        weights = state.derived("weights", lambda: self.joint_sums(state).weights(self.settings.penalty))
        logits = self.answers(next(iter(inputs.values())), weights)
        none = F.softplus(torch.tensor(50 * min(0.5, 2 / weights.shape[1]))).log().item()
        return F.pad(logits, (0, 1), value=none)

    def answers(self, x: Tensor, weights: Tensor) -> Tensor:
        """Logits from scores φᵀW, which estimate probabilities but may be below 0: log softplus(50·score)."""
        rows = [F.pad(some.double(), (0, 1), value=1.0) @ weights for some in self.rows(x).cpu().split(ROWS_AT_ONCE)]
        logits = F.softplus(50 * torch.cat(rows)).clamp_min(1e-30).log().float()
        return logits.to(self.device).expand(len(self.seeds), -1, -1)

    # Rows and sums

    def rows(self, x: Tensor) -> Tensor:
        """Inputs (n, *input) as rows of int8; a row depends on its own record only."""
        base = self.blueprint.base
        if base is not None:
            rows = quantised(x, base.scale, base.root)
        else:
            rows = quantised(self.module_features(x), self.settings.scale)
        return expanded(rows, self.settings.expand) if self.settings.expand else rows

    def module_features(self, x: Tensor) -> Tensor:
        """What a user's module makes of inputs, one at a time: a batch may change the last bits of its rows."""
        pieces = [piece.cpu().numpy() for piece in x.split(OneAtATime.at_once)]
        if self.workers.share(pieces):
            setup = self.blueprint.modules(self.seeds)[0], asdict(self.blueprint.settings), self.seeds
            made = dict(self.workers.map(_module_features, setup, pieces, alike=True))
            return torch.from_numpy(np.concatenate([made[number] for number in range(len(pieces))]))
        with computing_with(1):
            network = self.fresh_network(inputs_of(x), None)
            return torch.cat([network.features(one)[0] for one in x.split(1)])

    def records(self, data: Examples) -> dict[People, Records]:
        """The records of some data, by the people that they are about."""
        rows, y = self.rows(data.x).cpu().numpy(), data.y.cpu().numpy().astype(np.int32)
        ids = data.records or ()
        together: dict[People, list[int]] = {}
        for number, people in enumerate(data.people or [()] * len(data)):
            together.setdefault(people, []).append(number)
        found = {}
        for people, numbers in together.items():
            some = tuple(ids[i] for i in numbers) if ids else ()
            found[people] = Records(rows[numbers], y[numbers], data.labels, some)
        return found

    def refuse_repeated(self, task: Task, new: Iterable[Records]) -> None:
        """Refuse records whose id the task has already, so that a request sent twice adds nothing twice."""
        ids = {one for records in new for one in records.ids}
        repeated = [one for leaf in task.people.values() for one in ids_of(leaf).keys() & ids] if ids else []
        for one in sorted(repeated)[:1]:
            raise BadData(f"a record with the id {one!r:.60} already exists; nothing was added")

    def sums(self, task: Task) -> Sums:
        """The sums over all records of a task: a cache, made once and then carried along."""
        return task.records.derived("sums", lambda: self.full_sums(task))

    def full_sums(self, task: Task) -> Sums:
        """The sums, from all rows, in whatever order workers make them."""
        parts = [Records.of_leaf(leaf) for leaf in task.people.values()]
        features, pieces = parts[0].rows.shape[1], in_pieces(parts, ROWS_PER_WORKER)
        if not self.workers.share(pieces):
            return Sums.of(parts, features, task.labels)
        total = Sums.of([], features, task.labels)
        for _, (gram, moments) in self.workers.map(_sums, (features, task.labels), pieces):
            total.gram.add_(torch.from_numpy(np.array(gram)))
            total.moments.add_(torch.from_numpy(np.array(moments)))
        return total

    def joint_sums(self, state: State) -> Sums:
        """The sums over the records of all tasks, with a label for each task and label."""
        tasks = [(name, self.sums(task)) for name, task in state.tasks.items()]
        gram = torch.stack([sums.gram for _, sums in tasks]).sum(0)
        moments = torch.cat([sums.moments for _, sums in tasks], 1)
        return Sums(gram, moments, tuple(canonical([name, label]) for name, sums in tasks for label in sums.labels))

    def carry(self, before: Task, after: Task, records: Iterable[Records], sign: int) -> None:
        """Derive a task's sums from those that it had and the part of the records that came or went."""
        known: Sums | None = before.records.known("sums")
        if known is not None:
            changed = known.changed(list(records), sign)
            after.records.derived("sums", lambda: changed)

    # Schemas of saved states

    def people_schema(self, state: State, task: Task) -> Schema:
        return {**SCHEMA, **IDS}

    def check(self, state: State) -> None:
        widths = set()
        for name, task in state.tasks.items():
            seen: list[str] = []
            for leaf in task.people.values():
                records = Records.of_leaf(leaf)
                records.check()
                widths.add(records.rows.shape[1])
                seen += [one for one in records.ids if one]
            if list(task.labels) != task.records.labels() or not task.people or len(set(seen)) < len(seen):
                raise BadState(f"the records of task {name!r} do not fit together")
        if len(widths) > 1:
            raise BadState("the tasks have rows of different lengths")
