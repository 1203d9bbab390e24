"""The effect of a request on the tasks that the agent knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """An accuracy before and after a request, from 0 to 1; `None` where there was no such task yet."""

    before: float | None
    after: float

    @property
    def loss(self) -> float:
        """By how much it fell; 0 if it rose."""
        return 0.0 if self.before is None else max(0.0, self.before - self.after)


#: Two-sided 95% of the normal distribution.
Z = 1.959964


@dataclass(frozen=True)
class HeldOut:
    """The number of held-out records that were classified correctly when the task was learned.

    >>> found = HeldOut(50, 45, 20)
    >>> found.accuracy, [round(limit, 3) for limit in found.interval], found.largest, found.better
    (0.9, [0.786, 0.957], 0.4, True)
    """

    examples: int
    #: As a mean over replicas.
    correct: float
    #: How many of them have the label that is most frequent in the training part.
    most_frequent: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval: (p + z²/2n ± z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n)."""
        n, p = self.examples, self.accuracy
        centre, width = p + Z * Z / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return (centre - width) / (1 + Z * Z / n), (centre + width) / (1 + Z * Z / n)

    @property
    def largest(self) -> float:
        """The accuracy of always answering with the most frequent label."""
        return self.most_frequent / self.examples

    @property
    def better(self) -> bool:
        """Whether it is more accurate than that."""
        return self.accuracy > self.largest

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.accuracy:.1%} of {self.examples} held-out examples ({low:.0%} to {high:.0%}); "
            f"always answering with the most frequent label: {self.largest:.1%}"
        )

    def to_json(self) -> dict[str, Any]:
        return {"examples": self.examples, "correct": self.correct, "most_frequent": self.most_frequent}

    @classmethod
    def from_facts(cls, facts: Any) -> HeldOut | None:
        """Read the result from a task's facts, if they have one."""
        found = facts.get("held_out")
        return None if found is None else cls(**found)


@dataclass(frozen=True)
class Outcome:
    """Returned by `learn` and `keep`: how well each remembered task, and the task itself, is known before and after.

    `memory` has an entry for each of these tasks of which examples are kept: the share of them that is classified
    correctly, as a mean over replicas. The network was trained on them, so this does not estimate the accuracy on new
    data; but a large fall is visible in it too.

    >>> Outcome({"digits": Change(0.98, 0.97), "clinic": Change(0.95, 0.6)}).losses(of=0.03)
    {'clinic': 0.35}
    """

    memory: Mapping[str, Change]
    #: How good the task was learned, if a part of its data was held out.
    held_out: HeldOut | None = None

    def losses(self, of: float = 0.03) -> dict[str, float]:
        """The tasks whose accuracy on their memory fell by more than that, and by how much."""
        return {task: round(change.loss, 6) for task, change in self.memory.items() if change.loss > of}
