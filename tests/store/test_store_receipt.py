"""A receipt says what was forgotten, can be checked, and leaves nothing in the store."""

import json
from pathlib import Path

import pytest
from storekit import clone, digest_after, follow, handle, picture

import clpu
from clpu.io import sha256
from clpu.store import Receipt
from clpu.store import open as open_store


@pytest.fixture
def receipt(store: Path) -> Receipt:
    with open_store(store) as agent:
        handle(agent, "1R")
        handle(agent, "2T")
        return agent.forget_with_receipt("2")


def test_it_states_the_digests_before_and_after(receipt: Receipt) -> None:
    assert receipt.statement["digest_before"] == digest_after("1R 2T")
    assert receipt.statement["digest_after"] == digest_after("1R")
    assert receipt.statement["exact"] is True
    assert receipt.statement["clpu"] == clpu.__version__
    assert receipt.statement["proves"]
    assert receipt.statement["does_not_prove"]


def test_it_names_the_destroyed_key_and_ciphertext_by_their_hashes(store: Path) -> None:
    with open_store(store) as agent:
        handle(agent, "2T")
        (id, key), *_ = agent._store.standing.keys.items()
        ciphertext = (store / "temporary" / id).read_bytes()
        statement = agent.forget_with_receipt("2").statement
    assert statement["key_destroyed"] == sha256(key)
    assert statement["ciphertexts_destroyed"] == [sha256(ciphertext)]


def test_it_can_be_written_read_and_verified(receipt: Receipt, store: Path) -> None:
    again = Receipt.from_json(receipt.to_json())
    assert again == receipt
    with open_store(store, read_only=True) as agent:
        again.verify(agent.identity)


def test_any_change_breaks_the_signature(receipt: Receipt) -> None:
    for name in receipt.statement:
        changed = Receipt({**receipt.statement, name: "another"}, receipt.identity, receipt.signature)
        with pytest.raises(clpu.BadReceipt, match="changed"):
            changed.verify()


def test_another_store_cannot_have_signed_it(receipt: Receipt, tmp_path: Path) -> None:
    from clpu.store import create

    with create(tmp_path / "other") as other, pytest.raises(clpu.BadReceipt, match="was signed by"):
        receipt.verify(other.identity)


def test_the_store_keeps_nothing_of_it(empty_store: Path, tmp_path: Path) -> None:
    with_receipt, without = clone(empty_store, tmp_path / "a"), clone(empty_store, tmp_path / "b")
    with open_store(with_receipt) as agent:
        handle(agent, "1R")
        handle(agent, "2T")
        agent.forget_with_receipt("2")
    follow(without, "1R")
    assert picture(with_receipt) == picture(without)


@pytest.mark.parametrize("task", ["1", "never"])
def test_there_is_none_for_what_cannot_be_forgotten(store: Path, task: str) -> None:
    with open_store(store) as agent:
        handle(agent, "1R")
        with pytest.raises((clpu.CannotForget, clpu.UnknownTask)):
            agent.forget_with_receipt(task)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"statement": 1, "identity": 2, "signature": 3}', "[" * 10**5]
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(clpu.BadReceipt):
        Receipt.from_json(text)


def test_it_is_plain_json(receipt: Receipt) -> None:
    assert json.loads(receipt.to_json())["statement"]["task"] == "2"
