"""A method without a trace is not flagged more often than the stated error rate."""

import numpy as np
import pytest
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module
from scipy import stats

from clpu.audit.api import audit
from clpu.audit.findings import Findings, ForgetFindings
from clpu.audit.observations import Observations
from clpu.audit.verdict import EXACT, NONE, TRACE, attack_all, verdict
from clpu.methods.clpu_derpp import CLPUDERpp
from clpu.testing import make_task


def group(rng, runs, centre):
    """Runs as an audit sees them: all figures of a run share its luck, so that the attacks depend on each other."""
    luck = rng.normal(size=(runs, 1, 1))
    logits = centre["logits"] + luck + rng.normal(size=(runs, 12, 3))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    relearning = np.clip(0.5 + 0.1 * luck[:, 0] + 0.1 * rng.normal(size=(runs, 5)), 0, 1)
    return Observations(
        outputs=log_p,
        others=log_p[:, :, ::-1],
        features=rng.normal(size=(runs, 12, 4)) + luck,
        confidence=centre["confidence"] + luck[:, 0] + rng.normal(size=(runs, 20)),
        accuracy=relearning[:, 0],
        relearning=relearning,
        relapse=(relearning[:, 1] * 20).round() / 20,
    )


def findings(rng, runs, error_rate, forgets=2, shift=0.0):
    made = []
    for number in range(forgets):
        centre = {"logits": rng.normal(size=(12, 3)), "confidence": rng.normal(size=20)}
        actual, never = group(rng, runs, centre), group(rng, runs, centre)
        if shift:
            actual = Observations(**{**actual.arrays(), "confidence": actual.confidence + shift})
        made.append(ForgetFindings(number + 1, str(number), "", attack_all(actual, never, [0, 1, 2, 3, 4])))
    return Findings("honest", False, runs, error_rate, (), tuple(made)).corrected()


@pytest.mark.parametrize("runs", [6, 12])
def test_a_method_without_a_trace_is_flagged_at_most_at_the_error_rate(runs):
    rng, error_rate, repeats = np.random.default_rng(runs), 0.1, 40
    flagged = sum(verdict(findings(rng, runs, error_rate)).kind == TRACE for _ in range(repeats))
    assert stats.binomtest(flagged, repeats, error_rate, "greater").pvalue > 0.01, flagged


def test_the_same_simulation_finds_a_method_that_has_one():
    rng = np.random.default_rng(0)
    found = [verdict(findings(rng, 12, 0.1, shift=4.0)) for _ in range(5)]
    assert all(v.kind == TRACE and v.by[0] in ("membership", "threshold") for v in found)


class Undeclared(CLPUDERpp):
    """Exact, but not declared so, and with draws that depend on all before: attacks must judge it, not the bits."""

    name = "honest-but-not-bitwise"
    forgets = "nothing"
    draws = 0

    def generators(self, task, purpose):
        type(self).draws += 1
        return super().generators(task, f"{purpose} {type(self).draws}")


@pytest.mark.parametrize("repetition", range(4))
def test_a_method_without_a_trace_that_is_not_reproducible_is_not_flagged(repetition, monkeypatch):
    monkeypatch.setattr(Undeclared, "draws", 0)
    tasks = {name: make_task(f"{name} {repetition}", 60) for name in ("1", "2", "3")}
    result = audit(Undeclared, tasks, "1R 2T 3R 2F", runs=8, hidden=(12,), epochs=2, lr=0.1)
    assert not result.findings.exact
    assert result.verdict.kind == NONE
    assert "8 agents per group" in result.verdict.explanation


def test_a_proof_stands_whatever_attacks_say():
    """Attacks err at their rate; equal bits do not."""
    tasks = {name: make_task(name, 60) for name in ("1", "2")}
    result = audit("ind", tasks, "1R 2T 2F", runs=4, error_rate=0.99, hidden=(8,), epochs=1)
    assert result.verdict.kind == EXACT
