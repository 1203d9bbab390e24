"""Streams, their counterfactuals, and what a request means for the active tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clpu
from clpu import AlreadyLearned, BadRequest, CannotForget, Request, Stream, UnknownTask
from clpu.requests import Instruction, meaning
from clpu.testing import TINY, run_stream
from strategies import streams


def naive_counterfactual(stream):
    """Go through the stream and, at each forget, strike out every earlier request of that task."""
    kept = []
    for request in stream:
        if request.instruction is Instruction.FORGET:
            kept = [r for r in kept if r.task != request.task]
        else:
            kept.append(request)
    return Stream(kept)


@given(streams())
def test_counterfactual_strikes_out_forgotten_tasks(stream):
    for count in range(len(stream) + 1):
        assert stream.counterfactual(count) == naive_counterfactual(stream[:count])
    assert stream.counterfactual().forgets == []


@given(streams())
def test_a_stream_survives_its_text(stream):
    assert Stream(str(stream)) == stream
    assert eval(repr(stream), {"Stream": Stream}) == stream


def test_names_with_spaces_and_quotes_survive_the_text():
    stream = Stream([Request("my task's", Instruction.TEMPORARY), Request("Ärztin / 7", Instruction.REMEMBER)])
    assert Stream(str(stream)) == stream


def test_the_papers_streams_and_their_counterfactuals():
    assert str(Stream("clpu-2022").counterfactual()) == "1R 2T 4R 2R"
    assert str(Stream("clpu-2022-as-printed").counterfactual()) == "1R 3T 4R 1R"
    for name in ("clpu-2022", "clpu-2022-as-printed"):
        first, second = (Stream(name).counterfactual(f) for f in Stream(name).forgets)
        assert first == second


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("1R 2X", BadRequest, "'X'"),
        ("1R T", BadRequest, "names no task"),
        ("1r", BadRequest, "'r'"),
        ("'1R", BadRequest, "quotation"),
        ("1F", UnknownTask, "request 1"),
        ("1T 1T", AlreadyLearned, "request 2"),
        ("1R 1T", AlreadyLearned, "request 2"),
        ("1T 1F 1F", UnknownTask, "request 3"),
    ],
)
def test_an_illegal_stream_is_refused_with_its_place(text, error, says):
    with pytest.raises(error, match=says):
        Stream(text)


@pytest.mark.parametrize(("text", "says"), [("1R 1F", "request 2"), ("1T 1R 1F", "request 3")])
def test_forgetting_a_permanent_task_is_legal_for_methods_that_forget_any_task_only(text, says):
    for forgets in ("tasks", "records"):
        assert Stream(text).check(forgets) == Stream(text)
    for forgets in ("nothing", "temporary"):
        with pytest.raises(CannotForget, match=says):
            Stream(text).check(forgets)


@given(streams())
def test_what_is_legal_for_temporary_tasks_is_legal_for_all_methods(stream):
    for forgets in ("nothing", "temporary", "tasks", "records"):
        assert stream.check(forgets) == stream


@given(streams(forgets="tasks"))
def test_a_stream_is_refused_just_where_it_first_forgets_a_permanent_task(stream):
    status = {}
    for number, request in enumerate(stream, 1):
        if request.instruction is Instruction.FORGET and status[request.task] == "R":
            with pytest.raises(CannotForget, match=rf"request {number} "):
                stream.check("temporary")
            return
        status[request.task] = request.instruction.value
    stream.check("temporary")


@given(st.text(max_size=20))
def test_any_text_is_a_stream_or_a_typed_error(text):
    try:
        stream = Stream(text)
    except clpu.Error:
        return
    assert Stream(str(stream)) == stream


def test_remembering_again_is_legal_and_does_nothing():
    assert meaning(Request.parse("1R"), {"1": "R"}) == "nothing"
    assert str(Stream("1R 1R 1R")) == "1R 1R 1R"


@pytest.mark.parametrize(
    ("request_text", "active", "means"),
    [
        ("1R", {}, "learn"),
        ("1T", {"2": "R"}, "learn"),
        ("1R", {"1": "T"}, "keep"),
        ("1R", {"1": "R"}, "nothing"),
        ("1F", {"1": "T"}, "forget"),
        ("1F", {"1": "R"}, "forget"),
        ("1F", {"2": "T"}, UnknownTask),
        ("1T", {"1": "T"}, AlreadyLearned),
        ("1T", {"1": "R"}, AlreadyLearned),
    ],
)
def test_what_a_request_means_depends_on_the_active_tasks(request_text, active, means):
    if isinstance(means, str):
        assert meaning(Request.parse(request_text), active) == means
    else:
        with pytest.raises(means):
            meaning(Request.parse(request_text), active)


def test_the_order_of_learning_is_not_kept():
    one, other = (run_stream(text, "ind", **TINY) for text in ("3T 1T 2T 1R 3F", "2T 1R"))
    assert list(one.tasks.items()) == list(other.tasks.items()) == [("1", "R"), ("2", "T")]
    assert one.state().remembered == ["1"]
    assert one.state().temporary == ["2"]
    assert one.digest() == other.digest()


@pytest.mark.parametrize("name", ["", " ", "a ", "x" * 101, "a\nb", "a\x00b", "\ud800", "\u202eevil", 3, None, b"x"])
def test_unsuitable_names_are_refused(name):
    with pytest.raises(BadRequest):
        Request(name, Instruction.REMEMBER)


@pytest.mark.parametrize("after", [-1, 9])
def test_a_counterfactual_beyond_the_stream_is_refused(after):
    with pytest.raises(BadRequest, match="8 requests"):
        Stream("clpu-2022").counterfactual(after)
