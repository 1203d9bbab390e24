"""Streams, their counterfactuals, and what a request means for the active tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clpu
from clpu import AlreadyLearned, BadRequest, CannotForget, Request, Scope, Stream, UnknownTask
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


names = st.text(st.sampled_from("ab7@=#+, \\'\"äT"), min_size=1, max_size=6).filter(lambda name: name == name.strip())
labels = st.one_of(st.integers(-(10**18), 10**18), names.filter(lambda name: not name.lstrip("-").isdigit()))
scopes = st.builds(
    Scope,
    person=st.none() | names,
    labels=st.lists(labels, max_size=2),
    records=st.lists(names, max_size=2),
).filter(lambda scope: scope.some_records)


@given(names, st.sampled_from("RTA"), st.lists(scopes, max_size=3))
def test_a_request_that_leaves_records_out_survives_its_text(task, letter, parts):
    request = Request(task, Instruction(letter), tuple(parts))
    assert Request.parse(str(request)) == request


@given(st.none() | names, scopes)
def test_a_request_to_forget_records_survives_its_text(task, scope):
    if task is None and not scope.person:
        return
    request = Request(task or "", Instruction.FORGET, (scope,))
    assert Request.parse(str(request)) == request
    assert Request.forgetting(request.scope) == request


@pytest.mark.parametrize("text", ["@F", "=7F", "#1F", "1@a@bF", "1@a+F", "1+@aF", "1@a+=7F", "@aR", "@aA", "1=F"])
def test_what_names_no_records_is_refused(text):
    with pytest.raises(BadRequest):
        Request.parse(text)


def test_people_need_a_method_that_forgets_records():
    for forgets in ("nothing", "temporary", "tasks"):
        with pytest.raises(CannotForget, match="learning the task again without them"):
            meaning(Request.parse("1@annF"), {"1": "T"}, forgets)
        with pytest.raises(BadRequest, match="cannot add"):
            meaning(Request.parse("1A"), {"1": "T"}, forgets)
    assert meaning(Request.parse("@annF"), {"1": "R"}, "records") == "forget"
    with pytest.raises(UnknownTask):
        meaning(Request.parse("2@annF"), {"1": "R"}, "records")


def test_a_counterfactual_leaves_out_what_was_there_before_the_forget_only():
    stream = Stream("1R 1A @annF 1A 2T 2=7F 2F 1=7F")
    assert str(stream.counterfactual(3)) == "1@annR 1@annA"
    assert str(stream.counterfactual(6)) == "1@annR 1@annA 1A 2=7T"
    assert str(stream.counterfactual()) == "1@ann+=7R 1@ann+=7A 1=7A"


def test_a_scope_covers_records_that_match_all_of_it():
    scope = Scope("mail", person=17, labels=[1])
    assert scope.covers(1, ["17"])
    assert not scope.covers(1, ["18"])
    assert not scope.covers(2, ["17"])
    assert not scope.covers(True, ["17"]), "True is a different label"
