"""The base that counts words: text in, the same integers everywhere, nothing to download."""

import numpy as np
import pytest
import torch

import clpu
from clpu.bases.loading import SETTINGS, load
from clpu.errors import BadData

TEXTS = ["Spam, spam and eggs!", "", "Eggs only", "spam"]


def base(**settings):
    return load("base:words", SETTINGS["base:words"](**settings))


def test_words_are_counted_whatever_their_case():
    features = base().features(torch.from_numpy(base().encoded(TEXTS)))
    assert features.shape == (4, 1000)
    assert features.sum(1).tolist() == [6.0, 0.0, 2.0, 1.0]  # words and marks
    assert features[0].max() == 2
    assert features[0][features[3].bool()].tolist() == [2.0]


def test_places_are_fixed_for_ever():
    assert base().encoded(["spam eggs"])[0, :3].tolist() == PLACES


PLACES = [662, 31, 0]


def test_a_texts_features_depend_on_that_text_alone():
    words = base(features=50)
    tokens = torch.from_numpy(words.encoded(TEXTS))
    assert torch.equal(words.features(tokens)[[2, 0]], words.features(tokens[[2, 0]]))
    assert torch.equal(torch.cat([words.features(one) for one in tokens.split(1)]), words.features(tokens))


def test_only_the_beginning_of_a_text_is_read():
    assert np.array_equal(base(length=2).encoded(["a b c d"]), base(length=2).encoded(["a b"]))


def test_tokens_are_taken_as_they_are():
    words = base()
    tokens = words.encoded(TEXTS)
    assert words.encoded(tokens) is tokens
    with pytest.raises(BadData, match="takes text"):
        words.features(torch.full((1, 3), 2000))
    with pytest.raises(BadData, match="takes text"):
        words.encoded([1.5, 2.5])


def test_an_agent_learns_and_forgets_mails():
    texts = [f"cheap pills {i}" if i % 2 else f"meeting on day {i}" for i in range(40)]
    labels = ["spam" if i % 2 else "ham" for i in range(40)]
    people = [f"s{i % 8}" for i in range(40)]
    agent = clpu.Agent("ridge", "base:words", features=100)
    agent.learn("mail", texts, labels, people=people)
    assert agent.classify("mail", ["cheap pills now", "a meeting"]).tolist() == ["spam", "ham"]
    agent.forget(person="s3")
    rest = [i for i in range(40) if i % 8 != 3]
    never = clpu.Agent("ridge", "base:words", features=100)
    never.learn("mail", [texts[i] for i in rest], [labels[i] for i in rest], people=[people[i] for i in rest])
    assert agent.digest() == never.digest()
