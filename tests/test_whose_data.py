"""What one person's records are must not decide how those of others are read: it would outlast a forget request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from clpu import Agent, BadData, Error

WIDE = 2**53 + 1
CELLS = st.sampled_from(
    [True, False, 0, 1, 2, -3, 7.0, 2.5, WIDE, -WIDE, 2**63 + 1, 2**70, 1e300, None, float("nan"), "", "1", "007", "NA"]
)
NUMPY_CELLS = st.sampled_from([np.float32(0.1), np.int64(WIDE), np.uint8(3), np.True_, np.str_("x")])
LABELS = st.sampled_from([True, False, 0, 1, 2, np.int64(2), np.True_, "1", "True", np.str_("1"), "e\u0301", "\u00e9"])
ROW = st.tuples(CELLS | NUMPY_CELLS, LABELS, st.sampled_from(["p", "P", "\u0440", "leaves"]))


def agent_of(rows: Sequence[tuple[Any, ...]], text: bool) -> Agent:
    agent = Agent("ridge", features=8)
    table = {"cell": [cell for cell, _, _ in rows], "one": [1.0] * len(rows)}
    agent.learn("1", table, [y for _, y, _ in rows], people=[who for *_, who in rows], text=["cell"] if text else [])
    return agent


@given(st.lists(ROW, min_size=2, max_size=6), st.booleans())
def test_whoever_leaves_does_not_decide_what_values_mean(rows: list[tuple[Any, ...]], text: bool) -> None:
    rest = [row for row in rows if row[-1] != "leaves"]
    try:
        agent, expected = agent_of(rows, text), agent_of(rest, text) if rest else Agent("ridge", features=8)
    except BadData:
        return
    if len(rest) < len(rows):
        agent.forget(person="leaves")
    assert agent.digest() == expected.digest()
    if rest:
        questions = {"cell": [row[0] for row in rest], "one": [1.0] * len(rest)}
        assert agent.predict("1", questions).tobytes() == expected.predict("1", questions).tobytes()
        assert agent.predict(None, questions).tobytes() == expected.predict(None, questions).tobytes()


@pytest.mark.parametrize("cells", [[WIDE, 2.5], [WIDE, float("nan")], [True, 2], [True, 2.5], [WIDE, -2, 2**63 + 1]])
def test_a_column_of_text_stays_as_it_is_beside_values_of_other_types(cells: list[Any]) -> None:
    rows = [(cells[0], "a", "p"), (cells[0], "b", "p"), *((cell, "a", "leaves") for cell in cells[1:])]
    agent = agent_of(rows, True)
    agent.forget(person="leaves")
    assert agent.digest() == agent_of(rows[:2], True).digest()


def test_text_that_lost_digits_is_refused() -> None:
    with pytest.raises(BadData, match="whose digits are lost"):
        Agent("ridge").learn("1", {"zip": np.array([float(WIDE), np.nan])}, ["a", "b"], text=["zip"])


def test_booleans_among_integers_are_not_labels() -> None:
    with pytest.raises(BadData, match="got bool, int"):
        Agent("ridge").learn("1", np.ones((3, 2)), [True, False, 2])


class Pairs(Dataset[Any]):
    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.pairs[number]


def test_bytes_beside_other_numbers_are_refused() -> None:
    pixels = np.arange(4, dtype=np.uint8)
    for other in (np.arange(4), np.ones(4), [1, 2, 3, 4], torch.ones(4)):
        with pytest.raises(BadData, match="some inputs are bytes"):
            Agent("ridge").learn("1", [pixels, other], ["a", "b"])
    with pytest.raises(BadData, match="some inputs are bytes"):
        Agent("ridge").learn("1", Pairs([(pixels, 0), (np.ones(4), 1)]))


def test_labels_of_a_data_set_are_of_one_type() -> None:
    for labels in ((1, "x"), (True, 2)):
        with pytest.raises(Error, match="labels must be all integers"):
            Agent("ridge").learn("1", Pairs([(np.ones(4), label) for label in labels]))


class AnyWidth(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.mean(-1), x.amax(-1)], -1)


def test_records_that_are_added_are_scaled_as_those_before() -> None:
    x, y = np.array([[1.0, 2000.0], [np.nan, 3.0], [5.0, 0.01], [0.2, np.nan]]), ["a", "b", "a", "b"]
    whole, added = (Agent("ridge", AnyWidth(), scaling="fixed") for _ in range(2))
    whole.learn("1", x, y)
    added.learn("1", x[:2], y[:2])
    added.add("1", x[2:], y[2:])
    assert added.digest() == whole.digest()
    with pytest.raises(BadData, match="these are bytes"):
        added.add("1", np.ones((1, 2), np.uint8), ["a"])


@pytest.mark.parametrize("first", [np.uint8, np.float64])
def test_fixed_scaling_takes_bytes_or_numbers(first: type) -> None:
    other = np.float64 if first is np.uint8 else np.uint8
    agent = Agent("ridge", AnyWidth(), scaling="fixed")
    x = np.arange(12).reshape(3, 4)
    agent.learn("1", x.astype(first), ["a", "b", "a"])
    with pytest.raises(BadData, match="or none are"):
        agent.learn("2", x.astype(other), ["a", "b", "a"])
    assert agent.predict("1", x.astype(first)).shape == (3, 2)
