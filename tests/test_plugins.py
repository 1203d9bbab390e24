"""Files of `--load`: users' methods and networks, in every process; nothing is left of a file that is refused."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clpu
from clpu.methods import METHODS, plugins
from clpu.networks.blueprint import FACTORIES, NETWORKS
from clpu.results import read_run

REGISTRIES = [METHODS, NETWORKS, FACTORIES, plugins.LOADED, plugins.CHECKSUMS]


@pytest.fixture
def registry():
    """Methods and networks that a file registers are gone afterwards."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, content in zip(REGISTRIES, before):
        registry.clear()
        registry.update(content)


def clpu_command(folder, *arguments):
    code = "from clpu.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, cwd=folder
    )


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "SyntaxError"),
        (b"raise SystemExit(3)", "SystemExit: 3"),
        (b"x = 1", "registers no method and no network"),
        (b"def (", "SyntaxError"),
        (b"import clpu\n1 / 0", "ZeroDivisionError"),
        (
            b"import clpu\n@clpu.register\nclass Mine(clpu.METHODS['er']):\n  name = 'mine'\n1 / 0",
            "ZeroDivisionError",
        ),
        (b"import clpu\n@clpu.register\nclass Mine(clpu.METHODS['er']):\n  name = 'seq'", "'seq' already"),
        (b"import clpu\n@clpu.register\nclass ER(clpu.METHODS['er']):\n  beta = 3", "'er' already"),
        (b"import clpu\nclpu.METHODS['er'] = clpu.METHODS['seq']", "replaces 'er'"),
        (b"import clpu\ndel clpu.METHODS['er']", "replaces 'er'"),
        (b"import clpu\n@clpu.register_network('mlp')\ndef mine(): pass", "'mlp' is taken"),
        (b"import clpu\n@clpu.register_network('module')\ndef mine(): pass", "'module' is taken or not allowed"),
        (b"import clpu\n@clpu.register_network('mine')\ndef mine(): pass\n1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_without_usable_methods_is_refused_and_leaves_nothing(tmp_path, source, says):
    before, path = [dict(registry) for registry in REGISTRIES], tmp_path / "mine.py"
    if source is not None:
        path.write_bytes(source)
    with pytest.raises(clpu.BadSetting, match=says):
        plugins.load(path)
    assert before == REGISTRIES


ONE = b"""\xef\xbb\xbfimport multiprocessing, os, clpu
if os.environ.get("ONLY_HERE") and multiprocessing.parent_process():
    raise RuntimeError("not in a worker")
@clpu.register
class Mine(clpu.METHODS["seq"]):
    name = "NAME"
"""


def test_files_of_one_name_reach_the_workers_and_trouble_there_is_told(tmp_path, monkeypatch):
    arguments = ["bench", "--profile", "smoke", "--seeds", "1", "--requests", "1R", "--workers", "2"]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_bytes(ONE.replace(b"NAME", folder.encode()))
        arguments += ["--methods", folder, "--load", f"{folder}/mine.py"]
    ran = clpu_command(tmp_path, *arguments, "--out", "run")
    assert ran.returncode == 0, ran.stderr
    assert list(read_run(tmp_path / "run").results) == ["a", "b"]
    monkeypatch.setenv("ONLY_HERE", "1")
    failed = clpu_command(tmp_path, *arguments, "--out", "other")
    assert failed.returncode == 1
    assert "cannot be loaded: RuntimeError: not in a worker" in failed.stderr


def test_a_method_from_a_file_can_be_audited(tmp_path):
    (tmp_path / "mine.py").write_bytes(ONE.replace(b"NAME", b"mine"))
    arguments = ("--profile", "smoke", "--seeds", "4", "--requests", "1T 1F", "--set", "train=100", "--workers", "2")
    ran = clpu_command(tmp_path, "audit", "--load", "mine.py", "--methods", "mine", *arguments)
    assert ran.returncode == 0, ran.stderr
    assert "profile smoke with train=100" in ran.stdout


NETWORK = b"""
import clpu
from torch import nn
@clpu.register_network("tiny")
def tiny():
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 8), nn.Tanh())
"""


@pytest.mark.usefixtures("registry")
def test_a_file_may_be_loaded_twice_and_two_files_may_not_register_the_same_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(ONE.replace(b"NAME", b"mine") + NETWORK)
    assert plugins.load(path) == plugins.load(path) == ["mine", "network tiny"]
    first = METHODS["mine"]
    for rest, says in [(ONE.replace(b"NAME", b"mine"), "'mine' already"), (NETWORK, "'tiny' is taken")]:
        path.write_bytes(rest + b"# changed\n")
        with pytest.raises(clpu.BadSetting, match=says):
            plugins.load(path)
    assert METHODS["mine"] is first


@pytest.mark.usefixtures("registry")
def test_a_network_from_a_file_starts_the_same_in_every_process_and_with_every_seed_differently(tmp_path):
    source = NETWORK.replace(b"SIZE", b"6")
    (tmp_path / "net.py").write_bytes(source)
    assert plugins.load(tmp_path / "net.py") == ["network tiny"]
    agent = clpu.Agent("ind", "tiny", seeds=[0, 1], epochs=1)
    code = """
import sys, clpu
from clpu.methods import plugins
plugins.load("net.py")
print(clpu.Agent("ind", "tiny", seeds=[0, 1], epochs=1).digest())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ran.stdout.strip() == agent.digest(), ran.stderr
    first, second = agent.network("1", [[0.0] * 6]).body.tensors["1.weight"]
    assert not first.equal(second)


def test_a_network_from_a_file_runs_in_the_benchmark_and_its_file_is_in_the_recipe(tmp_path):
    (tmp_path / "net.py").write_bytes(NETWORK.replace(b"SIZE", b"64"))
    arguments = ("bench", "--profile", "smoke", "--seeds", "1", "--requests", "1R 2T 2F", "--workers", "2")
    arguments += ("--methods", "clpu-der++", "--load", "net.py", "--set", "network=tiny", "--out", "run")
    ran = clpu_command(tmp_path, *arguments)
    assert ran.returncode == 0, ran.stderr
    recipe = read_run(tmp_path / "run").recipe
    assert recipe.network == {"name": "tiny"}
    assert recipe.versions["network tiny (SHA-256)"] == hashlib.sha256((tmp_path / "net.py").read_bytes()).hexdigest()


def test_a_store_with_a_method_and_a_network_from_files_is_used_with_load_and_forgets_without(tmp_path):
    """Each command is a separate process; `--set` takes the same forms as in `bench`."""
    examples = Path(__file__).resolve().parents[1] / "examples"
    (tmp_path / "net.py").write_text(
        "import torch\nfrom clpu import register_network\n\n"
        '@register_network("mine")\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh())'
    )
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(int))
    load = ("--load", str(examples / "ridge.py"), "--load", "net.py")

    def good(*arguments):
        done = clpu_command(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    good("init", "agent", "--method", "ridge-head", "--network", "mine", "--set", "ridge=1e-2", *load)
    good("learn", "agent", "guest", "--data", "data.npz", "--temporary", *load)
    assert "label,p_0,p_1" in good("predict", "agent", "guest", "--data", "data.npz", *load)
    assert "ridge-head" in good("status", "agent")
    assert "forgotten" in good("forget", "agent", "guest")
    refused = clpu_command(tmp_path, "learn", "agent", "other", "--data", "data.npz")
    assert refused.returncode == 1
    assert "method must be one of" in refused.stderr
