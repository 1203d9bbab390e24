"""Tables: columns by name, text without leaking, files of many forms, frames of other packages."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from clpu import Agent, BadData, BadState
from clpu.tables import WIDTH, bucket, encode, read_delimited
from clpu.testing import TINY, make_task

RNG = np.random.default_rng(0)
N = 120
COLOUR = RNG.choice(["red", "green", "blue"], N)
SIZE = RNG.normal(1000, 100, N)
TABLE = {"size": SIZE, "colour": COLOUR, "flag": SIZE > 1000}
Y = np.where((COLOUR == "red") | (SIZE > 1050), "yes", "no")


def learned(x=TABLE, y=Y, **options):
    agent = Agent("ind", hidden=(16,), lr=0.1, epochs=40)
    agent.learn("1", x, y, **options)
    return agent


def test_columns_are_matched_by_name():
    agent = learned()
    shuffled = {name: TABLE[name] for name in ("flag", "size", "colour")}
    assert learned(shuffled).digest() == agent.digest()
    assert (agent.predict("1", shuffled) == agent.predict("1", TABLE)).all()
    assert agent.accuracy("1", TABLE, Y) > 0.95
    assert agent.state().tasks["1"].facts["columns"] == [["colour", "text"], ["flag", "number"], ["size", "number"]]


def test_text_is_hashed_into_a_fixed_number_of_columns_without_other_rows():
    array, columns = encode(TABLE)
    assert array.shape == (N, WIDTH + 2)
    assert columns == [("colour", "text"), ("flag", "number"), ("size", "number")]
    one = encode({name: values[:1] for name, values in TABLE.items()}, columns)[0]
    assert (one == array[:1]).all()
    assert array[5, bucket("colour", COLOUR[5])] == 1
    assert array[5, :WIDTH].sum() == 1
    assert {bucket("c", str(i)) for i in range(200)} == set(range(WIDTH))


def test_a_text_that_was_never_seen_and_a_missing_one_have_an_answer():
    agent = learned()
    p = agent.predict("1", {"size": [1000.0, np.nan], "colour": ["mauve", None], "flag": [True, False]})
    assert np.isfinite(p).all()


def test_the_label_may_be_a_column_and_others_may_be_left_out():
    whole = {**TABLE, "answer": Y, "id": np.array([f"person {i}" for i in range(N)])}
    agent = learned(whole, "answer", ignore=["id"])
    assert agent.digest() == learned().digest()
    assert agent.accuracy("1", whole, "answer") > 0.95
    assert list(agent.classify("1", whole)) == list(agent.classify("1", TABLE))


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_are_taken_as_they_are(package):
    frames = pytest.importorskip(package)
    frame = frames.DataFrame({**{name: list(values) for name, values in TABLE.items()}, "answer": list(Y)})
    assert learned(frame, "answer").digest() == learned().digest()
    assert learned(frame[["colour", "flag", "size"]], frame["answer"]).digest() == learned().digest()


def test_categories_and_missing_values_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({**TABLE, "n": pandas.array([1, None] * (N // 2), dtype="Int64")})
    frame["colour"] = frame["colour"].astype("category")
    agent = learned(frame, pandas.Series(Y, dtype="category"))
    assert agent.labels("1") == ("no", "yes")
    assert np.isnan(encode(frame)[0][1, WIDTH + 1])


def test_a_loader_is_taken_as_its_data():
    x, y = make_task("x")
    data = TensorDataset(torch.tensor(x), torch.tensor(y))
    agents = [Agent("ind", **TINY) for _ in range(2)]
    agents[0].learn("1", DataLoader(data, batch_size=7, shuffle=True))
    agents[1].learn("1", x, y)
    assert agents[0].digest() == agents[1].digest()


DATES = np.array(["2026-11-18", "2026-11-19"] * (N // 2))
REFUSED = {
    "dates": ({**TABLE, "when": DATES.astype("datetime64[D]")}, "days since"),
    "dates as text": ({**TABLE, "when": DATES}, "days since"),
    "names": ({**TABLE, "who": np.array([f"p{i}" for i in range(N)])}, r"ignore=\['who'\]"),
    "lists": ({**TABLE, "odd": np.array([[1], [1, 2]] * (N // 2), dtype=object)}, "numbers, booleans or text"),
    "unequal columns": ({**TABLE, "odd": np.zeros(3)}, "same length"),
    "nothing": ({}, "no columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_learned_from_is_refused_with_advice(case):
    table, says = REFUSED[case]
    with pytest.raises(BadData, match=says):
        learned(table)


def test_other_columns_than_before_are_refused_by_name():
    agent = learned()
    before = agent.digest()
    with pytest.raises(BadData, match=r"missing: 'flag'; unexpected: 'extra'"):
        agent.learn("2", {"size": SIZE, "colour": COLOUR, "extra": SIZE}, Y)
    with pytest.raises(BadData, match="'size' was number and is text"):
        agent.learn("2", {**TABLE, "size": COLOUR}, Y)
    with pytest.raises(BadData, match="missing column 'colour'"):
        agent.predict("1", {"size": SIZE, "flag": SIZE > 0})
    with pytest.raises(BadData, match="named columns"):
        agent.predict("1", np.zeros((2, WIDTH + 2)))
    with pytest.raises(BadData, match="named columns"):
        agent.learn("2", np.zeros((4, WIDTH + 2)), [0, 1, 0, 1])
    with pytest.raises(BadData, match="no column 'price'"):
        agent.learn("2", TABLE, "price")
    arrays = Agent("ind", **TINY)
    arrays.learn("1", *make_task("1"))
    with pytest.raises(BadData, match="without column names"):
        arrays.predict("1", TABLE)
    with pytest.raises(BadData, match="only a table has columns"):
        arrays.learn("2", make_task("1")[0], "price")
    assert agent.digest() == before


def test_columns_of_a_forgotten_task_are_forgotten():
    agent, never = learned(), Agent("ind", hidden=(16,), lr=0.1, epochs=40)
    agent.forget("1")
    for each in (agent, never):
        each.learn("2", {"other": SIZE}, Y)
    assert agent.digest() == never.digest()


@pytest.mark.parametrize(
    "columns", [3, [["size"]], [["size", "date"]], [["a", "number"]], [["b", "number"], ["a", "text"]]]
)
def test_damaged_columns_are_refused(columns):
    state = learned().state()
    entry = state.tasks["1"]
    broken = type(entry)("R", {**entry.facts, "columns": columns}, entry.own)
    with pytest.raises(BadState, match="columns"):
        Agent.from_state(state.with_task("1", broken))


FILES = {
    "commas": ("a,b\n1,x\n2.5,y\n", ",", True),
    "semicolons and decimal commas": ("a;b\n1,0;x\n2,5;y\n", ";", True),
    "tabs": ("a\tb\n1\tx\n2.5\ty\n", "\t", True),
    "no header": ("1,x\n2.5,y\n", ",", False),
    "quotes": ('"a","b"\n"1","x"\n"2.5","y"\n', ",", True),
    "empty lines": ("a,b\n\n1,x\n2.5,y\n\n", ",", True),
}


@pytest.mark.parametrize("case", FILES)
def test_files_of_many_forms_say_the_same(case):
    text, separator, header = FILES[case]
    found = read_delimited(text, "the file")
    assert (found.separator, found.header) == (separator, header)
    numbers, words = found.columns.values()
    assert numbers.tolist() == [1, 2.5]
    assert words.tolist() == ["x", "y"]
    assert list(found.columns) == (["a", "b"] if header else ["1", "2"])
    assert bool(found.notes) == (not header or separator != ",")


def test_a_file_of_text_only_has_a_header_if_its_first_row_is_like_no_other():
    assert read_delimited("colour,size\nred,big\nblue,small\n", "f").header
    assert not read_delimited("red,big\nblue,small\nred,small\n", "f").header


def test_empty_cells_are_missing_numbers_and_long_integers_stay_exact():
    found = read_delimited("a,b\n,9007199254740993\n3,1\nNA,2\n", "f").columns
    assert np.isnan(found["a"]).tolist() == [True, False, True]
    assert found["b"].tolist()[0] == 9007199254740993


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("a,b\n", "no rows|header"),
        ("a,b\n1,2\n1,2,3\n", "row 3"),
        ("a,a\nx,1\n", "repeated"),
        ('a,b\n"1,2\n', "table"),
    ],
)
def test_files_that_are_not_tables_are_refused(text, says):
    with pytest.raises(BadData, match=says):
        read_delimited(text, "the file")


@pytest.mark.parametrize(
    "note",
    [["loud", *range(1, 12)], ["loud", *[None] * 11], [1.5, *range(1, 12)], ["loud", *map(float, range(11))]],
    ids=["one text among numbers", "one text, the others missing", "one decimal", "one text among decimals"],
)
def test_what_one_person_wrote_does_not_decide_what_a_column_is(note):
    """Guessing from the values, a column would stay text after the only person who wrote text in it had left."""
    table = {"size": list(range(12)), "note": note}
    rest = {name: values[1:] for name, values in table.items()}
    people, y = ["ann", *["bob"] * 11], [i % 2 for i in range(12)]
    agent, never = (Agent("ridge", network="base:raw") for _ in range(2))
    agent.learn("1", table, y, text=["note"], people=people)
    agent.forget(person="ann")
    never.learn("1", rest, y[1:], text=["note"], people=people[1:])
    assert agent.digest() == never.digest()


def test_text_is_declared_where_single_records_can_be_forgotten():
    agent = Agent("ridge", network="base:raw")
    with pytest.raises(BadData, match=r"column 'colour' holds text.*text=\['colour'\]"):
        agent.learn("1", TABLE, Y)
    with pytest.raises(BadData, match="no column 'color'"):
        agent.learn("1", TABLE, Y, text=["color"])
    agent.learn("1", TABLE, Y, text=["colour"])
    agent.learn("2", TABLE, Y)  # as the tasks before
    assert agent.state().tasks["2"].facts["columns"] == agent.state().tasks["1"].facts["columns"]
    with pytest.raises(BadData, match="only a table"):
        Agent("ridge").learn("1", np.zeros((4, 2)), [0, 1, 0, 1], text=["a"])


def test_a_column_may_hold_the_lists_of_people_that_records_are_about():
    agent = Agent("ridge", network="base:raw")
    table = {"size": [1.0, 2.0, 3.0], "who": [["ann", "bob"], ["bob"], None], "kind": ["a", "b", "a"]}
    agent.learn("1", table, "kind", people="who")
    assert agent.show(person="bob")["1"]["records"] == 2


def test_people_and_ids_may_be_columns():
    table = {**TABLE, "answer": Y, "who": np.array([f"p{i % 7}" for i in range(N)]), "id": np.arange(N)}
    agent = Agent("ridge", network="base:raw")
    agent.learn("1", table, "answer", text=["colour"], people="who", records="id")
    assert agent.state().tasks["1"].facts["columns"] == [["colour", "text"], ["flag", "number"], ["size", "number"]]
    assert agent.accuracy("1", table, "answer") > 0.6
    agent.forget(person="p3")
    rest = {name: values[table["who"] != "p3"] for name, values in table.items()}
    never = Agent("ridge", network="base:raw")
    never.learn("1", rest, "answer", text=["colour"], people="who", records="id")
    assert agent.digest() == never.digest()
    more = {**{name: values[:5] for name, values in table.items()}, "id": np.arange(N, N + 5)}
    agent.add("1", more, "answer", people="who", records="id")
