"""From findings to a verdict, with an explanation in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from clpu.audit import features, membership, outputs, relearning
from clpu.audit.bitwise import describe_parts
from clpu.audit.findings import Attack, Findings
from clpu.audit.observations import Observations
from clpu.audit.permutation import detectable, smallest_p

EXACT, NONE, TRACE = "exact", "no trace found", "trace found"

#: The attacks in the order of tables and pages.
ATTACKS = ("outputs", "side effects", "membership", "threshold", "relearning", "relapse", "features")


def attack_all(actual: Observations, counterfactual: Observations, marks: Sequence[int]) -> tuple[Attack, ...]:
    """Every attack on one forget request."""
    made = [
        outputs.outputs(actual, counterfactual),
        outputs.side_effects(actual, counterfactual),
        *membership.attacks(actual, counterfactual),
        relearning.relearning(actual, counterfactual, marks),
        relearning.relapse(actual, counterfactual),
        features.features(actual, counterfactual),
    ]
    return tuple(attack for attack in made if attack is not None)


@dataclass(frozen=True)
class Verdict:
    """`kind` is one of the three; `by` names what found the trace, the surest first; `explanation` is a sentence."""

    kind: str
    by: tuple[str, ...]
    explanation: str

    @property
    def title(self) -> str:
        return "exact (proved bitwise)" if self.kind == EXACT else self.kind


def verdict(findings: Findings) -> Verdict:
    """Judge a method by its findings.

    Equal bits are a proof, whatever attacks may say: they err at the stated rate. Different bits count as a trace only
    for a method that is declared exact: any other may draw new random numbers, and is judged by attacks.
    """
    if findings.residue:
        count = len(findings.residue)
        left = f"{count} remnant{'s' * (count != 1)} of forgotten tasks on disk. The first: {findings.residue[0]}"
        return Verdict(TRACE, ("residue", *_found(findings)), left)
    if findings.exact:
        pairs = max(len(bits.seeds) for bits in findings.bits)
        return Verdict(
            EXACT,
            (),
            f"After forgetting, the state and all outputs of {pairs} agent{'s' * (pairs != 1)} are bit-identical to "
            f"those of agents with the same seeds that never {_had(findings)}.",
        )
    by = _found(findings)
    if findings.declared_exact:
        first = next(bits for bits in findings.bits if not bits.equal)
        parts = describe_parts(first.differing)
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        said = f"Declared exact, but after request {first.request} these parts differ: {', '.join(parts[:3])}{more}."
        said += f" Attacks find it too: {_strength(findings, by)}." if by else " No attack exploits the difference."
        return Verdict(TRACE, ("bitwise", *by), said)
    if by:
        return Verdict(TRACE, by, f"Found by {_strength(findings, by)}.")
    said = f"No attack distinguishes it from agents that never {_had(findings)}. {power(findings)}"
    return Verdict(NONE, (), said)


def _had(findings: Findings) -> str:
    return "had the records" if any(forget.records for forget in findings.forgets) else "learned the task"


def _found(findings: Findings) -> tuple[str, ...]:
    """The attacks that found something, the smallest corrected p-value first, then the larger effect."""
    hits = [attack for attack in findings.attacks if attack.found]
    hits.sort(key=lambda a: (a.adjusted, -abs(a.effect.value - a.effect.chance) / (1 - a.effect.chance)))
    return tuple(dict.fromkeys(attack.name for attack in hits))


def _strength(findings: Findings, names: Sequence[str]) -> str:
    said = "; ".join(f"{name} ({strength(strongest(findings, name))})" for name in names[:3])
    return f"{said}; also by {', '.join(names[3:])}" if names[3:] else said


def strongest(findings: Findings, name: str) -> Attack:
    """The attack of this name with the largest effect across the forget requests."""
    same = [attack for attack in findings.attacks if attack.name == name]
    return max(same, key=lambda a: (a.found, abs(a.effect.value - a.effect.chance)))


def strength(attack: Attack) -> str:
    """An attack's effect in short, with its interval.

    >>> from clpu.audit.permutation import Effect
    >>> strength(Attack("membership", Effect(0.91, 0.88, 0.94, 0.5, 0.0001), {"tpr_at_0.01": 0.4}))
    'AUC 0.91 [0.88, 0.94], 40% true positives at 1% false positives'
    """
    effect = attack.effect
    kind = "separation" if effect.chance == 0 else "AUC"
    text = f"{kind} {effect.value:.2f} [{effect.low:.2f}, {effect.high:.2f}]"
    if "tpr_at_0.01" in attack.details:
        text += f", {100 * attack.details['tpr_at_0.01']:.0f}% true positives at 1% false positives"
    if "steps" in attack.details:
        more = "more than " if attack.details["unfinished"][1] >= 0.5 else ""
        text += f", {attack.details['steps']:.0f} steps instead of {more}{attack.details['steps_counterfactual']:.0f}"
    return text


def power(findings: Findings) -> str:
    """Describe what the audit could have found with this number of agents.

    >>> power(Findings("seq", False, 32, 0.01, (), ()))[:79]
    'With 32 agents per group, an attack passes the corrected threshold at p ≤ 0.01 '
    """
    runs, tests = findings.runs, max(1, len(findings.attacks))
    level, least = findings.error_rate / tests, smallest_p(runs, runs)
    shift = detectable(runs, runs, level)
    text = (
        f"With {runs} agents per group, an attack passes the corrected threshold at p ≤ {level:.2g} "
        f"(smallest attainable p: {least:.2g})."
    )
    if least > level:
        return f"{text} That is too few agents to find anything."
    area = NormalDist().cdf(shift / 2**0.5)
    return f"{text} A shift of {shift:.1f} standard deviations (AUC {area:.2f}) would be detected with 80% probability."
