"""What an audit found about a method, as plain data: one file a method, checked when read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clpu.audit.bitwise import Bits
from clpu.audit.permutation import Effect
from clpu.errors import BadRun
from clpu.jsonfile import Fields
from clpu.recipe import check_method

FORMAT, VERSION = "clpu-audit-findings", 1


@dataclass(frozen=True)
class Attack:
    """What one attack saw at one forget: its effect with interval and p-value, and further figures by name.

    `figures` are numbers, pairs (low, high) or lists of them. `adjusted` is the p-value corrected for all attacks on
    the method, and `found` whether it is at most the error rate with an interval clear of chance.
    """

    name: str
    effect: Effect
    figures: Mapping[str, Any] = field(default_factory=dict)
    adjusted: float = math.nan
    found: bool = False

    @property
    def clear(self) -> bool:
        """Whether the interval does not hold what chance would give."""
        return not self.effect.low <= self.effect.chance <= self.effect.high

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "effect": vars(self.effect)}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Attack:
        top = Fields(value, where)
        effect = top.fields("effect")
        found = top.value.get("found")
        if not isinstance(found, bool):
            raise BadRun(f"{where}: found should be true or false")
        return cls(
            name=top.text("name"),
            effect=Effect(**{name: effect.number(name) for name in ("value", "low", "high", "chance", "p")}),
            figures=top.fields("figures").value,
            adjusted=top.number("adjusted"),
            found=found,
        )


@dataclass(frozen=True)
class Forgotten:
    """One forget of the stream, and the attacks on it."""

    request: int
    task: str
    counterfactual: str
    attacks: tuple[Attack, ...]


@dataclass(frozen=True)
class Findings:
    """All that was found about a method.

    `promised`: whether it declares itself exact. `bits` has a comparison for each forget and for the end of the
    stream. `residue` is what a scan of a store found of forgotten tasks, or None where no store was scanned.
    """

    method: str
    promised: bool
    runs: int
    error_rate: float
    bits: tuple[Bits, ...]
    forgets: tuple[Forgotten, ...]
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
        """With p-values corrected for the number of attacks, and marked which of them found something."""
        adjusted = iter(holm([attack.effect.p for attack in self.attacks]))
        forgets = []
        for forget in self.forgets:
            attacks = []
            for attack in forget.attacks:
                p = next(adjusted)
                attacks.append(replace(attack, adjusted=p, found=bool(p <= self.error_rate and attack.clear)))
            forgets.append(replace(forget, attacks=tuple(attacks)))
        return replace(self, forgets=tuple(forgets))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            **vars(self),
            "bits": [vars(bits) for bits in self.bits],
            "forgets": [{**vars(f), "attacks": [attack.to_json() for attack in f.attacks]} for f in self.forgets],
        }

    @classmethod
    def from_json(cls, value: Any, where: str) -> Findings:
        top = Fields(value, where)
        if top.optional("format", None) != FORMAT or top.integer("version") != VERSION:
            raise BadRun(f"{where} does not hold findings of an audit of version {VERSION}")
        if not isinstance(top.value.get("promised"), bool):
            raise BadRun(f"{where}: promised should be true or false")
        residue = top.optional("residue", None)
        return cls(
            method=top.text("method"),
            promised=top.value["promised"],
            runs=top.integer("runs"),
            error_rate=top.number("error_rate"),
            bits=tuple(_bits(item, f"{where}: bits") for item in top.items("bits")),
            forgets=tuple(_forgotten(item, f"{where}: forgets") for item in top.items("forgets")),
            residue=None if residue is None else tuple(top.texts("residue")),
        )


def _bits(value: Any, where: str) -> Bits:
    top = Fields(value, where)
    return Bits(
        request=top.integer("request"),
        counterfactual=top.text("counterfactual"),
        seeds=tuple(top.integers("seeds")),
        digest=top.text("digest"),
        digest_without=top.text("digest_without"),
        differing=tuple(top.texts("differing")),
    )


def _forgotten(value: Any, where: str) -> Forgotten:
    top = Fields(value, where)
    attacks = tuple(Attack.from_json(item, f"{where}: attack") for item in top.items("attacks"))
    return Forgotten(top.integer("request"), top.text("task"), top.text("counterfactual"), attacks)


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
