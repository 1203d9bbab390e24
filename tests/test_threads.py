"""Requests are computed with the agent's own number of threads, and nobody else's number changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clpu
from clpu import threads
from clpu.networks.network import Network
from clpu.testing import make_task

#: Wide enough for torch to divide the work among threads, and then to add in a different order.
WIDE: dict[str, Any] = {"hidden": (256,), "epochs": 2, "batch_size": 256, "lr": 0.1}


def wide_data() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    return source.normal(size=(2048, 784)).astype(np.float32), source.integers(0, 10, 2048)


@pytest.fixture(params=["libraries", "torch alone"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways of setting a count; counts of this thread and of new ones that differ from each other and from 1."""
    if request.param == "torch alone":
        monkeypatch.setattr(threads, "_library", lambda: None)
    elif threads._library() is None:
        pytest.skip("this build of torch does not export the functions")
    here, new = torch.get_num_threads(), in_new_thread(torch.get_num_threads)
    torch.set_num_threads(2)
    in_new_thread(lambda: torch.set_num_threads(3))
    yield
    torch.set_num_threads(here)
    in_new_thread(lambda: torch.set_num_threads(new))


both_ways = pytest.mark.usefixtures("_way")


def in_new_thread(function: Callable[[], Any]) -> Any:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(function()))
    thread.start()
    thread.join()
    return got[0]


def counts() -> tuple[int, int]:
    """The count of this thread, and the one that a new thread gets."""
    return torch.get_num_threads(), in_new_thread(torch.get_num_threads)


def learn(agent: clpu.Agent, task: str = "1", **options: Any) -> None:
    agent.learn(task, *make_task(task)[:2], **options)


@both_ways
@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_a_request_is_computed_with_the_threads_that_the_agent_has(wanted: int) -> None:
    seen = []
    agent = clpu.Agent(hidden=(8,), epochs=1, threads=wanted)
    agent.progress = lambda step: seen.append(counts())
    learn(agent)
    assert set(seen) == {(wanted, 3)}  # and a thread that starts meanwhile gets what it would have got


@both_ways
def test_predictions_are_computed_with_the_threads_that_the_agent_has(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = clpu.Agent(hidden=(8,), epochs=1)
    learn(agent)
    seen = []
    evaluate = Network.evaluate
    monkeypatch.setattr(Network, "evaluate", lambda *args: (seen.append(torch.get_num_threads()), evaluate(*args))[1])
    agent.predict("1", make_task("1")[0])
    assert seen == [1]
    assert counts() == (2, 3)


@both_ways
def test_after_a_request_every_thread_has_the_count_that_it_had() -> None:
    learn(clpu.Agent(hidden=(8,), epochs=1))
    assert counts() == (2, 3)


@both_ways
def test_after_an_exception_every_thread_has_the_count_that_it_had() -> None:
    def stop(step: clpu.Progress) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        learn(clpu.Agent(hidden=(8,), epochs=1, progress=stop))
    assert counts() == (2, 3)


@both_ways
def test_after_two_agents_overlapped_every_thread_has_the_count_that_it_had() -> None:
    """The first begins, the second begins, the first ends, the second ends; then both threads are asked."""
    first_began, second_began, first_ended, second_is_old = (threading.Event() for _ in range(4))
    after: dict[str, int] = {}

    def first() -> None:
        def watch(step: clpu.Progress) -> None:
            first_began.set()
            assert second_began.wait(60)

        assert second_is_old.wait(60)
        learn(clpu.Agent(hidden=(8,), epochs=1, progress=watch))
        first_ended.set()
        after["first"] = torch.get_num_threads()

    def second() -> None:
        def watch(step: clpu.Progress) -> None:
            second_began.set()
            assert first_ended.wait(60)

        torch.get_num_threads()  # an old thread, with the count that new threads get
        second_is_old.set()
        assert first_began.wait(60)
        learn(clpu.Agent(hidden=(8,), epochs=1, threads=4, progress=watch))
        after["second"] = torch.get_num_threads()

    both = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert after == {"first": 3, "second": 3}
    assert counts() == (2, 3)


@both_ways
def test_the_digest_does_not_depend_on_the_threads_of_the_process() -> None:
    digests = set()
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        agent = clpu.Agent(**WIDE)
        agent.learn("1", *wide_data())
        digests.add(agent.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "2", None, 10**6])
def test_a_bad_number_of_threads_is_refused(bad: object) -> None:
    with pytest.raises(clpu.BadSetting, match="threads must be an integer"):
        clpu.Agent(threads=bad)  # type: ignore[arg-type]


PROGRAM = """
import sys; sys.path.insert(0, {folder!r})
from test_threads import WIDE, wide_data
import clpu
agent = clpu.Agent(**WIDE)
agent.learn("1", *wide_data())
print(agent.digest())
"""


def test_the_digest_does_not_depend_on_the_threads_in_the_environment() -> None:
    """In fresh processes, which read these variables when torch is imported."""
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    plain = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    settings = [{"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, {}]
    runs = [
        subprocess.Popen([sys.executable, "-c", program], env={**plain, **extra}, stdout=subprocess.PIPE, text=True)
        for extra in settings
    ]
    digests = [run.communicate()[0] for run in runs]
    assert len(set(digests)) == 1
    assert len(digests[0].strip()) == 64
