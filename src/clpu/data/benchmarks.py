"""The benchmarks: data sets turned into tasks by permuting, rotating or splitting them, or with people in them.

The randomness of a benchmark depends on (benchmark, seed, task) alone: not on the agents' seeds, and not on the number
of tasks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clpu.data.catalog import BENCHMARKS, dataset_of, is_about_people
from clpu.data.errors import UnknownBenchmark
from clpu.data.loading import Dataset, Split, load
from clpu.errors import BadSetting

_Scalar = TypeVar("_Scalar", bound=np.generic)

_ROTATIONS = 20
_STEP = 9.0  # degrees between the rotations of neighbouring tasks
#: The digits have no people; these many are made up, and who wrote an image is drawn.
_WRITERS = 20
_REGULAR = 5


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a benchmark: its name, its data, its labels, and how it was derived."""

    name: str
    train: Split
    test: Split
    classes: tuple[int, ...]
    detail: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def tasks(benchmark: str, *, tasks: int | None = None, seed: int = 0, root: str | Path | None = None) -> list[Task]:
    """Return the tasks of a benchmark, named "1", "2", …; labels are those of the data set. By default five tasks.

    `perm-…`: the pixels of task k are permuted, uniformly. `rot-…`: task k is rotated by an angle drawn from
    [(k-1)·9°, k·9°), nearest neighbour, at most 20 tasks. `split-…`: the classes, in order, are divided
    evenly among the tasks; nothing is random. `people-…`: the same, by default one task, and each record is about a
    person (`.train.people`).

    >>> [task.classes for task in tasks("split-digits")]
    [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    """
    if benchmark not in BENCHMARKS:
        raise UnknownBenchmark(f"there is no benchmark {benchmark!r}; known: {', '.join(BENCHMARKS)}")
    kind = "people" if is_about_people(benchmark) else benchmark.partition("-")[0]
    count = (1 if kind == "people" else 5) if tasks is None else tasks
    if count < 1:
        raise BadSetting(f"a benchmark has at least one task, got {count}")
    return _KINDS[kind](load(dataset_of(benchmark), root=root), benchmark, count, seed)


def leaving(benchmark: str, count: int) -> list[str]:
    """Return the ids of people who leave in a benchmark of people, drawn by a hash of their numbers.

    Of those who sent mails, from those with at least five to learn from.

    >>> leaving("people-digits", 3)
    ['p2', 'p16', 'p12']
    """
    if benchmark == "mail":
        senders = load(dataset_of(benchmark)).train.people
        assert senders is not None
        numbers, counts = np.unique(senders, return_counts=True)
        people = [number for number, mails in zip(numbers.tolist(), counts.tolist()) if number and mails >= _REGULAR]
    else:
        people = list(range(1, (_WRITERS if benchmark == "people-digits" else 30) + 1))

    def drawn(number: int) -> bytes:
        return hashlib.sha256(f"clpu leaves {benchmark} {number}".encode()).digest()

    return [person_id(number) for number in sorted(people, key=drawn)[:count]]


def person_id(number: int) -> str:
    """The id of a person in requests.

    >>> person_id(17)
    'p17'
    """
    return f"p{number}"


def _permuted(dataset: Dataset, benchmark: str, count: int, seed: int) -> list[Task]:
    pixels = int(np.prod(dataset.train.x.shape[1:]))
    made = []
    for number in range(1, count + 1):
        # The order of independent 64-bit numbers is a uniform permutation. The bits of PCG64 never change between
        # versions of NumPy; `Generator.permutation` gives no such guarantee.
        order = np.argsort(_bits(benchmark, seed, number).random_raw(pixels), kind="stable")
        made.append(_gathered(dataset, number, order, None, "pixels permuted"))
    return made


def _rotated(dataset: Dataset, benchmark: str, count: int, seed: int) -> list[Task]:
    if count > _ROTATIONS:
        raise BadSetting(f"{benchmark} has at most {_ROTATIONS} tasks (angles below 180°), got {count}")
    height, width = dataset.train.x.shape[1:]
    made = []
    for number in range(1, count + 1):
        angle = rotation_angle(benchmark, seed, number)
        order, outside = _rotation(height, width, angle)
        made.append(_gathered(dataset, number, order, outside, f"rotated by {angle:.2f}°"))
    return made


def rotation_angle(benchmark: str, seed: int, number: int) -> float:
    """Return the angle in degrees of a rotated benchmark's task; `number` counts from 1.

    >>> 9 <= rotation_angle("rot-mnist", 0, 2) < 18
    True
    """
    unit = int(_bits(benchmark, seed, number).random_raw() >> 11) * 2.0**-53
    return (number - 1 + unit) * _STEP


def _rotation(height: int, width: int, angle: float) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return, for each pixel of the rotated image, its source pixel, and whether it has none.

    Counter-clockwise around the centre, nearest neighbour, in fixed-point arithmetic with 16 fractional bits:
    bit-identical to Pillow's `Image.rotate`, without requiring Pillow.
    """
    cos, sin = round(math.cos(-math.radians(angle)), 15), round(math.sin(-math.radians(angle)), 15)
    left = -cos * (width / 2) - sin * (height / 2) + width / 2
    top = sin * (width / 2) - cos * (height / 2) + height / 2
    down, right = np.indices((height, width))
    x = (_fixed(left + (cos + sin) / 2) + _fixed(cos) * right + _fixed(sin) * down) >> 16
    y = (_fixed(top + (cos - sin) / 2) + _fixed(-sin) * right + _fixed(cos) * down) >> 16
    outside = ((x < 0) | (x >= width) | (y < 0) | (y >= height)).reshape(-1)
    return np.where(outside, 0, (y * width + x).reshape(-1)), outside


def _fixed(value: float) -> int:
    return math.floor(value * 2**16 + 0.5)


def _gathered(
    dataset: Dataset, number: int, order: NDArray[np.intp], outside: NDArray[np.bool_] | None, detail: str
) -> Task:
    def gather(split: Split) -> Split:
        x = np.take(split.x.reshape(len(split), -1), order, axis=1)
        if outside is not None:
            x[:, outside] = 0
        return Split(_frozen(x.reshape(split.x.shape)), split.y)

    return Task(
        name=str(number),
        train=gather(dataset.train),
        test=gather(dataset.test),
        classes=tuple(range(dataset.classes)),
        detail=detail,
        mean=dataset.mean,
        std=dataset.std,
    )


def _split(dataset: Dataset, benchmark: str, count: int, seed: int) -> list[Task]:
    if dataset.classes % count or dataset.classes // count < 2:
        possible = [n for n in range(1, dataset.classes // 2 + 1) if dataset.classes % n == 0]
        raise BadSetting(
            f"{benchmark} divides {dataset.classes} classes evenly, at least two per task; got {count}"
            f" tasks, possible: {', '.join(map(str, possible))}"
        )
    each = dataset.classes // count

    def part(split: Split, first: int) -> Split:
        rows = np.flatnonzero((split.y >= first) & (split.y < first + each))
        people = None if split.people is None else _frozen(split.people[rows])
        return Split(_frozen(split.x[rows]), _frozen(split.y[rows]), people)

    return [
        Task(
            name=str(number + 1),
            train=part(dataset.train, number * each),
            test=part(dataset.test, number * each),
            classes=tuple(range(number * each, (number + 1) * each)),
            detail=f"classes {number * each} to {(number + 1) * each - 1}",
            mean=dataset.mean,
            std=dataset.std,
        )
        for number in range(count)
    ]


def _with_people(dataset: Dataset, benchmark: str, count: int, seed: int) -> list[Task]:
    def prepared(split: Split, number: int) -> Split:
        people = split.people
        if people is None:
            drawn = _bits(benchmark, seed, number).random_raw(len(split))
            people = (drawn % np.uint64(_WRITERS)).astype(np.int64) + 1
        x = (split.x / np.float32(dataset.unit)).astype(np.float32) if dataset.unit else split.x
        return Split(x, split.y, people)

    train, test = prepared(dataset.train, 1), prepared(dataset.test, 2)
    return _split(replace(dataset, train=train, test=test), benchmark, count, seed)


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.flags.writeable = False
    return array


def _bits(benchmark: str, seed: int, number: int) -> np.random.PCG64:
    key = hashlib.sha256(f"clpu stream\n{benchmark}\n{seed}\n{number}".encode()).digest()
    return np.random.PCG64(np.random.SeedSequence(int.from_bytes(key, "little")))


_KINDS: dict[str, Callable[[Dataset, str, int, int], list[Task]]] = {
    "perm": _permuted,
    "rot": _rotated,
    "split": _split,
    "people": _with_people,
}
