"""Master keys: rotated, protected by a passphrase or a key service, and recovered where nothing can be forgotten."""

import errno
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
from storekit import SETTINGS, Crash, Fault, clone, crashing, digest_after, examples, failing, follow, injected, picture
from typer.testing import CliRunner, Result

import clpu
from clpu.store import Unlock, create, protection, verify
from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.store.folder import Access, Folder
from clpu.store.rotation import export_recovery, recover, rotate

REQUESTS = "1R 2T 3T"


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "COST", {"n": 2**4, "r": 8, "p": 1})


def test_a_rotation_changes_every_secret_and_no_state(store: Path) -> None:
    digest = follow(store, REQUESTS)
    with Folder(store) as opened:
        before, entries = opened.secrets, opened.keyring.scan({})
    files = {path.name: path.read_bytes() for path in (store / "permanent").rglob("*") if path.is_file()}
    with open_store(store, read_only=True) as reader:
        rotate(store)
        assert reader.digest() == digest, "a reader goes on"
        assert reader.predict("2", examples("2")[0]).shape == (16, 2)
    with Folder(store) as opened:
        after = opened.secrets
        assert not {*before.permanent, *before.wrapping} & {*after.permanent, *after.wrapping}
        assert len(after.permanent) == len(after.wrapping) == 1
        assert after.identity == before.identity
        assert not set(entries.values()) & set(opened.keyring.scan({}).values())
    now = {path.name: path.read_bytes() for path in (store / "permanent").rglob("*") if path.is_file()}
    assert now.keys() == files.keys()
    assert not set(now.values()) & set(files.values())
    assert follow(store, "2F 4T") == digest_after("1R 3T 4T")
    assert verify(store).good


def test_an_interrupted_rotation_is_completed(store: Path, tmp_path: Path) -> None:
    digest = follow(store, REQUESTS)
    with injected() as injector:
        rotate(clone(store, tmp_path / "counted"))
    for at in range(0, len(injector.calls), 9):
        path = clone(store, tmp_path / str(at))
        with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
            rotate(path)
        with open_store(path, read_only=True) as reader:
            assert reader.digest() == digest
        with open_store(path) as agent:
            assert agent.digest() == digest
        report = verify(path)
        assert report.good
        assert not report.notes
        with Folder(path) as opened:
            assert len(opened.secrets.wrapping) == 1


def test_a_passphrase_protects_the_keys(tmp_path: Path) -> None:
    right, wrong = Unlock(passphrase="correct horse"), Unlock(passphrase="battery staple")
    create(tmp_path / "store", unlock=right, **SETTINGS).close()
    digest = follow(tmp_path / "store", REQUESTS, unlock=right)
    for unlock, words in ((None, "--passphrase-file"), (wrong, "does not open")):
        with pytest.raises(clpu.BadKeys, match=words):
            open_store(tmp_path / "store", unlock=unlock)
    (tmp_path / "pass").write_text("correct horse\nmore\n")
    (tmp_path / "new").write_text("battery staple\n")
    options = ("--passphrase-file", tmp_path / "pass")
    assert digest in run("status", tmp_path / "store", *options).output
    run("keys", "rotate", tmp_path / "store", *options, "--new-passphrase-file", tmp_path / "new")
    run("status", tmp_path / "store", *options, code=1)
    assert follow(tmp_path / "store", "", unlock=wrong) == digest
    assert "horse" not in repr(right)


def test_a_passphrase_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As a shell's <(command) does, which may take a moment."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Timer(0.1, lambda: (tmp_path / "pipe").write_text("correct horse\r\nmore\n"))
    writer.start()
    assert protection.read_passphrase(tmp_path / "pipe") == "correct horse"
    writer.join()


def test_keys_that_cannot_be_read_are_named_and_not_the_store(store: Path) -> None:
    follow(store, REQUESTS)
    with injected() as injector:
        open_store(store).close()
    seen = set()
    for at, operation in enumerate(injector.calls):
        if operation in ("open", "list"):
            with injected(Fault(failing(errno.EACCES), at)), pytest.raises(clpu.Error) as refused:
                open_store(store).close()
            seen.add(isinstance(refused.value, clpu.BadKeys) and str(store / "keys") in str(refused.value))
    assert seen == {True, False}


def test_a_key_service_in_a_process_of_its_own_wraps_the_keys(tmp_path: Path) -> None:
    service = tmp_path / "service"
    service.mkdir()
    (service / "key").write_bytes(b"k" * 32)
    command = f"{sys.executable} {Path(__file__).parent / 'key_service.py'} {service}"
    unlock = Unlock(command=command)
    create(tmp_path / "store", unlock=unlock, **SETTINGS).close()
    digest = follow(tmp_path / "store", REQUESTS, unlock=unlock)
    master = (tmp_path / "store" / "keys" / "master.json").read_text()
    with Folder(tmp_path / "store", Access(unlock=unlock)) as opened:
        assert opened.secrets.signing.hex() not in master
    assert digest in run("status", tmp_path / "store", "--key-command", command).output
    assert "wrap" in (service / "log").read_text().split()
    with pytest.raises(clpu.BadKeys, match="--key-command"):
        open_store(tmp_path / "store")
    (service / "key").write_bytes(b"x" * 32)
    with pytest.raises(clpu.BadKeys, match=r"refused to unwrap.*access denied"):
        open_store(tmp_path / "store", unlock=unlock)
    for bad, words in (
        ("false", "refused"),
        ("no-such-program", "cannot be used"),
        ("echo nonsense", "cannot be used"),
    ):
        with pytest.raises(clpu.BadKeys, match=words):
            open_store(tmp_path / "store", unlock=Unlock(command=bad))


@pytest.mark.parametrize("here", [True, False])
def test_a_recovery_file_brings_back_what_can_never_be_forgotten(tmp_path: Path, here: bool) -> None:
    keys = None if here else tmp_path / "keys"
    create(tmp_path / "store", keys=keys, **SETTINGS).close()
    follow(tmp_path / "store", "1R 2T 4T 4R", keys=keys)
    options = () if here else ("--keys", keys)
    run("keys", "export", tmp_path / "store", tmp_path / "recovery.json", *options)
    run("keys", "export", tmp_path / "store", tmp_path / "store" / "recovery.json", *options, code=1)
    assert (tmp_path / "recovery.json").stat().st_mode & 0o777 == 0o600
    follow(tmp_path / "store", "5R", keys=keys)
    with pytest.raises(clpu.BadKeys, match="holds keys"):
        recover(tmp_path / "store", tmp_path / "recovery.json", Access(keys))
    lost = tmp_path / "store" / "keys" if here else tmp_path / "keys"
    shutil.rmtree(lost)
    with pytest.raises(clpu.BadKeys, match="clpu recover"):
        open_store(tmp_path / "store", keys=keys)
    run("recover", tmp_path / "store", tmp_path / "recovery.json", *options)
    assert follow(tmp_path / "store", "", keys=keys) == digest_after("1R 4T 4R 5R")
    assert verify(tmp_path / "store", Access(keys)).good


def test_a_recovery_file_opens_nothing_that_can_be_forgotten(store: Path, tmp_path: Path) -> None:
    follow(store, REQUESTS)
    export_recovery(store, tmp_path / "recovery.json")
    with Folder(store) as opened:
        held = opened.secrets
    text = (tmp_path / "recovery.json").read_text()
    for secret in (held.signing, *held.wrapping):
        assert secret.hex() not in text
    create(tmp_path / "other", **SETTINGS).close()
    shutil.rmtree(tmp_path / "other" / "keys")
    with pytest.raises(clpu.BadKeys, match="different store"):
        recover(tmp_path / "other", tmp_path / "recovery.json")
    (tmp_path / "recovery.json").write_text("{}")
    with pytest.raises(clpu.BadKeys, match="not a recovery file"):
        recover(tmp_path / "other", tmp_path / "recovery.json")


def test_recovering_harms_neither_keys_that_are_not_lost_nor_another_store(tmp_path: Path) -> None:
    for name in "ab":
        create(tmp_path / name, keys=tmp_path / f"{name} keys", **SETTINGS).close()
        follow(tmp_path / name, "1R", keys=tmp_path / f"{name} keys")
    export_recovery(tmp_path / "b", tmp_path / "recovery.json", Access(tmp_path / "b keys"))
    before = picture(tmp_path)
    for keys in ("a keys", "b keys"):
        with pytest.raises(clpu.BadKeys, match="holds keys"):
            recover(tmp_path / "b", tmp_path / "recovery.json", Access(tmp_path / keys))
        assert picture(tmp_path) == before


def test_a_recovery_that_is_refused_because_of_an_interrupted_request_changes_nothing(
    store: Path, tmp_path: Path
) -> None:
    follow(store, REQUESTS)
    export_recovery(store, tmp_path / "recovery.json")
    shutil.rmtree(store / "keys")
    (store / "intent").write_bytes(b"of a request that was interrupted")
    before = picture(store)
    with pytest.raises(clpu.BadStore, match="interrupted"):
        recover(store, tmp_path / "recovery.json")
    assert picture(store) == before


@pytest.mark.parametrize("here", [True, False])
def test_an_interrupted_recovery_can_be_repeated(tmp_path: Path, here: bool) -> None:
    keys = None if here else tmp_path / "keys"
    create(tmp_path / "store", keys=keys, **SETTINGS).close()
    follow(tmp_path / "store", REQUESTS, keys=keys)
    export_recovery(tmp_path / "store", tmp_path / "recovery.json", Access(keys))
    shutil.rmtree(keys or tmp_path / "store" / "keys")

    def act(place: Path) -> None:
        recover(place / "store", tmp_path / "recovery.json", Access(None if here else place / "keys"))

    def fresh(name: str) -> Path:
        clone(tmp_path / "store", tmp_path / name / "store")
        return tmp_path / name

    with injected() as injector:
        act(fresh("counted"))
    for at in range(0, len(injector.calls), 7):
        place = fresh(str(at))
        with injected(Fault(crashing, at, sticky=True)), pytest.raises(Crash):
            act(place)
        try:
            assert follow(place / "store", "", keys=None if here else place / "keys") == digest_after("1R")
        except clpu.BadKeys:
            act(place)
        assert follow(place / "store", "", keys=None if here else place / "keys") == digest_after("1R")
