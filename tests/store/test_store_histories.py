"""Random histories: after every forget the folder is that of a store that never saw it, and old copies do not help.

The attacker of invariant 3 has every file that was ever in the store's folder, also those of a moment within a request,
and today's keys, but not the keys of then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from storekit import clone_apart, handle, picture_without_secrets
from storekit import settings as small
from test_store_identity import streams
from typer.testing import CliRunner

from clpu import Stream
from clpu.errors import BadStore
from clpu.store import DurableAgent, create
from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.store.files import PART, Files
from clpu.store.folder import Access, Folder
from clpu.store.keyring import unwrap
from clpu.store.plan import open_permanent
from clpu.store.sealing import NONCE

TASKS, PAST, FUTURE = ("mail", "chat", "news"), "2001-02-03", "2901-02-03"
GROUPS = (None, "ada", "bob", "eve", ["ada", "bob"], ["bob", "eve"], ["ada", "bob", "eve"])


@dataclass(frozen=True)
class Record:
    """One record as it is handed in; few values, so that equal rows are frequent."""

    x: tuple[float, float]
    y: int
    who: int
    id: int

    @property
    def people(self) -> list[str]:
        group = GROUPS[self.who]
        return [group] if isinstance(group, str) else group or []


@dataclass(frozen=True)
class Step:
    """What one request of a history does; parts that a request does not need are not looked at."""

    kind: str
    task: int
    records: tuple[Record, ...]
    temporary: bool
    until: str | None
    with_ids: bool


RECORDS = st.lists(
    st.builds(
        Record,
        st.tuples(st.sampled_from([0.0, 0.5, -0.25]), st.sampled_from([0.0, 1.0])),
        st.integers(0, 2),
        st.integers(0, len(GROUPS) - 1),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda record: record.id,
).map(tuple)
KINDS = ("learn", "learn", "add", "add", "keep", "relearn", "expire")
FORGETS = ("person", "person in a task", "label", "records", "task")
STEPS = st.builds(
    Step,
    st.sampled_from([*KINDS, *FORGETS]),
    st.integers(0, len(TASKS) - 1),
    RECORDS,
    st.booleans(),
    st.sampled_from([None, PAST, FUTURE]),
    st.booleans(),
)


@dataclass
class Held:
    """A task as it should be: what was learned and not forgotten, with or without ids."""

    temporary: bool
    until: str | None
    records: list[tuple[Record, bool]] = field(default_factory=list)


class Model:
    """What should be in a store; it knows only what requests mean."""

    def __init__(self) -> None:
        self.tasks: dict[str, Held] = {}

    def drop(self, gone: Callable[[str, Record, bool], bool]) -> bool:
        """Forget records; whether there were any."""
        count = sum(len(task.records) for task in self.tasks.values())
        for name, task in self.tasks.items():
            task.records = [(r, with_id) for r, with_id in task.records if not gone(name, r, with_id)]
        self.tasks = {name: task for name, task in self.tasks.items() if task.records}
        return sum(len(task.records) for task in self.tasks.values()) < count


def data(records: list[tuple[Record, bool]], with_ids: bool) -> dict[str, Any]:
    chosen = [record for record, has_id in records if has_id == with_ids]
    about = {"x": [r.x for r in chosen], "y": [r.y for r in chosen], "people": [r.people for r in chosen]}
    return {**about, "records": [f"r{r.id}" for r in chosen]} if with_ids else about


def act(agent: DurableAgent, model: Model, step: Step) -> bool:
    """Carry out one step on both, if it is legal; whether something was forgotten."""
    task = TASKS[step.task]
    held, first = model.tasks.get(task), step.records[0]
    new = [(record, step.with_ids) for record in step.records]
    if step.kind == "learn" and held is None:
        until = step.until if step.temporary else None
        agent.learn(task, **data(new, step.with_ids), temporary=step.temporary, until=until)
        model.tasks[task] = Held(step.temporary, until, new)
    elif step.kind == "relearn" and held is not None:
        agent.relearn(task, **data(new, step.with_ids))
        model.tasks[task] = Held(held.temporary, held.until, new)
        return True
    elif step.kind == "add" and held is not None:
        known = {record.id for record, with_id in held.records if with_id}
        new = [(record, with_id) for record, with_id in new if not with_id or record.id not in known]
        if new:
            agent.add(task, **data(new, step.with_ids))
            held.records += new
    elif step.kind == "keep" and held is not None:
        agent.keep(task)
        held.temporary, held.until = False, None
    elif step.kind == "person":
        (person,) = random.Random(first.id).sample(["ada", "bob", "eve"], 1)
        if model.drop(lambda _, record, __: person in record.people):
            agent.forget(person=person)
            return True
    elif step.kind == "person in a task":
        (person,) = random.Random(first.id).sample(["ada", "bob", "eve"], 1)
        if model.drop(lambda name, record, _: name == task and person in record.people):
            agent.forget(task, person=person)
            return True
    elif step.kind == "label":
        if model.drop(lambda name, record, _: name == task and record.y == first.y):
            agent.forget(task, labels=[first.y])
            return True
    elif step.kind == "records" and held is not None:
        named = {record.id for record, with_id in held.records if with_id} & {record.id for record in step.records}
        if model.drop(lambda name, record, with_id: name == task and with_id and record.id in named):
            agent.forget(task, records=[f"r{one}" for one in sorted(named)])
            return True
    elif step.kind == "task" and held is not None:
        model.drop(lambda name, _, __: name == task)
        agent.forget(task)
        return True
    return False


def never_saw(path: Path, keys: Path, model: Model, luck: random.Random) -> None:
    """Teach a fresh store what the model holds, and nothing else, in any order."""
    with open_store(path, keys=keys) as agent:
        for name, held in sorted(model.tasks.items(), key=lambda _: luck.random()):
            luck.shuffle(held.records)
            options: dict[str, Any] = {"temporary": held.temporary, "until": held.until}
            for with_ids in {with_id for _, with_id in held.records}:
                if name in agent.tasks:
                    agent.add(name, **data(held.records, with_ids))
                else:
                    agent.learn(name, **data(held.records, with_ids), **options)


@contextmanager
def watched(store: Path) -> Iterator[set[tuple[str, bytes]]]:
    """Every file that is in the folder at any moment of the block, by its path in it and its content."""
    seen: set[tuple[str, bytes]] = set()
    original = Files.call

    def look() -> None:
        files = (path for path in store.rglob("*") if path.is_file())
        seen.update((str(path.relative_to(store)), path.read_bytes()) for path in files)

    def call(self: Files, operation: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        result = original(self, operation, function, *args, **options)
        if operation == "fsync" and self.path == store:  # what is renamed was flushed before
            look()
        return result

    look()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "call", call)
        yield seen


def readable(store: Path, keys: Path, seen: set[tuple[str, bytes]]) -> tuple[set[bytes], set[bytes]]:
    """What the files that were ever there say to one who has today's keys: leaves, and permanent files."""
    leaves, permanent = set(), set()
    with Folder(store, Access(keys)) as opened:
        secrets = opened.secrets
        today = [unwrap(secrets, name, entry) for name, entry in opened.keyring.scan({}).items()]
    for path, content in seen:
        folder, name = path.split("/")[0], path.rpartition("/")[2].removesuffix(PART)
        if folder == "leaves":
            for key in today:
                try:
                    framed = AESGCM(key).decrypt(content[:NONCE], content[NONCE:], f"leaf {name}".encode())
                    leaves.add(framed[8 : 8 + int.from_bytes(framed[:8], "little")])
                except InvalidTag:
                    continue
        elif folder == "permanent" or name == "root":
            try:
                label = "root" if name == "root" else f"permanent {name}"
                permanent.add(open_permanent(secrets, label, content))
            except BadStore:
                continue
    return leaves, permanent


def held_now(store: Path, keys: Path) -> set[bytes]:
    """What the leaves of a store hold."""
    with Folder(store, Access(keys)) as opened:
        opened.load()
        view = opened.view()
        paths = {name: f"leaves/{name[:2]}/{name}" for name in view.keys}
        return {opened.unsealed(p, n, (store / p).read_bytes(), view.keys) for n, p in paths.items()}


@pytest.fixture(scope="module")
def empty_ridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ridge")
    create(folder / "store", "ridge", "base:raw", keys=folder / "keys").close()
    return folder


def check_history(empty: Path, steps: list[Step], reopen: bool) -> int:
    """Carry out a history; after each forget, look at the folder and attack it. How many forgets there were."""
    forgets = 0
    with TemporaryDirectory() as place:
        store, keys = clone_apart(empty, Path(place) / "past")
        model, luck = Model(), random.Random(0)
        agent = open_store(store, keys=keys)
        with watched(store) as seen:
            for number, step in enumerate(steps):
                if step.kind == "expire":
                    agent.close()
                    due = {name for name, held in model.tasks.items() if held.until == PAST}
                    done = CliRunner().invoke(app, ["expire", str(store), "--keys", str(keys)])
                    assert done.exit_code == 0, done.output
                    forgot = model.drop(lambda name, _, __, due=due: name in due)  # type: ignore[misc]
                else:
                    forgot = act(agent, model, step)
                if reopen or step.kind == "expire":
                    agent.close()
                    agent = open_store(store, keys=keys)
                if forgot:
                    forgets += 1
                    never, never_keys = clone_apart(empty, Path(place) / str(number))
                    never_saw(never, never_keys, model, luck)
                    assert picture_without_secrets(store, keys) == picture_without_secrets(never, never_keys)
                    leaves, permanent = readable(store, keys, seen)
                    more = leaves - held_now(never, never_keys)
                    assert len(more) == 0, "an old copy says more than a store that never saw it"
                    assert len(permanent) <= 1, "the root says what the agent is, and never changes"
        agent.close()
    return forgets


def steps(*texts: str) -> list[Step]:
    """Steps by kind and task, with the same two records about ada, and about bob and eve, with ids."""
    both = (Record((0.5, 1.0), 0, 1, 1), Record((0.0, 0.0), 1, 5, 2))
    return [
        Step(kind.replace("-", " "), int(task), both, until is not None, until or None, True)
        for kind, task, until in ((*text.split(), None, None)[:3] for text in texts)
    ]


QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
HISTORIES = st.lists(STEPS, min_size=3, max_size=10)


@settings(max_examples=25, deadline=None, suppress_health_check=QUIET)
@given(history=HISTORIES, reopen=st.booleans())
@example(history=steps("learn 0", "learn 1", "add 2", "learn 2", "person 0", "add 0", "label 0"), reopen=False)
@example(history=steps("learn 0 2001-02-03", "learn 1 2901-02-03", "keep 1", "expire 0", "relearn 1"), reopen=False)
@example(history=steps("learn 0", "records 0", "learn 0", "person-in-a-task 0", "task 0"), reopen=True)
def test_after_any_history_with_people_a_forget_leaves_nothing_behind(
    empty_ridge: Path, history: list[Step], reopen: bool
) -> None:
    check_history(empty_ridge, history, reopen)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=QUIET)
@given(history=st.lists(STEPS, min_size=3, max_size=30), reopen=st.booleans())
def test_after_long_histories_with_people_a_forget_leaves_nothing_behind(
    empty_ridge: Path, history: list[Step], reopen: bool
) -> None:
    check_history(empty_ridge, history, reopen)


def test_the_examples_forget_something(empty_ridge: Path) -> None:
    history = steps("learn 0", "learn 1", "learn 2", "person 0", "add 0", "label 0", "records 1", "task 2")
    assert check_history(empty_ridge, history, False) == 4


def all_that_is_readable(empty: Path, place: Path, stream: Stream) -> tuple[set[bytes], set[bytes]]:
    """What all copies of a store's folder say, after a stream, to one who has the keys of its end."""
    store, keys = clone_apart(empty, place)
    with watched(store) as seen, open_store(store, keys=keys) as agent:
        for request in stream:
            handle(agent, str(request))
    leaves, permanent = readable(store, keys, seen)
    assert leaves <= held_now(store, keys)
    return leaves, permanent


@pytest.fixture(scope="module", params=["clpu-der++", "ind"])
def empty_apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apart")
    create(folder / "store", request.param, keys=folder / "keys", **small(request.param)).close()
    return folder


@settings(max_examples=8, deadline=None, suppress_health_check=QUIET)
@given(stream=streams())
@example(stream=Stream("aT bR cT aF cR dT dF"))
@example(stream=Stream("aT aF"))
def test_all_copies_together_say_what_those_of_the_counterfactual_say(empty_apart: Path, stream: Stream) -> None:
    """Files that are never forgotten are compared too: nothing in them tells, by difference, of what came and went."""
    with TemporaryDirectory() as place:
        past = all_that_is_readable(empty_apart, Path(place) / "a", stream)
        never = all_that_is_readable(empty_apart, Path(place) / "b", stream.counterfactual())
        assert len(past[0] ^ never[0]) == 0
        assert len(past[1] ^ never[1]) == 0
