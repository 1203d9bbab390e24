"""Random markers in a task's name, inputs and labels: after a forget not one of them is on the disk."""

import logging
import secrets
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clpu.store import create
from clpu.store import open as open_store
from clpu.store.__main__ import app
from clpu.store.residue import number_forms, search, text_forms


class Marked:
    """A task that can be recognised by its name, by any two neighbouring inputs, and by its labels."""

    def __init__(self) -> None:
        draws = np.random.default_rng(secrets.randbits(64))
        self.name = f"zoë {secrets.token_hex(8)} / knee"
        self.x = draws.normal(size=(24, 6)).astype(np.float32)
        self.labels = np.array([secrets.randbits(62), -secrets.randbits(62)])
        self.y = self.labels[np.arange(24) % 2]

    @property
    def forms(self) -> dict[str, bytes]:
        forms = {f"name {form}": needle for form, needle in text_forms(self.name).items()}
        token = self.name.split()[1]
        forms |= {f"token {form}": needle for form, needle in text_forms(token).items()}
        for row, values in enumerate(self.x):
            for column in range(0, 6, 2):
                pair = number_forms(values[column : column + 2])
                # Two half-precision numbers are four bytes, which are found by chance.
                forms |= {f"x[{row}, {column}] {form}": n for form, n in pair.items() if len(n) >= 8}
            forms |= {f"x[{row}] {form}": needle for form, needle in number_forms(values).items()}
        for label in self.labels:
            forms |= {f"label {form}": n for form, n in number_forms([label]).items() if len(n) >= 8}
        return forms


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_forgotten_task_leaves_no_byte(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = tmp_path / "keys" if where == "elsewhere" else None
    gone, kept, other = Marked(), Marked(), Marked()
    with create(tmp_path / "store", keys=keys, hidden=(6,), epochs=2, memory=50) as agent:
        agent.learn(kept.name, kept.x, kept.y)
        agent.learn(gone.name, gone.x, gone.y, temporary=True)
        agent.learn(other.name, other.x, other.y, temporary=True)
        (tmp_path / "clear").write_bytes(agent.state().to_bytes())
        assert search([tmp_path], kept.forms), "the scan finds what is there"
        (tmp_path / "clear").unlink()
        for task in (gone, kept, other):
            assert not search([tmp_path], task.forms), "nothing that was learned is ever written in the clear"
        agent.forget(gone.name)
        assert not search([tmp_path], gone.forms)
        agent.keep(other.name)
        assert not search([tmp_path], other.forms)
    with open_store(tmp_path / "store", keys=keys):
        assert not search([tmp_path], gone.forms)
    assert gone.name not in caplog.text


def test_the_keys_and_ciphertexts_of_a_forgotten_task_are_gone_too(tmp_path: Path) -> None:
    task = Marked()
    with create(tmp_path / "store", hidden=(6,), epochs=1) as agent:
        agent.learn(task.name, task.x, task.y, temporary=True)
        (id, entry), *_ = agent._store.standing.keys.items()
        content = (tmp_path / "store" / "leaves" / id[:2] / id).read_bytes()
        needles = {
            "key": entry,
            "name of the file": id.encode(),
            **{f"ciphertext {at}": content[at : at + 16] for at in range(0, len(content) - 16, 512)},
        }
        assert {trace.what for trace in search([tmp_path], needles)} == needles.keys()
        agent.forget(task.name)
        assert not search([tmp_path], needles)


def test_the_size_of_a_living_task_tells_little(store: Path) -> None:
    """It is rounded up to whole pages, so that a few bytes more of a name or of a class do not show."""
    x = np.random.default_rng(0).normal(size=(24, 4))
    with open_store(store) as agent:
        for name, classes in (("a", 2), ("b" * 20, 3)):
            agent.learn(name, x, np.arange(24) % classes, temporary=True)
    sizes = [path.stat().st_size for path in (store / "leaves").rglob("*") if path.is_file()]
    assert len(sizes) == 2
    assert len({*sizes}) == 1
    assert sizes[0] % 4096 == 0


def test_the_commands_print_no_name_that_a_log_would_keep(tmp_path: Path) -> None:
    task = Marked()
    np.savez(tmp_path / "data.npz", x=task.x, y=task.y)
    store = str(tmp_path / "store")
    runner = CliRunner()
    printed = ""
    for arguments in (
        ["init", store, "--epochs", "1", "--set", "hidden=6"],
        ["learn", store, task.name, "--data", str(tmp_path / "data.npz"), "--temporary"],
        ["forget", store, task.name],
    ):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0, result.output
        printed += result.output
    assert printed
    assert task.name.split()[1] not in printed
    (tmp_path / "data.npz").unlink()
    assert not search([tmp_path], task.forms)


def test_the_scan_finds_names_of_files_and_what_lies_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clpu.store.residue.CHUNK", 16)
    (tmp_path / "a secret folder").mkdir()
    (tmp_path / "a secret folder" / "file").write_bytes(b"." * 13 + b"secret" + b"." * 20 + b"secret")
    found = search([tmp_path], {"word": b"secret"})
    assert sorted((trace.path.name, trace.offset) for trace in found if trace.offset is not None) == [
        ("file", 13),
        ("file", 39),
    ]
    assert [trace.path.name for trace in found if trace.offset is None] == ["a secret folder"]
