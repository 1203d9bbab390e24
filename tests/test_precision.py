"""`mixed_precision="auto"`: bfloat16 where the device has it, decided once."""

import json

import pytest
import torch
from typer.testing import CliRunner

import clpu
from clpu import Agent
from clpu.cli import app
from clpu.errors import BadSetting
from clpu.networks import blueprint, precision
from clpu.runs.plan import with_settings
from clpu.runs.profiles import profile

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["bfloat16", "no bfloat16"])
def fast(request, monkeypatch):
    monkeypatch.setattr(blueprint, "bfloat16_is_fast", lambda device: request.param)
    return request.param


def small(mixed):
    return Agent("seq", "resnet18", width=2, epochs=1, batch_size=4, mixed_precision=mixed)


def test_auto_is_what_the_cpu_has_and_shows_in_the_settings(fast):
    assert small("auto").settings["mixed_precision"] is fast
    assert small("auto").digest() == small(fast).digest()
    assert small(False).settings["mixed_precision"] is False


def test_a_saved_agent_computes_as_it_did_where_it_was_made(fast, monkeypatch):
    x, y = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    agent = small("auto")
    saved = agent.state().to_bytes()
    agent.learn("1", x, y)
    monkeypatch.setattr(blueprint, "bfloat16_is_fast", lambda device: not fast)  # a different machine
    opened = Agent.from_state(saved)
    assert opened.settings["mixed_precision"] is fast
    opened.learn("1", x, y)
    assert opened.digest() == agent.digest()


@pytest.mark.parametrize("mixed", ["automatic", "", 1, None])
def test_anything_else_is_refused_and_auto_is_named(mixed):
    with pytest.raises(BadSetting, match='a boolean or "auto"'):
        small(mixed)


def test_auto_is_for_settings_that_have_it_only():
    with pytest.raises(BadSetting, match="integer"):
        Agent("seq", "resnet18", width="auto")


def test_the_commands_take_auto(fast, tmp_path):
    sized = with_settings(profile("split-cifar10", "smoke"), ["network=resnet18", "mixed_precision=auto"], ["seq"])
    assert (
        Agent("seq", sized.network, **sized.for_method("seq", {"mixed_precision": False})).settings["mixed_precision"]
        is fast
    )
    store = str(tmp_path / "store")
    made = CliRunner().invoke(
        app, ["init", store, "--method", "seq", "--network", "resnet18", "--set", "mixed_precision=auto"]
    )
    assert made.exit_code == 0, made.output
    status = CliRunner().invoke(app, ["status", store, "--json"])
    assert json.loads(status.output)["settings"]["mixed_precision"] is fast


@pytest.mark.parametrize(
    ("flags", "limit", "fast"),
    [
        ("fma avx2 avx512f avx512_bf16", "", True),
        ("fma avx2 avx512f avx512_bf16", "AVX512_CORE_BF16", True),
        ("fma avx2 avx512f amx_bf16", "DEFAULT", True),
        ("fma avx2 avx512f avx512_bf16", "AVX512_CORE", False),
        ("fma avx2 avx512f avx512_bf16", "avx2", False),
        ("fma avx2 avx512f", "", False),
        ("fma avx2", "", False),
    ],
)
def test_bfloat16_is_fast_where_cpu_and_onednn_multiply_in_it(flags, limit, fast, monkeypatch, tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor : 0\nmodel name : avx512_bf16?\nflags\t\t: {flags}\n")
    found = precision.cpu_flags(path)
    assert found == set(flags.split())
    monkeypatch.setattr(precision, "cpu_flags", lambda: found)
    monkeypatch.setattr(precision, "onednn_has_bfloat16", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert precision.bfloat16_is_fast(CPU) is fast
    monkeypatch.setattr(precision, "onednn_has_bfloat16", lambda: False)
    assert precision.bfloat16_is_fast(CPU) is False


def test_a_device_of_which_nothing_is_known_computes_in_float32():
    assert precision.bfloat16_is_fast(torch.device("meta")) is False


def test_without_linux_torch_is_asked(tmp_path):
    assert precision.cpu_flags(tmp_path / "none") <= {"avx512_bf16", "amx_bf16"}
    assert clpu.Agent("seq", "resnet18", mixed_precision="auto").settings["mixed_precision"] in (True, False)
