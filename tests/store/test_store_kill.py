"""kill -9 at random moments: the store opens, is whole, and is the old or the new state."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import ABOUT_PEOPLE, CHANGING, SETTINGS, clone, handle, injected, picture_without_secrets, store_of_people

from clpu import Agent
from clpu.store import open as open_store
from clpu.store import verify


class Victim:
    """The process in `victim.py`."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        script = Path(__file__).parent / "victim.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def handle(self, store: Path, request: str, delay: float, after: int | None, changing: bool = False) -> bool:
        """Let a child handle a request and kill it, or let it kill itself; whether the request had returned."""
        self._say(json.dumps({"store": str(store), "request": request, "after": after, "changing": changing}))
        number = int(self._line())
        if after is None:
            time.sleep(delay)
            os.kill(number, signal.SIGKILL)
        self._say("bury")
        done = False
        while (line := self._line()) != "buried":
            done |= line == "done"
        return done

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    victim = Victim()
    yield victim
    victim.close()


def harass(victim: Victim, template: Path, place: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill so many requests, one after the other, on stores that live for twelve each."""
    luck = random.Random(seed)
    counts = {"old": 0, "new": 0, "returned": 0}
    for kill in range(kills):
        if kill % 12 == 0:
            store = clone(template, place / str(kill))
            twin = Agent(**SETTINGS)
            forgotten: set[str] = set()
        temporary = [task for task, status in twin.tasks.items() if status == "T"]
        choices = [
            f"n{kill}T",
            f"n{kill}T",
            f"n{kill}R",
            *(f"{task}{letter}" for task in temporary for letter in "FFR"),
        ]
        request = luck.choice(choices)
        after = None if luck.random() < 0.4 else luck.randrange(90)
        delay = luck.uniform(0, 0.12)
        old, changed = twin.digest(), twin.copy()
        handle(changed, request)
        returned = victim.handle(store, request, delay, after)
        with open_store(store) as agent:
            digest = agent.digest()
            assert digest in (old, changed.digest()), request
            assert not forgotten & agent.tasks.keys()
        report = verify(store)
        assert report.good
        assert not report.notes
        new = digest == changed.digest()
        assert new or not returned, f"{request} had returned"
        if new:
            twin = changed
            if request.endswith("F"):
                forgotten.add(request[:-1])
        counts["new" if new else "old"] += 1
        counts["returned"] += returned
    return counts


def test_thirty_kills(victim: Victim, empty_store: Path, tmp_path: Path) -> None:
    counts = harass(victim, empty_store, tmp_path, 30, seed=1)
    assert counts["old"], counts
    assert counts["new"], counts


@pytest.mark.slow
def test_three_hundred_kills(victim: Victim, empty_store: Path, tmp_path: Path) -> None:
    counts = harass(victim, empty_store, tmp_path, 300, seed=2)
    assert counts["old"] > 50, counts
    assert counts["new"] > 50, counts


class Requested:
    """A request to a store of people: what the store holds before and after it, and how often it changes the disk."""

    def __init__(self, people: Path, place: Path, name: str) -> None:
        self.people, self.place, self.name, self.tried = people, place, name, 0
        with open_store(clone(people, place / "whole")) as agent:
            self.digests = {agent.digest(): "old"}
            with injected() as injector:
                ABOUT_PEOPLE[name](agent)
            self.digests[agent.digest()] = "new"
        self.changes = sum(operation in CHANGING for operation in injector.calls)
        self.pictures = {"old": picture_without_secrets(people), "new": picture_without_secrets(place / "whole")}

    def killed(self, victim: Victim, after: int | None, delay: float = 0.0) -> tuple[str, bool]:
        """Kill the request; what the store holds then, and whether the request had returned."""
        self.tried += 1
        store = clone(self.people, self.place / str(self.tried))
        returned = victim.handle(store, self.name, delay, after, changing=True)
        with open_store(store, read_only=True) as reader:
            seen = self.digests[reader.digest()]
        with open_store(store) as agent:
            found = self.digests[agent.digest()]
        assert seen == found, "a reader sees what the next writer makes of it"
        assert picture_without_secrets(store) == self.pictures[found]
        assert verify(store).good
        assert found == "new" or not returned
        shutil.rmtree(store)
        return found, returned


@pytest.mark.parametrize("name", ABOUT_PEOPLE)
def test_a_kill_within_a_request_about_many_people_leaves_all_or_nothing(
    victim: Victim, tmp_path: Path, name: str
) -> None:
    """SIGKILL at some of the calls that change the disk, the first among them, and after the last."""
    request = Requested(store_of_people(tmp_path / "people", 8), tmp_path, name)
    assert request.killed(victim, 0) == ("old", False)
    found = [request.killed(victim, at)[0] for at in range(3, request.changes, request.changes // 4)]
    assert found == sorted(found, reverse=True), "once a request is in, no later kill takes it out"
    # How many folders a request makes is chance, so that the last change may be a few more away.
    assert request.killed(victim, request.changes + 200) == ("new", True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ABOUT_PEOPLE)
def test_a_kill_at_every_change_and_at_random_moments_leaves_all_or_nothing(
    victim: Victim, tmp_path: Path, name: str
) -> None:
    request, luck = Requested(store_of_people(tmp_path / "people", 12), tmp_path, name), random.Random(3)
    found = [request.killed(victim, at)[0] for at in range(request.changes)]
    assert set(found) == {"old", "new"}
    for _ in range(60):
        request.killed(victim, None, luck.uniform(0, 0.3))
