"""Streams, their counterfactuals and the ledger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clpu
from clpu import AlreadyLearned, BadRequest, CannotForgetRemembered, Request, Stream, UnknownTask
from clpu.requests import Entry, Instruction, Ledger
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
        ("1R 1F", CannotForgetRemembered, "request 2"),
        ("1T 1R 1F", CannotForgetRemembered, "request 3"),
        ("1T 1T", AlreadyLearned, "request 2"),
        ("1R 1T", AlreadyLearned, "request 2"),
        ("1T 1F 1F", UnknownTask, "request 3"),
    ],
)
def test_an_illegal_stream_is_refused_with_its_place(text, error, says):
    with pytest.raises(error, match=says):
        Stream(text)


@given(st.text(max_size=20))
def test_any_text_is_a_stream_or_a_typed_error(text):
    try:
        stream = Stream(text)
    except clpu.Error:
        return
    assert Stream(str(stream)) == stream


def test_remembering_again_is_legal_and_does_nothing():
    ledger = Ledger({"1": Entry(Instruction.REMEMBER)})
    assert ledger.admit(Request.parse("1R")) == "nothing"
    assert str(Stream("1R 1R 1R")) == "1R 1R 1R"


def test_the_ledger_keeps_the_order_of_learning():
    ledger = Ledger()
    for task in "312":
        ledger.learned(task, Entry(Instruction.TEMPORARY))
    ledger.kept("1")
    ledger.forgotten("3")
    assert list(ledger) == ["1", "2"]
    assert ledger.remembered == ["1"]
    assert ledger.temporary == ["2"]


@pytest.mark.parametrize("name", ["", " ", "a ", "x" * 101, "a\nb", "a\x00b", "\ud800", "\u202eevil", 3, None, b"x"])
def test_unsuitable_names_are_refused(name):
    with pytest.raises(BadRequest):
        Request(name, Instruction.REMEMBER)


@pytest.mark.parametrize("after", [-1, 9])
def test_a_counterfactual_beyond_the_stream_is_refused(after):
    with pytest.raises(BadRequest, match="8 requests"):
        Stream("clpu-2022").counterfactual(after)
