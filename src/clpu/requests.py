"""Requests, streams of requests, and what a request means for the tasks that are active (Ψ in the paper)."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import overload

from clpu.errors import AlreadyLearned, BadRequest, CannotForget, UnknownTask

LONGEST_NAME = 100

#: Streams that have a name. The paper prints one and its authors ran the other (docs/methods.md); audits use the last,
#: in which everything is forgotten once, and tasks are kept and learned after a forget (docs/audit.md).
NAMED_STREAMS = {
    "clpu-2022": "1R 2T 3T 4R 2R 3F 5T 5F",
    "clpu-2022-as-printed": "1R 2T 3T 4R 1R 2F 5T 5F",
    "clpu-audit": "1T 1F 2R 3T 4T 5R 4F 3R 1R",
}


class Instruction(str, Enum):
    """What to do with a task: ρ in the paper."""

    REMEMBER = "R"
    TEMPORARY = "T"
    FORGET = "F"

    def __str__(self) -> str:
        return self.value


def check_name(task: object) -> str:
    """Return a task's name, or refuse it.

    >>> check_name("clinic 7 / left knee")
    'clinic 7 / left knee'
    """
    if not isinstance(task, str):
        raise BadRequest(f"a task's name must be a string, got {type(task).__name__}: {task!r:.80}")
    if not task or task != task.strip():
        raise BadRequest(f"a task's name must not be empty or begin or end with a space, got {task!r:.80}")
    if len(task) > LONGEST_NAME:
        raise BadRequest(f"a task's name has at most {LONGEST_NAME} characters, got {len(task)}")
    odd = next((c for c in task if unicodedata.category(c)[0] == "C"), None)
    if odd is not None:
        raise BadRequest(f"a task's name holds printable characters only, got U+{ord(odd):04X} in {task!r:.80}")
    return task


def _words(text: object) -> list[str]:
    """A string split at its spaces, quotes respected."""
    if not isinstance(text, str):
        raise BadRequest(f"a request is a string such as '5T', got {type(text).__name__}")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadRequest(f"cannot read {text!r:.200}: {error}") from None


@dataclass(frozen=True)
class Request:
    """One request without its data: a task and an instruction.

    >>> Request.parse("5T")
    Request(task='5', instruction=<Instruction.TEMPORARY: 'T'>)
    """

    task: str
    instruction: Instruction

    def __post_init__(self) -> None:
        check_name(self.task)
        try:
            object.__setattr__(self, "instruction", Instruction(self.instruction))
        except ValueError:
            raise BadRequest(f"an instruction is R, T or F, got {self.instruction!r:.40}") from None

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read `<task><letter>`, as in `5T`; a name with spaces or quotes is quoted as in a stream: `'my task'T`."""
        words = _words(text)
        if len(words) != 1:
            raise BadRequest(f"one request, such as '5T' or \"'my task'T\", was expected, got {text!r:.80}")
        return cls._of_word(words[0])

    @classmethod
    def _of_word(cls, word: str) -> Request:
        task, letter = word[:-1], word[-1:]
        if letter not in ("R", "T", "F"):
            raise BadRequest(
                f"request {word!r:.80} ends with {letter!r}; expected a task's name followed by "
                "R (remember), T (learn temporarily) or F (forget), such as '5T'"
            )
        if not task:
            raise BadRequest(f"request {word!r} names no task; expected something like '1{letter}'")
        return cls(task, Instruction(letter))

    def __str__(self) -> str:
        return shlex.quote(self.task) + self.instruction.value


def meaning(request: Request, active: Mapping[str, str], forgets: str = "tasks") -> str:
    """What a request means for an agent with these active tasks: `learn`, `keep`, `nothing` or `forget`.

    A typed error if it is not legal. `forgets` is what the agent's method forgets exactly; only `tasks` and `records`
    include a task that is remembered.

    >>> meaning(Request.parse("1R"), {"1": "T"})
    'keep'
    """
    task, status = request.task, active.get(request.task)
    if request.instruction is Instruction.FORGET:
        if status is None:
            raise UnknownTask(unknown(task, active))
        if status == "R" and forgets not in ("tasks", "records"):
            raise CannotForget(
                f"task {task!r} is permanent, and this agent's method forgets temporary tasks only; "
                "a method that keeps tasks apart, such as 'ind', forgets any task"
            )
        return "forget"
    if status is None:
        return "learn"
    if request.instruction is Instruction.TEMPORARY:
        raise AlreadyLearned(
            f"task {task!r} already exists (status {status}); "
            "forget it first if it is temporary, or use a different name"
        )
    return "keep" if status == "T" else "nothing"


def unknown(task: str, active: Collection[str]) -> str:
    """The message about a task that is not active."""
    listed = ", ".join(repr(t) for t in list(active)[:10]) or "none"
    return f"unknown task {task!r}; active tasks: {listed}{' …' if len(active) > 10 else ''}"


class Stream(Sequence[Request]):
    """A legal list of requests.

    Takes a string, the name of a known stream, or requests. A name with spaces is quoted: `"'my task'T"`.

    >>> Stream("1R 2T 3T 4R 2R 3F 5T 5F").counterfactual()
    Stream('1R 2T 4R 2R')
    >>> Stream("clpu-2022").forgets
    [6, 8]
    """

    def __init__(self, requests: str | Iterable[Request | str] = ()) -> None:
        if isinstance(requests, str):
            words = _words(NAMED_STREAMS.get(requests, requests))
            self.requests: tuple[Request, ...] = tuple(Request._of_word(word) for word in words)
        elif isinstance(requests, Iterable):
            self.requests = tuple(r if isinstance(r, Request) else Request.parse(r) for r in requests)
        else:
            raise BadRequest(f"a stream is a string or a list of requests, got {type(requests).__name__}")
        self.check()

    def check(self, forgets: str = "tasks") -> Stream:
        """Refuse what is not legal for a method that forgets so much exactly; returns the stream."""
        active: dict[str, str] = {}
        for number, request in enumerate(self.requests, 1):
            try:
                what = meaning(request, active, forgets)
            except (UnknownTask, AlreadyLearned, CannotForget) as error:
                raise type(error)(f"request {number} ({request}) is not legal here: {error}") from None
            if what == "forget":
                del active[request.task]
            elif what != "nothing":
                active[request.task] = request.instruction.value
        return self

    @property
    def forgets(self) -> list[int]:
        """The numbers, counted from 1, of the requests that forget."""
        return [n for n, r in enumerate(self.requests, 1) if r.instruction is Instruction.FORGET]

    @property
    def tasks(self) -> list[str]:
        """The tasks that the stream names, in order of appearance."""
        return list(dict.fromkeys(request.task for request in self.requests))

    def counterfactual(self, after: int | None = None) -> Stream:
        """The stream that would have been, had the tasks forgotten by request `after` never been asked for.

        A request is left out when its task is forgotten later on, up to and including request number
        `after` (counted from 1; all of them by default). A task learned again after its forget stays.

        >>> Stream("1R 2T 2F 3T 2R 3F").counterfactual(5)
        Stream('1R 3T 2R')
        """
        count = len(self.requests) if after is None else after
        if type(count) is not int or not 0 <= count <= len(self.requests):
            raise BadRequest(
                f"the stream has {len(self.requests)} requests, so there is no request number {after!r:.40}"
            )
        past = self.requests[:count]
        last_forget = {r.task: i for i, r in enumerate(past) if r.instruction is Instruction.FORGET}
        return Stream(r for i, r in enumerate(past) if i > last_forget.get(r.task, -1))

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Request | Stream:
        if isinstance(index, slice):
            return Stream(self.requests[index])
        return self.requests[index]

    def __len__(self) -> int:
        return len(self.requests)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.requests == other.requests

    def __hash__(self) -> int:
        return hash(self.requests)

    def __str__(self) -> str:
        return " ".join(str(request) for request in self.requests)

    def __repr__(self) -> str:
        return f"Stream({str(self)!r})"
