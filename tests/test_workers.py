"""Workers share the work of a request: the same bits for any number of them, in any order, and if some are killed."""

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import clpu
from clpu.bases.base import Base, OneAtATime
from clpu.methods import ridge
from clpu.state import Records
from clpu.workers import Workers

PEOPLE = [f"p{i % 7}" for i in range(60)]


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 12)).astype(np.float32), np.arange(60) % 3


def result(workers, network="base:random", **options):
    """The digest and the answers of an agent that learns, is asked, forgets and is asked again."""
    x, y = data()
    agent = clpu.Agent("ridge", network, workers=workers, **options)
    agent.learn("1", x[:50], y[:50], people=PEOPLE[:50], holdout=0.1)
    agent.add("1", x[50:], y[50:], people=PEOPLE[50:])
    before = agent.predict("1", x[:8]).tobytes()
    agent.forget(person="p3")
    return agent.digest(), before, agent.predict("1", x[:8]).tobytes()


def make_pieces_small(patch):
    """Let a few data make many pieces."""
    patch.setattr(Base, "at_once", 9)
    patch.setattr(OneAtATime, "at_once", 9)
    patch.setattr(ridge, "ROWS_PER_WORKER", 13)


@pytest.fixture
def small_pieces(monkeypatch):
    make_pieces_small(monkeypatch)


@dataclass(frozen=True)
class InThisProcess(Workers):
    """Does all pieces here, in an order that it is told; what goes in and out is pickled as for a process."""

    order: tuple[float, ...] = ()

    def map(self, work, setup, pieces, *, alike=False):
        numbers = sorted(range(len(pieces)), key=lambda number: self.order[number % len(self.order)])
        for number in numbers:
            given = pickle.loads(pickle.dumps((setup, pieces[number])))
            yield number, pickle.loads(pickle.dumps(work(*given)))


@given(st.permutations(range(9)), st.sampled_from(["base:random", "base:raw"]))
@settings(max_examples=10)
def test_the_order_in_which_pieces_are_done_changes_no_bit(order, network):
    with pytest.MonkeyPatch.context() as patch:
        alone = result(1, network)
        make_pieces_small(patch)
        assert result(InThisProcess(2, order=tuple(order)), network) == alone


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 40))
def test_records_in_pieces_are_all_the_records_once(counts, size):
    rows = iter(range(1000))
    parts = [
        Records(np.array([[next(rows) % 100] for _ in range(n)], dtype=np.int8), np.zeros(n, dtype=np.int32), ("a",))
        for n in counts
    ]
    pieces = ridge.in_pieces(parts, size)
    assert [len(np.concatenate([part.rows for part in piece])) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    together = np.concatenate([part.rows for piece in pieces for part in piece])
    assert np.array_equal(together, np.concatenate([part.rows for part in parts]))


class Fatal(nn.Module):
    """A float network whose products depend on the size of a batch; ends a process that is not the first, once."""

    def __init__(self, flag):
        super().__init__()
        self.first, self.second = nn.Linear(12, 300), nn.Linear(300, 40)
        self.flag, self.parent = str(flag), os.getpid()

    def forward(self, x):
        if os.getpid() != self.parent and not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.second(torch.tanh(self.first(x)))


@pytest.fixture
def fatal(tmp_path):
    torch.manual_seed(0)
    return Fatal(tmp_path / "killed")


def test_two_workers_one_of_them_killed_give_the_bits_of_none(small_pieces, fatal, tmp_path, monkeypatch):
    alone = result(1, fatal)
    assert not Path(fatal.flag).exists()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    assert result(2, fatal) == alone
    assert Path(fatal.flag).exists(), "no worker was killed"
    assert [*scratch.iterdir()] == [], "workers left files"


def test_a_module_that_cannot_be_sent_is_refused(small_pieces):
    class Local(nn.Linear):
        pass

    x, y = data()
    with pytest.raises(clpu.WorkerFailed, match="cannot be sent"):
        clpu.Agent("ridge", Local(12, 4), workers=2).learn("1", x, y)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("network", ["base:random", "base:raw"])
def test_any_number_of_workers_gives_the_bits_of_none(small_pieces, network, count):
    assert result(count, network) == result(1, network)


@pytest.fixture
def by_value():
    """This module is sent to Ray's workers, which could not import it."""
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield ray
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.ray
def test_a_cluster_that_is_started_for_a_request_ends_with_it(by_value):
    ray = by_value
    assert not ray.is_initialized()
    assert dict(Workers(2, "ray").map(slowest_first, 0.01, [0, 1, 2])) == {0: 0, 1: 10, 2: 20}
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.parametrize("count", [2, 4])
def test_a_cluster_gives_the_bits_of_one_process(cluster, small_pieces, count):
    assert result(Workers(count, "ray")) == result(1)


@pytest.mark.ray
@pytest.mark.parametrize("count", [2, 4])
def test_a_cluster_one_of_whose_workers_is_killed_gives_the_same_bits(cluster, by_value, small_pieces, fatal, count):
    alone = result(1, fatal)
    assert result(Workers(count, "ray"), fatal) == alone
    assert Path(fatal.flag).exists(), "no worker was killed"


@pytest.mark.ray
def test_errors_of_workers_on_a_cluster_are_raised_here(cluster, by_value):
    with pytest.raises(clpu.BadData, match="piece 1 is bad"):
        list(Workers(2, "ray").map(refuse_the_second, None, [0, 1]))
    with pytest.raises(clpu.WorkerFailed, match="cluster"):
        list(Workers(2, "ray").map(die, None, [0, 1]))


def slowest_first(pause, piece):
    time.sleep(pause * (3 - piece))
    return piece * 10


def refuse_the_second(_, piece):
    if piece == 1:
        raise clpu.BadData("piece 1 is bad")
    return piece


def fail(_, piece):
    raise ZeroDivisionError("no such luck")


def die(_, piece):
    os._exit(3)


def test_results_come_as_they_are_done_with_the_number_of_their_piece():
    assert dict(Workers(2).map(slowest_first, 0.01, [0, 1, 2])) == {0: 0, 1: 10, 2: 20}


def test_errors_of_workers_are_raised_in_the_process_that_asked():
    with pytest.raises(clpu.BadData, match="piece 1 is bad"):
        list(Workers(2).map(refuse_the_second, None, [0, 1, 2]))
    with pytest.raises(clpu.WorkerFailed, match="no such luck"):
        list(Workers(1).map(fail, None, [0]))


def test_workers_that_die_again_and_again_are_given_up(monkeypatch):
    monkeypatch.setattr("clpu.workers.processes.RETRIES", 1)
    with pytest.raises(clpu.WorkerFailed, match="code 3, 2 times"):
        list(Workers(1).map(die, None, [0]))


def test_a_request_whose_workers_fail_changes_nothing(small_pieces, monkeypatch):
    def broken(self, *arguments, **options):
        raise clpu.WorkerFailed("all dead")

    x, y = data()
    agent = clpu.Agent("ridge", workers=2)
    before = agent.digest()
    monkeypatch.setattr(Workers, "map", broken)
    with pytest.raises(clpu.WorkerFailed):
        agent.learn("1", x, y)
    assert agent.digest() == before


def test_machines_that_compute_differently_are_refused_for_floats_only(monkeypatch):
    def answers(workers, work, setup, pieces):
        return ((number, ("done", f"machine {number}", number)) for number in range(len(pieces)))

    monkeypatch.setattr("clpu.workers.processes.answers", answers)
    assert dict(Workers(2).map(fail, None, "ab")) == {0: 0, 1: 1}
    with pytest.raises(clpu.WorkerFailed, match="compute floats differently"):
        list(Workers(2).map(fail, None, "ab", alike=True))


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "2", None, 10**6])
def test_a_bad_number_of_workers_is_refused(bad):
    with pytest.raises(clpu.BadSetting, match="workers must be an integer"):
        clpu.Agent(workers=bad)


def test_bad_engines_and_addresses_are_refused():
    with pytest.raises(clpu.BadSetting, match="local or ray"):
        Workers(2, "spark")
    with pytest.raises(clpu.BadSetting, match="goes with the engine ray"):
        Workers(2, address="auto")


def test_ray_is_not_imported_unless_asked_for():
    program = "import sys, clpu; clpu.Agent('ridge', workers=4); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
