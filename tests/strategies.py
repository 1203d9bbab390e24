"""Random legal streams for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from clpu import Stream
from clpu.requests import Instruction, Ledger, Request


@st.composite
def streams(draw: st.DrawFn, tasks: int = 5, longest: int = 10) -> Stream:
    """Legal streams in which tasks are learned, kept, kept again, forgotten in any order, and learned anew."""
    ledger, requests = Ledger(), []
    for _ in range(draw(st.integers(1, longest))):
        legal = [Request(str(t), Instruction.REMEMBER) for t in range(1, tasks + 1)]
        legal += [Request(str(t), Instruction.TEMPORARY) for t in range(1, tasks + 1) if str(t) not in ledger]
        # Forgetting is what the tests are about: let it be as likely as the rest.
        legal += [Request(t, Instruction.FORGET) for t in ledger.temporary] * 4
        request = draw(st.sampled_from(legal))
        requests.append(request)
        ledger.apply(request)
    return Stream(requests)
