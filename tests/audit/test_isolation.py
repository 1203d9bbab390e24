"""A function in a process of its own: it answers, reports and fails as it would here, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from clpu.errors import BadRun, Diverged
from clpu.isolation import run_isolated

LEFT = []


def test_what_a_function_leaves_in_memory_is_gone_and_what_it_returns_and_tells_arrives():
    told = []

    def function(tell):
        LEFT.append(1)
        tell("so far", [1, 2])
        return {"left": len(LEFT)}

    assert run_isolated(function, lambda *message: told.append(message)) == {"left": 1}
    assert run_isolated(function) == {"left": 1}
    assert (LEFT, told) == ([], [("so far", [1, 2])])


def test_errors_of_ours_arrive_as_they_are_and_others_with_their_traceback():
    def refuse(tell):
        raise Diverged("try a lower lr")

    with pytest.raises(Diverged, match="try a lower lr"):
        run_isolated(refuse)
    with pytest.raises(BadRun, match=r"(?s)Traceback.*ZeroDivisionError"):
        run_isolated(lambda tell: 1 / 0)


def test_a_process_that_is_killed_is_an_error():
    with pytest.raises(BadRun, match="SIGKILL; was there enough memory"):
        run_isolated(lambda tell: os.kill(os.getpid(), signal.SIGKILL))


def test_an_interrupt_ends_the_process(tmp_path):
    def function(tell):
        tell(os.getpid())
        time.sleep(60)

    def interrupt(number):
        (tmp_path / "number").write_text(str(number))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_isolated(function, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)


def program(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_several_threads_can_be_used_there_although_they_were_used_here():
    """OpenMP would wait for ever for threads that a copy of a process does not have."""
    code = """
import torch
from clpu.isolation import run_isolated
torch.set_num_threads(2)
def function(tell):
    torch.set_num_threads(2)
    x = torch.ones(800, 800)
    return float((x @ x).sum())
here = function(None)
assert run_isolated(function) == here
"""
    out, err = program(code).communicate(timeout=60)
    assert (out, err) == ("", "")


def test_what_is_printed_is_printed_once():
    code = "from clpu.isolation import run_isolated; print('a', end=''); run_isolated(lambda tell: print('b', end=''))"
    assert program(code).communicate(timeout=60) == ("ab", "")


def test_the_process_ends_when_the_one_that_started_it_was_killed():
    code = """
import os, time
from clpu.isolation import run_isolated
def function(tell):
    tell(os.getpid())
    while True:
        time.sleep(0.05)
        tell(0)
run_isolated(function, lambda number: print(number, flush=True))
"""
    original = program(code)
    original.stdout.readline()
    original.kill()
    # Its output ends when no process has it open any more.
    assert original.communicate(timeout=60)[1] == ""
