"""From findings to a verdict in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from clpu.audit import distribution, features, membership, relearning
from clpu.audit.bitwise import plainly
from clpu.audit.findings import Attack, Findings
from clpu.audit.observed import Observed
from clpu.audit.permutation import detectable, smallest_p

EXACT, NONE, TRACE = "exact", "no trace found", "trace found"

#: The attacks in the order of tables and pages.
ATTACKS = ("outputs", "side effects", "membership", "threshold", "relearning", "relapse", "features")


def attack_all(actual: Observed, never: Observed, marks: Sequence[int]) -> tuple[Attack, ...]:
    """Every attack on one forget."""
    made = [
        distribution.outputs(actual, never),
        distribution.side_effects(actual, never),
        *membership.attacks(actual, never),
        relearning.relearning(actual, never, marks),
        relearning.relapse(actual, never),
        features.features(actual, never),
    ]
    return tuple(attack for attack in made if attack is not None)


@dataclass(frozen=True)
class Verdict:
    """`kind` is one of the three; `by` names what found the trace, the surest first; `words` says it in a sentence."""

    kind: str
    by: tuple[str, ...]
    words: str

    @property
    def title(self) -> str:
        return "exact (proved bitwise)" if self.kind == EXACT else self.kind


def verdict(findings: Findings) -> Verdict:
    """What the findings say.

    Equal bits are a proof, whatever attacks may say: they err at the stated rate. Unequal bits count as a trace only
    for a method that promises exactness: an honest method may draw its random numbers anew, and is judged by attacks.
    """
    if findings.residue:
        left = f"{len(findings.residue)} piece(s) of forgotten tasks are still on disk: {findings.residue[0]}"
        return Verdict(TRACE, ("residue", *_found(findings)), left)
    if findings.exact:
        pairs = max(len(bits.seeds) for bits in findings.bits)
        return Verdict(
            EXACT,
            (),
            f"All that {pairs} agent{'s' * (pairs != 1)} hold after forgetting, and all they answer, equals bit by bit "
            "what agents with the same seeds hold that never learned the task.",
        )
    by = _found(findings)
    if findings.promised:
        first = next(bits for bits in findings.bits if not bits.equal)
        parts = plainly(first.differing)
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        words = f"It promises exactness, and after request {first.request} these differ: {', '.join(parts[:3])}{more}"
        words += f"; attacks find it too: {_strength(findings, by)}." if by else "; no attack makes use of that."
        return Verdict(TRACE, ("bitwise", *by), words)
    if by:
        return Verdict(TRACE, by, f"Found by {_strength(findings, by)}.")
    return Verdict(NONE, (), f"No attack tells it from one that never learned the task. {power(findings)}")


def _found(findings: Findings) -> tuple[str, ...]:
    """The attacks that found something at any forget, the smallest corrected p-value first, then the larger effect."""
    hits = [attack for attack in findings.attacks if attack.found]
    hits.sort(key=lambda a: (a.adjusted, -abs(a.effect.value - a.effect.chance) / (1 - a.effect.chance)))
    return tuple(dict.fromkeys(attack.name for attack in hits))


def _strength(findings: Findings, names: Sequence[str]) -> str:
    said = "; ".join(f"{name} ({strength(strongest(findings, name))})" for name in names[:3])
    return f"{said}; also by {', '.join(names[3:])}" if names[3:] else said


def strongest(findings: Findings, name: str) -> Attack:
    """The attack of this name with the largest effect over the forgets."""
    same = [attack for attack in findings.attacks if attack.name == name]
    return max(same, key=lambda a: (a.found, abs(a.effect.value - a.effect.chance)))


def strength(attack: Attack) -> str:
    """An attack's effect in short, with its interval.

    >>> from clpu.audit.permutation import Effect
    >>> strength(Attack("membership", Effect(0.91, 0.88, 0.94, 0.5, 0.0001), {"tpr_at_0.01": 0.4}))
    'AUC 0.91 [0.88, 0.94], 40 % true at 1 % false positives'
    """
    effect = attack.effect
    kind = "separation" if effect.chance == 0 else "AUC"
    text = f"{kind} {effect.value:.2f} [{effect.low:.2f}, {effect.high:.2f}]"
    if "tpr_at_0.01" in attack.figures:
        text += f", {100 * attack.figures['tpr_at_0.01']:.0f} % true at 1 % false positives"
    if "steps" in attack.figures:
        more = "more than " if attack.figures["unfinished"][1] >= 0.5 else ""
        text += f", {attack.figures['steps']:.0f} steps instead of {more}{attack.figures['steps_never']:.0f}"
    return text


def power(findings: Findings) -> str:
    """What the audit could have found with so many runs.

    >>> power(Findings("seq", False, 32, 0.01, (), ()))[:86]
    'With 32 runs a group, an attack is counted from p = 0.01 on (the smallest possible is '
    """
    runs, tests = findings.runs, max(1, len(findings.attacks))
    level, least = findings.error_rate / tests, smallest_p(runs, runs)
    shift = detectable(runs, runs, level)
    text = (
        f"With {runs} runs a group, an attack is counted from p = {level:.2g} on (the smallest possible is {least:.2g})"
    )
    if least > level:
        return f"{text}: too few runs to find anything."
    seen = NormalDist().cdf(shift / 2**0.5)
    return f"{text}; a shift of {shift:.1f} standard deviations (AUC {seen:.2f}) is found four times out of five."
