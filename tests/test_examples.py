"""The examples pass the suite that all methods pass, on every kind of network; and the contract is as open as said."""

import ast
import builtins
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clpu import METHODS, Agent, BadSetting, BadState, Stream
from clpu.learning.losses import cross_entropy
from clpu.methods import NetworkMethod, inputs_of
from clpu.networks.body import Body
from clpu.results import read_run
from clpu.state import Leaf
from clpu.testing import TINY, checks_for, make_task, run_stream

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGE = EXAMPLES.parent / "docs/adding-a-method.md"
LINES = {"agem": 70, "ridge": 60, "adapter": 70}

before = dict(METHODS)
sys.path.insert(0, str(EXAMPLES))
from adapter import Adapter  # noqa: E402
from agem import AGEM, project  # noqa: E402

from ridge import Ridge  # noqa: E402

METHODS.clear()
METHODS.update(before)  # the examples are known by their classes here, and other tests do not see them


def own_module():
    return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())


@pytest.mark.parametrize(
    ("method", "check"),
    [
        pytest.param(method, check, id=f"{method.name}-{name}-{check.__name__}")
        for method in (AGEM, Ridge, Adapter)
        for name, network in [("mlp", "mlp"), ("resnet18", "resnet18"), ("module", own_module)]
        for check in checks_for(method, network)
    ],
)
def test_example_conforms(method, check):
    check(method)


@pytest.mark.parametrize("name", LINES)
def test_example_is_small(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= LINES[name]


def words_in_code(text):
    """The identifiers in a page's code, inline or in blocks."""
    return {word for code in re.findall(r"```.*?```|`[^`\n]+`", text, re.S) for word in re.findall(r"\w+", code)}


@pytest.mark.parametrize("name", LINES)
def test_example_uses_documented_names_only(name):
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    nodes = list(ast.walk(tree))
    defined = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    defined |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    defined |= {n.target.id for n in nodes if isinstance(n, ast.AnnAssign)}  # settings
    used = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    used |= {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg}
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module.startswith("clpu")]
    used |= {part for n in imports for part in n.module.split(".")} | {a.name for n in imports for a in n.names}
    known = {*dir(torch), *dir(torch.Tensor), *dir(F), *dir(dict), *dir(str), *dir(builtins), "keepdim", "dim1", "dim2"}
    known |= {"value", "frozen"}  # arguments of F.pad and dataclass
    assert used - defined - known <= words_in_code(PAGE.read_text())
    public = {a.name for n in imports for a in n.names}
    assert not [word for word in used | public if word.startswith("_")]


def clpu_command(folder, *arguments):
    code = "from clpu.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments, "--workers", "1", "--out", "out"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_examples_run_in_the_benchmark(tmp_path):
    loads = [word for name in LINES for word in ("--load", str(EXAMPLES / f"{name}.py"))]
    size = ("--profile", "smoke", "--seeds", "2", "--requests", "1R 2T 2F")
    clpu_command(tmp_path, "bench", *size, *loads, "--methods", "agem,ridge-head,adapter")
    assert list(read_run(tmp_path / "out").results) == ["agem", "ridge-head", "adapter"]


def test_a_method_that_trains_nothing_and_has_no_network_can_be_audited(tmp_path):
    size = ("--profile", "smoke", "--seeds", "4", "--requests", "1R 2T 2F 3R")
    said = clpu_command(tmp_path, "audit", *size, "--load", str(EXAMPLES / "ridge.py"), "--methods", "ridge-head")
    assert "Ridge: exact (proved bitwise)" in said


def test_agem_projects_the_gradient_of_each_replica_where_it_disagrees():
    draws = torch.Generator().manual_seed(0)
    g = {name: torch.randn(8, 5, 3, generator=draws) for name in ("a", "new head")}
    r = {name: torch.randn(8, 5, 3, generator=draws) for name in ("a", "old head")}
    made = project(g, r)

    def flat(gradients, k):
        zeros = torch.zeros(5, 3)
        return torch.cat([gradients[n][k].flatten() if n in gradients else zeros.flatten() for n in sorted({*g, *r})])

    dots = [flat(g, k) @ flat(r, k) for k in range(8)]
    assert min(dots) < 0 < max(dots)
    for k, dot in enumerate(dots):
        expected = flat(g, k) - (dot / flat(r, k).square().sum() * flat(r, k) if dot < 0 else 0)
        assert torch.allclose(flat(made, k), expected, atol=1e-6)


def test_ridge_solves_in_float64_and_claims_no_steps():
    agent = run_stream("1R 2T", Ridge, hidden=(12, 8), ridge=0.5, scaling="none")
    task = agent.state().tasks["1"]
    assert "steps" not in task.facts
    assert {spec.dtype for spec in task.own.specs.values()} == {"F64"}
    x, y = make_task("1")
    phi = agent.new_method().fresh_network(inputs_of(task), None).features(torch.tensor(x))[0].double()
    phi = torch.cat([phi, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    ridge = 0.5 * phi[:, :-1].square().sum(0).mean() * torch.eye(9, dtype=torch.float64)
    weights = torch.linalg.inv(phi.T @ phi + ridge) @ phi.T @ F.one_hot(torch.tensor(y) // 10, 3).double()
    assert torch.allclose(agent.logits("1", torch.tensor(x)).double(), phi @ weights, atol=1e-5)


@pytest.mark.parametrize("setting", ["epochs", "lr", "optimizer"])
def test_ridge_has_no_settings_of_training(setting):
    with pytest.raises(BadSetting, match=f"no setting '{setting}'"):
        Agent(Ridge, **{setting: 1})


def test_a_saved_state_is_checked_by_the_schema_of_a_users_method():
    state = run_stream("1R", Ridge).state()
    task = state.tasks["1"]
    tensors = dict(task.own.tensors)
    for wrong, says in [
        ({**tensors, "gram": tensors["gram"].float()}, "must be F64"),
        ({**tensors, "gram": tensors["gram"][:, 1:]}, "'gram' must be"),
        ({**tensors, "more": tensors["gram"]}, "unexpected tensor"),
        ({"gram": tensors["gram"]}, "'moments' is missing"),
    ]:
        changed = state.with_task("1", dataclasses.replace(task, own=Leaf(wrong)))
        with pytest.raises(BadState, match=says):
            Agent.from_state(changed.to_bytes(), method=Ridge)


@pytest.mark.parametrize("network", ["mlp", "module"])
def test_an_adapter_costs_its_low_rank_tensors_and_its_head_and_leaves_the_body_alone(network):
    module = own_module()
    agent = Agent(Adapter, module if network == "module" else network, epochs=2, rank=3)
    x, y = make_task("1", shape=16)
    agent.learn("1", x, y)
    body = agent.network("1", x).body
    untrained = agent.new_method().fresh_network(inputs_of(torch.tensor(x)), None).body
    assert all(torch.equal(t, untrained.tensors[name]) for name, t in body.base.tensors.items())
    first, second, features = (24, 24, 24) if network == "module" else (100, 100, 100)
    low_rank = 3 * (16 + first) + 3 * (first + second)
    assert agent.storage() == {"main": 0, "tasks": {"1": 4 * (low_rank + 3 * (features + 1))}}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("method", [name for name, method in before.items() if method.takes("mlp")])
def test_every_method_works_with_every_optimiser(method, optimizer):
    stream, settings = Stream("1R 2T 3T 2R 3F 4R"), {**TINY, "optimizer": optimizer}
    agent, never = run_stream(stream, method, **settings), run_stream(stream.counterfactual(), method, **settings)
    assert (agent.digest() == never.digest()) == METHODS[method].forgets_exactly()
    assert Agent.from_state(agent.state().to_bytes()).digest() == agent.digest()
    x = make_task("4")[0]
    assert agent.logits("4", torch.tensor(x)).isfinite().all()
    others = [o for o in ("sgd", "momentum", "adam", "adamw") if o != optimizer]
    different = run_stream(stream, method, **{**settings, "optimizer": others[0]})
    assert not torch.equal(agent.logits("4", torch.tensor(x)), different.logits("4", torch.tensor(x)))


class Plain(NetworkMethod):
    """Trains with one call of the network per step, or with one per example; all parameters, or some."""

    name = "plain"
    calls, only = "one", None

    def learn(self, state, task, data, temporary):
        known = self.read(state, inputs=inputs_of(data))

        def loss(net, batch):
            if self.calls == "one":
                return cross_entropy(net.logits((task, batch.x))[0], batch.y)
            halves = zip(batch.x.chunk(2, 1), batch.y.chunk(2, 1))
            return sum(cross_entropy(net.logits((task, x))[0], y) for x, y in halves) / 2

        start = self.with_fresh_head(known.main, task, data.classes)
        known.main = self.fit(task, start, self.batches(task, data), loss, only=self.only)
        return self.learned(state, task, data, temporary, known)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("network", ["mlp", "module"])
def test_a_step_may_call_the_network_several_times(network, optimizer):
    class Halves(Plain):
        calls = "two"

    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
    settings = {"network": module if network == "module" else "mlp", "epochs": 1, "batch_size": 48}  # a single step
    one, two = (run_stream("1R", m, seeds=[0, 1], optimizer=optimizer, **settings) for m in (Plain, Halves))
    x = make_task("1")[0]
    a, b = (agent.network("1", x).parameters() for agent in (one, two))
    start = one.new_method().fresh_network(inputs_of(torch.tensor(x)), None).parameters()
    for name, value in start.items():
        moved = (a[name] - value).abs().max()
        assert moved > 0
        # Adam divides by the gradient's size, so that rounding shows where the gradient is nearly zero.
        assert ((a[name] - b[name]).abs() <= 0.01 * moved).float().mean() > (0.99 if optimizer == "sgd" else 0.9), name


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("network", ["mlp", "module", "resnet18"])
@pytest.mark.parametrize("trained", ["one of the body", "the head", "a weight of the head"])
def test_training_may_be_for_some_parameters_only(network, optimizer, trained):
    module = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 8))
    chosen = nn.Sequential(nn.Flatten(), *module) if network == "module" else network
    x, y = make_task("1", shape=(1, 8, 8))
    options = {"width": 1} if network == "resnet18" else {}
    start = Agent(Plain, chosen, **options).network("1", x).parameters()
    of_body = [name for name in start if name.endswith("weight")][-1]
    names = {
        "one of the body": [of_body],
        "the head": ["head 1.weight", "head 1.bias"],
        "a weight of the head": ["head 1.weight"],
    }[trained]
    method = type("Some", (Plain,), {"only": names})
    agent = Agent(method, chosen, epochs=1, optimizer=optimizer, **options)
    agent.learn("1", x, y)
    learned = agent.network("1", x).parameters()
    head = agent.new_method().with_fresh_head(agent.network("1", x), "1", 3).heads["1"]
    start |= {"head 1.weight": head.weight, "head 1.bias": head.bias}
    assert {name for name, value in start.items() if not torch.equal(value, learned[name])} == set(names)


def test_a_body_that_defines_no_fisher_has_one_that_goes_through_the_examples_one_by_one():
    network = run_stream("1R", "ewc", seeds=[0, 1], **TINY).network("1", make_task("1")[0])
    x, y = torch.tensor(make_task("1")[0])[:10], torch.arange(10) % 3
    slow, fast = (f(network.body, x, y, network.heads["1"]) for f in (Body.fisher, type(network.body).fisher))
    for name, value in fast.items():
        assert torch.allclose(slow[name], value, rtol=1e-4, atol=1e-9)
