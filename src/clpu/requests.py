"""Requests, streams of requests, and the ledger of the tasks that are alive (Ψ in the paper)."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import overload

from clpu.errors import AlreadyLearned, BadRequest, CannotForgetRemembered, UnknownTask

LONGEST_NAME = 100

#: Streams that have a name. The paper prints one and its authors ran the other; see docs/methods.md.
NAMED_STREAMS = {
    "clpu-2022": "1R 2T 3T 4R 2R 3F 5T 5F",
    "clpu-2022-as-printed": "1R 2T 3T 4R 1R 2F 5T 5F",
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
        raise BadRequest(f"a task's name is a text, got {type(task).__name__}: {task!r:.80}")
    if not task or task != task.strip():
        raise BadRequest(f"a task's name must not be empty or begin or end with a space, got {task!r:.80}")
    if len(task) > LONGEST_NAME:
        raise BadRequest(f"a task's name has at most {LONGEST_NAME} characters, got {len(task)}")
    odd = next((c for c in task if unicodedata.category(c)[0] == "C"), None)
    if odd is not None:
        raise BadRequest(f"a task's name holds printable characters only, got U+{ord(odd):04X} in {task!r:.80}")
    return task


def _words(text: object) -> list[str]:
    """A text cut at its spaces, quotes respected."""
    if not isinstance(text, str):
        raise BadRequest(f"a request is a text such as '5T', got {type(text).__name__}")
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


@dataclass(frozen=True)
class Entry:
    """What the ledger knows of a task that is alive."""

    status: Instruction
    labels: tuple[int, ...] = ()
    steps: int = 0


class Ledger:
    """The tasks alive now, in the order in which they were learned: Ψ.

    `admit` says what a request would do, or refuses it, and changes nothing; `learned`, `kept` and
    `forgotten` record what was done.

    >>> ledger = Ledger()
    >>> ledger.learned("1", Entry(Instruction.TEMPORARY))
    >>> ledger.admit(Request.parse("1R"))
    'keep'
    """

    def __init__(self, entries: dict[str, Entry] | None = None) -> None:
        self.entries: dict[str, Entry] = dict(entries or {})

    def __contains__(self, task: object) -> bool:
        return task in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, task: str) -> Entry:
        try:
            return self.entries[task]
        except KeyError:
            raise UnknownTask(self._unknown(task)) from None

    def _unknown(self, task: str) -> str:
        known = ", ".join(repr(t) for t in list(self.entries)[:10]) or "none"
        return f"there is no task {task!r}; tasks alive: {known}{' …' if len(self) > 10 else ''}"

    @property
    def remembered(self) -> list[str]:
        """The tasks with status R."""
        return [t for t, entry in self.entries.items() if entry.status is Instruction.REMEMBER]

    @property
    def temporary(self) -> list[str]:
        """The tasks with status T."""
        return [t for t, entry in self.entries.items() if entry.status is Instruction.TEMPORARY]

    def admit(self, request: Request) -> str:
        """What the request means now: `learn`, `keep`, `nothing` or `forget`; a typed error if it is not legal."""
        task, entry = request.task, self.entries.get(request.task)
        if request.instruction is Instruction.FORGET:
            if entry is None:
                raise UnknownTask(self._unknown(task))
            if entry.status is Instruction.REMEMBER:
                raise CannotForgetRemembered(
                    f"task {task!r} was remembered for good; only a temporary task can be forgotten"
                )
            return "forget"
        if entry is None:
            return "learn"
        if request.instruction is Instruction.TEMPORARY:
            raise AlreadyLearned(
                f"task {task!r} is alive already (status {entry.status}); "
                "forget it first if it is temporary, or use another name"
            )
        return "keep" if entry.status is Instruction.TEMPORARY else "nothing"

    def apply(self, request: Request) -> str:
        """Record a request of which nothing but the instruction is known; returns what it meant."""
        meaning = self.admit(request)
        if meaning == "learn":
            self.learned(request.task, Entry(request.instruction))
        elif meaning == "keep":
            self.kept(request.task)
        elif meaning == "forget":
            self.forgotten(request.task)
        return meaning

    def learned(self, task: str, entry: Entry) -> None:
        self.entries[task] = entry

    def kept(self, task: str) -> None:
        self.entries[task] = replace(self.entries[task], status=Instruction.REMEMBER)

    def forgotten(self, task: str) -> None:
        del self.entries[task]

    def copy(self) -> Ledger:
        return Ledger(self.entries)


class Stream(Sequence[Request]):
    """A legal list of requests.

    Takes a text, the name of a known stream, or requests. A name with spaces is quoted: `"'my task'T"`.

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
            raise BadRequest(f"a stream is a text or a list of requests, got {type(requests).__name__}")
        self._check()

    def _check(self) -> None:
        ledger = Ledger()
        for number, request in enumerate(self.requests, 1):
            try:
                ledger.apply(request)
            except (UnknownTask, AlreadyLearned, CannotForgetRemembered) as error:
                raise type(error)(f"request {number} ({request}) is not legal here: {error}") from None

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
