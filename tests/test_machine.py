"""The record of what computed a result: what it distinguishes, what it ignores, and which records are refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from clpu import BadRun, machine
from clpu.jsonfile import decode, dumps
from clpu.machine import Machine, differences

HERE = machine.here()


def test_two_looks_at_one_machine_are_equal():
    assert machine.here() == HERE
    assert differences(HERE, machine.here()) == []


def test_the_state_of_generators_types_and_gradients_does_not_matter():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
            assert machine.fingerprint() == HERE.fingerprint
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_different_arithmetic_has_a_different_fingerprint():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormal numbers")
    try:
        assert machine.fingerprint() != HERE.fingerprint
    finally:
        torch.set_flush_denormal(False)


def test_it_says_what_computes():
    assert HERE.threads == torch.get_num_threads()
    assert HERE.versions["torch"] == torch.__version__
    assert {"clpu", "clpu source", "numpy"} <= set(HERE.versions)
    assert HERE.facts["CPU capability"] == torch.backends.cpu.get_cpu_capability()
    assert {"CPU", "python"} <= set(HERE.facts)


def test_variables_that_choose_instructions_are_recorded(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2\n[red]<b>")
    assert machine.here().facts["MKL_CBWR"] == "AVX2__red__b_"
    assert "ATEN_CPU_CAPABILITY" not in HERE.facts or HERE.facts["ATEN_CPU_CAPABILITY"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"fingerprint": "ab" * 32},
            f"fingerprint of float32 results: {HERE.fingerprint[:8]} (existing), abababab (this machine)",
        ),
        ({"threads": 7}, f"threads: {HERE.threads} (existing), 7 (this machine)"),
        ({"device": "cuda (a card)"}, "device: cpu (existing), cuda (a card) (this machine)"),
        ({"versions": {**HERE.versions, "torch": "9.9"}}, f"torch: {torch.__version__} (existing), 9.9 (this machine)"),
        ({"versions": {**HERE.versions, "clpu source": "ab" * 32}}, "(existing), abababab (this machine)"),
    ],
)
def test_what_decides_is_told_when_it_differs(change, says):
    (text,) = differences(HERE, replace(HERE, **change))
    assert says in text


def test_flags_explain_but_do_not_decide():
    other = {**HERE.facts, "CPU capability": "OTHER", "MKL_CBWR": "OTHER"}
    assert differences(HERE, replace(HERE, facts=other)) == []
    found = differences(HERE, replace(HERE, facts=other, fingerprint="ab" * 32))
    assert f"CPU capability: {HERE.facts['CPU capability']} (existing), OTHER (this machine)" in found
    assert (
        f"MKL_CBWR: {HERE.facts.get('MKL_CBWR', 'not set')} (existing), OTHER (this machine)" in found
    )  # make test-cpus sets it


def test_a_record_survives_its_text():
    assert decode(dumps(HERE), Machine, "a file") == HERE


HOSTILE = {
    "no JSON": "{",
    "not an object": "[]",
    "nested beyond reason": "[" * 100_000,
    "nothing": "{}",
    "no fingerprint": json.dumps({**vars(HERE), "fingerprint": "yes"}),
    "threads of text": json.dumps({**vars(HERE), "threads": "1"}),
    "threads that are not a number": json.dumps({**vars(HERE), "threads": float("nan")}),
    "no threads": json.dumps({**vars(HERE), "threads": 0}),
    "markup": json.dumps({**vars(HERE), "facts": {"CPU": "<script>"}}),
    "an escape sequence": json.dumps({**vars(HERE), "device": "\x1b[2J"}),
    "two lines": json.dumps({**vars(HERE), "versions": {"torch": "1\n2"}}),
    "a name with markup": json.dumps({**vars(HERE), "versions": {"[red]": "1"}}),
    "a long text": json.dumps({**vars(HERE), "facts": {"CPU": "x" * 201}}),
    "many entries": json.dumps({**vars(HERE), "facts": {f"f{i}": "" for i in range(51)}}),
    "a number as version": json.dumps({**vars(HERE), "versions": {"torch": 2}}),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_record_is_refused_in_one_line(text):
    with pytest.raises(BadRun) as refused:
        decode(text, Machine, "a file")
    assert str(refused.value).startswith("a file")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


def test_torch_is_not_imported_to_read_a_record():
    code = "import sys, clpu.machine; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "src" / "clpu").mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "src" / "clpu" / "machine.py"))
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ""),
        ({".git/HEAD": COMMIT}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": COMMIT + "\n"}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": f"# x\n{COMMIT} refs/heads/main\n"}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/main\n"}, ""),
        (
            {
                ".git": "gitdir: repo/worktrees/w\n",
                "repo/worktrees/w/HEAD": "ref: refs/heads/w\n",
                "repo/worktrees/w/commondir": "../..\n",
                "repo/refs/heads/w": COMMIT,
            },
            COMMIT,
        ),
        ({".git/HEAD": "<script>"}, ""),
    ],
    ids=["none", "detached", "branch", "packed", "no such branch", "worktree", "nonsense"],
)
def test_the_commit_of_a_checkout_is_found_without_git(checkout, files, expected):
    for name, text in files.items():
        write(checkout / name, text)
    assert machine.commit.__wrapped__() == expected


def test_the_checksum_of_the_source_notices_code_that_computes_only(checkout):
    write(checkout / "src/clpu/training.py", "a = 1")
    first = machine.source.__wrapped__()
    write(checkout / "src/clpu/report/page.py", "b = 1")
    assert machine.source.__wrapped__() == first
    write(checkout / "src/clpu/training.py", "a = 2")
    assert machine.source.__wrapped__() != first
