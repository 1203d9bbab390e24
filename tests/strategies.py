"""Random legal streams for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from clpu import Stream
from clpu.requests import Instruction, Request


@st.composite
def streams(draw: st.DrawFn, tasks: int = 5, longest: int = 10, forgets: str = "temporary") -> Stream:
    """Legal streams in which tasks are learned, kept, kept again, forgotten in any order, and learned anew.

    `forgets` is what the method forgets: temporary tasks, or any tasks.
    """
    active: dict[str, str] = {}
    requests = []
    for _ in range(draw(st.integers(1, longest))):
        legal = [Request(str(t), Instruction.REMEMBER) for t in range(1, tasks + 1)]
        legal += [Request(str(t), Instruction.TEMPORARY) for t in range(1, tasks + 1) if str(t) not in active]
        # Forgetting is what the tests are about: let it be as likely as the rest.
        forgettable = [t for t, status in active.items() if status == "T" or forgets == "tasks"]
        legal += [Request(t, Instruction.FORGET) for t in forgettable] * 4
        request = draw(st.sampled_from(legal))
        requests.append(request)
        active.pop(request.task, None)
        if request.instruction is not Instruction.FORGET:
            active[request.task] = request.instruction.value
    return Stream(requests)
