"""The findings of an audit about a method, as plain data: one file per method, checked when read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from clpu import jsonfile
from clpu.audit.bitwise import Bits
from clpu.audit.permutation import Effect
from clpu.errors import BadRun
from clpu.requests import Stream
from clpu.runs.recipe import Recipe, check_method


@dataclass(frozen=True)
class Attack:
    """One attack's finding at one forget request: its effect with interval and p-value, and further details by name.

    `details` are numbers, pairs (low, high) or lists of them. `adjusted` is the p-value corrected for all attacks on
    the method, and `found` whether it is at most the error rate with an interval that excludes chance.
    """

    name: str
    effect: Effect
    details: Mapping[str, Any] = field(default_factory=dict)
    adjusted: float = math.nan
    found: bool = False

    @property
    def clear(self) -> bool:
        """Whether the interval excludes what chance would give."""
        return not self.effect.low <= self.effect.chance <= self.effect.high


@dataclass(frozen=True)
class ForgetFindings:
    """One forget request of the stream, and the attacks on it; on one task, if records of several were forgotten.

    `records` says which records of the task were forgotten, such as "@p17"; "" for all of them.
    """

    request: int
    task: str
    counterfactual: str
    attacks: tuple[Attack, ...]
    records: str = ""

    @property
    def what(self) -> str:
        """What was forgotten, as tables name it."""
        return f"{self.task}{self.records}"


@dataclass(frozen=True)
class Findings:
    """All that was found about a method.

    `declared_exact`: whether it declares that it forgets exactly. `bits` has a comparison for each forget request and
    for the end of the stream. `residue` is what a scan of a store found of forgotten tasks; None without a scan.
    """

    format: ClassVar[str] = "clpu-findings"

    method: str
    declared_exact: bool
    runs: int
    error_rate: float
    bits: tuple[Bits, ...]
    forgets: tuple[ForgetFindings, ...]
    residue: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_method(self.method)

    @property
    def attacks(self) -> list[Attack]:
        return [attack for forget in self.forgets for attack in forget.attacks]

    @property
    def exact(self) -> bool:
        """Whether every comparison of bits came out equal."""
        return bool(self.bits) and all(bits.equal for bits in self.bits)

    def corrected(self) -> Findings:
        """With p-values corrected for the number of attacks, and the attacks that found something marked."""
        adjusted = iter(holm([attack.effect.p for attack in self.attacks]))
        forgets = []
        for forget in self.forgets:
            attacks = []
            for attack in forget.attacks:
                p = next(adjusted)
                attacks.append(replace(attack, adjusted=p, found=bool(p <= self.error_rate and attack.clear)))
            forgets.append(replace(forget, attacks=tuple(attacks)))
        return replace(self, forgets=tuple(forgets))


def decode_findings(content: bytes, recipe: Recipe, method: str, where: str) -> Findings:
    """The findings about a method from the content of a file; `BadRun` if they are damaged or about something else."""
    findings = jsonfile.decode(content, Findings, where)
    requests = list(dict.fromkeys(forget.request for forget in findings.forgets))
    if findings.method != method or requests != list(Stream(recipe.requests).forgets):
        raise BadRun(f"{where} is about {findings.method!r} and forget requests {requests}; the recipe is not")
    return findings


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected so that the chance of any false alarm stays at the error rate (Holm 1979).

    The k-th smallest of m is multiplied by m - k + 1 and is at least as large as those before it. This holds however
    the tests depend on each other.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted
