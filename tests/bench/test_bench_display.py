"""Progress for people and for logs."""

import io

import pytest
from rich.console import Console

from clpu.runs import display
from clpu.runs.display import Display
from clpu.runs.engine import Event
from clpu.runs.jobs import Job


def jobs():
    return [Job(m, "actual", "1R 2T 2F", (0, 1), "mlp", {}, (3,)) for m in ("seq", "er")]


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_a_job_and_for_long_jobs_one_now_and_then(clock):
    out = io.StringIO()
    with Display(jobs(), Console(file=out, width=200)) as shown:
        shown(Event("step", "seq--actual--0", 1, "learn", 50, 100))
        clock[0] += 5
        shown(Event("request", "seq--actual--0", 1))
        clock[0] += 31
        shown(Event("request", "seq--actual--0", 2))
        shown(Event("done", "seq--actual--0"))
        shown(Event("failed", "er--actual--0", reason="BadData: no"))
    lines = out.getvalue().splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "seq actual: request 2 of 3",
        "seq actual: done",
        "er actual: failed",
        "  BadData: no",
    ]
    assert "1 of 2 jobs" in lines[1]
    assert "about" in lines[1]
    assert "100%" in lines[2]


def test_a_long_request_says_in_a_log_how_many_steps_are_done(clock):
    out = io.StringIO()
    with Display(jobs(), Console(file=out, width=200)) as shown:
        shown(Event("step", "seq--actual--0", 1, "learn", 25, 1000))
        clock[0] += 31
        shown(Event("step", "seq--actual--0", 1, "learn", 500, 1000))
        shown(Event("step", "seq--actual--0", 1, "learn", 525, 1000))
    assert [line.split(" (")[0] for line in out.getvalue().splitlines()] == ["seq actual: 1R"]
    assert "(1 of 3), learn 500/1,000 steps" in out.getvalue()


def test_the_last_line_does_not_wonder_how_long_it_takes(clock):
    out = io.StringIO()
    with Display(jobs()[:1], Console(file=out, width=200)) as shown:
        shown(Event("done", "seq--actual--0"))
    assert "(1 of 1 jobs; 100%)" in out.getvalue()


def test_quiet_says_nothing(clock):
    out = io.StringIO()
    with Display(jobs(), Console(file=out), quiet=True) as shown:
        clock[0] += 100
        shown(Event("request", "seq--actual--0", 1))
        shown(Event("done", "seq--actual--0"))
    assert out.getvalue() == ""


def test_the_share_never_goes_back(clock):
    shown = Display(jobs(), Console(file=io.StringIO()))
    shares = []
    for event in [
        Event("step", "er--actual--0", 1, "learn", 100, 100),
        Event("step", "er--actual--0", 2, "warm-up", 100, 100),
        Event("step", "er--actual--0", 2, "learn", 1, 100),
        Event("request", "er--actual--0", 2),
        Event("done", "er--actual--0"),
    ]:
        shown(event)
        shares.append(shown.share)
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
