"""Requests, streams of requests, and what a request means for the tasks that are active (Ψ in the paper)."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias, overload

from clpu.errors import AlreadyLearned, BadRequest, CannotForget, UnknownTask

MAX_NAME_LENGTH = 100
#: Where this variable of the environment is set to 1, messages do not name other tasks than the one asked for.
DISCREET = "CLPU_DISCREET"
#: The longest id of a person or a record; an e-mail address has at most 254 characters.
MAX_ID_LENGTH = 300

Label: TypeAlias = int | str  # a boolean is an integer to Python

#: Streams that have a name. The paper prints one and its authors ran the other (docs/methods.md); audits use the last,
#: in which everything is forgotten once, and tasks are kept and learned after a forget request (docs/audit.md).
NAMED_STREAMS = {
    "clpu-2022": "1R 2T 3T 4R 2R 3F 5T 5F",
    "clpu-2022-as-printed": "1R 2T 3T 4R 1R 2F 5T 5F",
    "clpu-audit": "1T 1F 2R 3T 4T 5R 4F 3R 1R",
}


class Instruction(str, Enum):
    """An instruction about a task: ρ in the paper, and A to add data to an active task."""

    REMEMBER = "R"
    TEMPORARY = "T"
    ADD = "A"
    FORGET = "F"

    def __str__(self) -> str:
        return self.value


def check_name(task: object) -> str:
    """Return a task's name, or refuse it.

    >>> check_name("clinic 7 / left knee")
    'clinic 7 / left knee'
    """
    return _checked(task, "a task's name", MAX_NAME_LENGTH)


def check_id(value: object, what: str = "a person's id") -> str:
    """Return the id of a person or a record as text, or refuse it; an integer is taken as its digits.

    >>> check_id(17), check_id("ann@example.org")
    ('17', 'ann@example.org')
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        value = str(int(value))
    if not isinstance(value, str):
        raise BadRequest(f"{what} must be a string or an integer, got {type(value).__name__}: {value!r:.80}")
    return _checked(value, what, MAX_ID_LENGTH)


def _checked(text: object, what: str, longest: int) -> str:
    if not isinstance(text, str):
        raise BadRequest(f"{what} must be a string, got {type(text).__name__}: {text!r:.80}")
    if not text or text != text.strip():
        raise BadRequest(f"{what} must not be empty or begin or end with a space, got {text!r:.80}")
    if len(text) > longest:
        raise BadRequest(f"{what} has at most {longest} characters, got {len(text)}")
    odd = next((c for c in text if (unicodedata.category(c)[0] == "C" or c in "\u2028\u2029")), None)
    if odd is not None:
        raise BadRequest(f"{what} holds printable characters only, got U+{ord(odd):04X} in {text!r:.80}")
    return text


def _words(text: object) -> list[str]:
    """A string split at its spaces, quotes respected."""
    if not isinstance(text, str):
        raise BadRequest(f"a request is a string such as '5T', got {type(text).__name__}")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadRequest(f"cannot read {text!r:.200}: {error}") from None


@dataclass(frozen=True)
class Scope:
    """A task to forget, or the records that match all conditions; without a task, those of every task.

    >>> Scope("mail", person="p17").covers("spam", ["p17", "p3"]), Scope("mail", labels=["ham"]).covers("spam")
    (True, False)
    """

    task: str | None = None
    person: str | None = None
    labels: tuple[Label, ...] = ()
    records: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.task is not None:
            check_name(self.task)
        if self.person is not None:
            object.__setattr__(self, "person", check_id(self.person))
        object.__setattr__(self, "labels", tuple(map(_label, _listed(self.labels, "labels"))))
        ids = (check_id(record, "a record's id") for record in _listed(self.records, "records"))
        object.__setattr__(self, "records", tuple(ids))

    @property
    def whole_task(self) -> bool:
        """Whether it is a task with all its records."""
        return self.task is not None and not self.some_records

    @property
    def some_records(self) -> bool:
        """Whether it names a person, labels or records."""
        return self.person is not None or bool(self.labels) or bool(self.records)

    def covers(self, label: Label, people: Collection[str] = (), record: str | None = None) -> bool:
        """Whether a record with this label and id about these people is among those that it names."""
        return (
            (self.person is None or self.person in people)
            and (not self.labels or any(type(label) is type(one) and label == one for one in self.labels))
            and (not self.records or record in self.records)
        )

    def keywords(self) -> dict[str, Any]:
        """Return the conditions that are set, as keyword arguments of `State.without`."""
        given = {"task": self.task, "person": self.person, "labels": self.labels, "records": self.records}
        return {name: value for name, value in given.items() if value is not None and value != ()}

    def __str__(self) -> str:
        parts = [("@", [self.person or ""]), ("=", map(str, self.labels)), ("#", self.records)]
        texts = [(mark, ",".join(map(_escaped, values))) for mark, values in parts]
        return _escaped(self.task or "") + "".join(mark + text for mark, text in texts if text)


def _listed(values: Any, what: str) -> tuple[Any, ...]:
    if values is None:
        return ()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise BadRequest(f"{what} must be a list, got {type(values).__name__}: {values!r:.80}")
    return tuple(values)


def _label(value: Any) -> Label:
    if hasattr(value, "item"):  # NumPy's and torch's single numbers
        value = value.item()
    if not isinstance(value, (int, str)):
        raise BadRequest(f"a label is an integer, a boolean or text, got {type(value).__name__}: {value!r:.80}")
    return value


#: Marks that begin a part of a request's text; a mark that belongs to a name has a backslash before it.
_PIECE = re.compile(r"([@=#+]?)((?:[^@=#+\\]|\\.)*)")


def _escaped(text: str) -> str:
    return re.sub(r"([@=#+,\\])", r"\\\1", text)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _parts(text: str, word: str) -> tuple[str, tuple[Scope, ...]]:
    """A task's name, and what follows it: `2@p17`, `2=7,9`, `@p17`, `1@p17+=7`."""
    pieces = [(mark, found) for mark, found in _PIECE.findall(text) if mark or found]
    task = _unescaped(pieces.pop(0)[1]) if pieces and not pieces[0][0] else ""
    scopes: list[dict[str, Any]] = [{}]
    names = {"@": "person", "=": "labels", "#": "records"}
    for mark, found in pieces:
        if mark == "+" and not found and scopes[-1]:
            scopes.append({})
        elif mark == "+" or not found or names[mark] in scopes[-1]:
            raise BadRequest(
                f"request {word!r:.80} cannot be read after {mark!r}; put a backslash before one that is part of a name"
            )
        else:
            scopes[-1][names[mark]] = _unescaped(found) if mark == "@" else _values(found, mark == "=")
    if pieces and not scopes[-1]:
        raise BadRequest(f"request {word!r:.80} has nothing after its last '+'")
    return task, tuple(Scope(**given) for given in scopes if given)


def _values(text: str, labels: bool) -> tuple[Any, ...]:
    """The labels or record ids between commas; a label that looks like an integer is one."""
    values = map(_unescaped, re.findall(r"(?:[^,\\]|\\.)+", text))
    return tuple(int(v) if labels and re.fullmatch(r"-?[0-9]{1,19}", v) else v for v in values)


@dataclass(frozen=True)
class Request:
    """One request without its data: a task, an instruction, and which of the task's records it is about.

    To forget, `parts` has at most one scope, the records to forget; without a task, in every task. To learn, the
    records that are left out: what a counterfactual has.

    >>> Request.parse("5T")
    Request(task='5', instruction=<Instruction.TEMPORARY: 'T'>, parts=())
    >>> Request.parse("mail@p17F").scope.person, str(Request("", Instruction.FORGET, (Scope(person="p17"),)))
    ('p17', '@p17F')
    """

    task: str
    instruction: Instruction
    parts: tuple[Scope, ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "instruction", Instruction(self.instruction))
        except ValueError:
            raise BadRequest(f"an instruction is R, T, A or F, got {self.instruction!r:.40}") from None
        object.__setattr__(self, "parts", tuple(replace(part, task=None) for part in self.parts))
        forgets = self.instruction is Instruction.FORGET
        if forgets and len(self.parts) > 1:
            raise BadRequest("one request forgets the records of one person, of some labels or with some ids")
        if forgets and self.parts and self.parts[0].person and not self.task:
            return
        if not self.task and self.parts:
            raise BadRequest("labels and records belong to a task; name it")
        check_name(self.task)

    @classmethod
    def forgetting(cls, scope: Scope) -> Request:
        """The request to forget what a scope names."""
        return cls(scope.task or "", Instruction.FORGET, (scope,) if scope.some_records else ())

    @property
    def scope(self) -> Scope:
        """The scope of a request to forget."""
        return replace(self.parts[0] if self.parts else Scope(), task=self.task or None)

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read `<task><letter>`, as in `5T`; a name with spaces or quotes is quoted as in a stream: `'my task'T`.

        `5@p17F` forgets a person in one task, `@p17F` in every task, `5=7,9F` labels, `5#r1F` records;
        `5@p17+=7R` learns a task without that person and that label. A mark in a name has a
        backslash before it.
        """
        words = _words(text)
        if len(words) != 1:
            raise BadRequest(f"one request, such as '5T' or \"'my task'T\", was expected, got {text!r:.80}")
        return cls._of_word(words[0])

    @classmethod
    def _of_word(cls, word: str) -> Request:
        text, letter = word[:-1], word[-1:]
        if letter not in [*Instruction]:
            raise BadRequest(
                f"request {word!r:.80} ends with {letter!r}; expected a task's name followed by "
                "R (remember), T (learn temporarily), A (add data) or F (forget), such as '5T'"
            )
        if not text:
            raise BadRequest(f"request {word!r} names no task; expected something like '1{letter}'")
        task, parts = _parts(text, word)
        return cls(task, Instruction(letter), parts)

    def __str__(self) -> str:
        return shlex.quote(_escaped(self.task) + "+".join(map(str, self.parts))) + self.instruction.value


def meaning(request: Request, active: Mapping[str, str], forgets: str = "tasks") -> str:
    """Return what a request means for an agent with these active tasks: `learn`, `add`, `keep`, `nothing` or `forget`.

    A typed error if it is not legal. `forgets` is what the agent's method forgets exactly; only `tasks` and `records`
    include a task that is remembered.

    >>> meaning(Request.parse("1R"), {"1": "T"})
    'keep'
    """
    task, status = request.task, active.get(request.task)
    if status is None and task and request.instruction in (Instruction.FORGET, Instruction.ADD):
        raise UnknownTask(unknown(task, active))
    if request.instruction is Instruction.FORGET:
        if request.parts and forgets != "records":
            raise CannotForget(
                "this agent's method learns all records of a task together, so forgetting some of them means learning "
                "the task again without them; a method that forgets records, such as 'ridge', takes single ones out"
            )
        if status == "R" and forgets not in ("tasks", "records"):
            raise CannotForget(
                f"task {task!r} is permanent, and this agent's method forgets temporary tasks only; "
                "a method that keeps tasks apart, such as 'ind', forgets any task"
            )
        return "forget"
    if request.instruction is Instruction.ADD:
        if forgets != "records":
            raise BadRequest(
                f"this agent's method learns all records of a task together, so it cannot add some to {task!r}; "
                "forget the task and learn it with all of them, or use a method that forgets records, such as 'ridge'"
            )
        return "add"
    if status is None:
        return "learn"
    if request.instruction is Instruction.TEMPORARY:
        raise AlreadyLearned(
            f"task {task!r} already exists (status {status}); "
            "forget it first if it is temporary, or use a different name"
        )
    return "keep" if status == "T" else "nothing"


def unknown(task: str, active: Collection[str]) -> str:
    """The message about a task that is not active; it names others unless the environment asks for discretion."""
    if os.environ.get(DISCREET, "0") not in ("", "0"):
        return f"unknown task {task!r}"
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

    def check(self, forgets: str = "records") -> Stream:
        """Refuse what is not legal for a method that forgets so much exactly; returns the stream."""
        for _ in self.walk(forgets):
            pass
        return self

    def walk(self, forgets: str = "records") -> Iterator[tuple[Request, str, dict[str, str]]]:
        """Yield each request, its `meaning`, and the tasks that are active after it.

        >>> [(what, [*active]) for _, what, active in Stream("1R 2T 2R 1F").walk()]
        [('learn', ['1']), ('learn', ['1', '2']), ('keep', ['1', '2']), ('forget', ['2'])]
        """
        active: dict[str, str] = {}
        for number, request in enumerate(self.requests, 1):
            try:
                what = meaning(request, active, forgets)
            except (UnknownTask, AlreadyLearned, CannotForget) as error:
                raise type(error)(f"request {number} ({request}) is not legal: {error}") from None
            if what == "forget" and not request.parts:
                del active[request.task]
            elif what in ("learn", "keep"):
                active[request.task] = request.instruction.value
            yield request, what, dict(active)

    @property
    def forgets(self) -> list[int]:
        """The numbers, counted from 1, of the requests that forget."""
        return [n for n, r in enumerate(self.requests, 1) if r.instruction is Instruction.FORGET]

    @property
    def tasks(self) -> list[str]:
        """The tasks that the stream names, in order of appearance."""
        return list(dict.fromkeys(request.task for request in self.requests if request.task))

    def counterfactual(self, after: int | None = None) -> Stream:
        """The stream that would have been, had what was forgotten by request `after` never been there.

        A request is left out when its task is forgotten later on, up to and including request number
        `after` (counted from 1; all of them by default). A task learned again after its forget stays. Where records
        of a task are forgotten, what brought them says which ones are left out.

        >>> Stream("1R 2T 2F 3T 2R 3F").counterfactual(5)
        Stream('1R 3T 2R')
        >>> Stream("1R 2R @p17F 2=7F 1A").counterfactual()
        Stream('1@p17R 2@p17+=7R 1A')
        """
        count = len(self.requests) if after is None else after
        if type(count) is not int or not 0 <= count <= len(self.requests):
            raise BadRequest(
                f"the stream has {len(self.requests)} requests, so there is no request number {after!r:.40}"
            )
        past = self.requests[:count]
        whole = {r.task: i for i, r in enumerate(past) if r.instruction is Instruction.FORGET and not r.parts}
        some = [(i, r) for i, r in enumerate(past) if r.instruction is Instruction.FORGET and r.parts]

        def filtered(number: int, request: Request) -> Request:
            later = [r.parts[0] for i, r in some if i > number and r.task in ("", request.task)]
            return replace(request, parts=tuple(dict.fromkeys((*request.parts, *later))))

        kept = ((i, r) for i, r in enumerate(past) if i > whole.get(r.task, -1) and (i, r) not in some)
        return Stream(filtered(i, r) for i, r in kept)

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
