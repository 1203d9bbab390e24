"""Networks with a replica axis against ordinary modules."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from clpu import Agent
from clpu.learning.randomness import generators
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.learner import Descent, Learner, QuadraticPenalty
from clpu.networks.linear import Linear
from clpu.networks.network import Network
from clpu.networks.resnet import ResNet18
from oracle import LEARNERS, ClearOfBends, assert_rounded

CPU = torch.device("cpu")
HEAD = ("head 1.weight", "head 1.bias")


def some(*shape, seed=0):
    """Numbers that are the same on every CPU, which those that torch draws in float32 are not."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).float()


def resnet(seeds=(0, 1), width=2, shape=(3, 8, 8)):
    blueprint = Blueprint("resnet18", {"width": width}, CPU)
    network = blueprint.network(Inputs(shape), seeds)
    return network.with_head("1", blueprint.head(network.body.features, 3, seeds, "1"))


def ordinary(network, k, channels=3, width=2):
    module = ResNet18(channels, width)
    module.load_state_dict({name: tensor[k] for name, tensor in network.body.tensors.items()})
    return module


def test_resnet18_has_the_usual_number_of_parameters():
    with torch.device("meta"):
        count = sum(p.numel() for p in ResNet18(3, 64).parameters())
    assert count == 11_168_832  # torchvision's resnet18 with a 3×3 stem and without its last layer
    assert sum(1 for m in ResNet18(3, 2).modules() if isinstance(m, nn.Conv2d)) == 20


def test_building_a_resnet_draws_nothing_from_the_global_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    resnet()
    assert torch.equal(before, torch.get_rng_state())


def test_a_fresh_resnet_starts_as_torch_would_start_it():
    body = resnet(width=16).body
    tensors = body.tensors
    weight = tensors["blocks.3.conv2.weight"]
    bound = (1 / (weight.shape[2] * 9)) ** 0.5
    assert 0.9 * bound < float(weight.abs().max()) <= bound
    assert (tensors["norm.weight"] == 1).all()
    assert (tensors["norm.bias"] == 0).all()
    assert (tensors["norm.running_var"] == 1).all()
    assert not torch.equal(weight[0], weight[1])


def in_float64(network, k):
    """Replica k of a resnet as ordinary modules in float64: the body and the head of task 1."""
    head = nn.Linear(16, 3, dtype=torch.float64)
    head.weight.data, head.bias.data = network.heads["1"].weight[k].T.double(), network.heads["1"].bias[k, 0].double()
    return nn.ModuleDict({"body": ordinary(network, k).double(), "head": head})


def outputs_of(model, x):
    """All in float64, where the body's own `forward` ends in float32."""
    body = model.body
    return model.head(body.blocks(F.relu(body.norm(body.stem(x.double())))).mean((2, 3)))


def network_of(models, like):
    """A network with a replica for each of these models in float64, which are rounded to float32 for it."""
    states = [model.float().double().body.state_dict() for model in models]
    tensors = {n: torch.stack([s[n] for s in states]).to(t.dtype) for n, t in like.body.tensors.items()}
    weight = torch.stack([model.head.weight.data.T for model in models]).float()
    bias = torch.stack([model.head.bias.data.unsqueeze(0) for model in models]).float()
    return Network(like.body.with_tensors(tensors), {"1": Linear(weight, bias)}, like.pixels)


def test_training_a_module_body_is_plain_sgd_with_batchnorm_statistics():
    """BatchNorm on few examples multiplies rounding errors, so every step begins where one in float64 ended."""
    start = network = resnet(shape=(3, 4, 4))
    x, y = some(4, 2, 16, 3, 4, 4, seed=2), torch.arange(128).view(4, 2, 16) % 3
    models = [in_float64(network, k).train() for k in range(2)]
    for step in range(4):
        learner, before = Learner(network, Descent(0.05, 0.1)), copy.deepcopy(models)
        logits = learner.logits(("1", x[step]))[0]
        learner.step(sum(F.cross_entropy(logits[k], y[step, k]) for k in range(2)) / 2)
        for k, model in enumerate(models):
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
            optimiser.zero_grad()
            with ClearOfBends():
                F.cross_entropy(outputs_of(model, x[step, k]), y[step, k]).backward()
            optimiser.step()
            got, begun = in_float64(learner.network(), k).state_dict(), before[k].state_dict()
            for name, value in model.state_dict().items():
                assert_rounded(got[name], value, begun[name], f"step {step}, {name}", units=1024)
            assert int(got["body.norm.num_batches_tracked"]) == step + 1
        network = network_of(models, network)
    assert int(start.body.tensors["norm.num_batches_tracked"][0]) == 0


def test_evaluation_uses_batchnorm_statistics_and_changes_none():
    network = resnet()
    x = some(5, 3, 8, 8)
    before = {n: t.clone() for n, t in network.body.tensors.items()}
    outputs = network.evaluate(network.heads["1"], x)
    for k in range(2):
        module = ordinary(network, k).eval()
        expected = module(x) @ network.heads["1"].weight[k] + network.heads["1"].bias[k]
        assert torch.allclose(outputs[k], expected, atol=1e-5)
    assert all(torch.equal(t, before[n]) for n, t in network.body.tensors.items())


def test_the_penalty_on_a_users_module_is_differentiated_as_the_formula_says():
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    blueprint = Blueprint(module, {}, CPU)
    network = blueprint.network(Inputs((4,)), [0, 1])
    network = network.with_head("1", blueprint.head(5, 3, [0, 1], "1"))
    start = network.body.tensors
    fisher = {n: some(*t.shape, seed=7).abs() + 0.1 for n, t in start.items()}
    anchor = {n: t + 0.5 for n, t in start.items()}
    penalty = QuadraticPenalty.towards(3.0, [(fisher, anchor), (fisher, anchor)])
    x, learner = some(2, 3, 4), Learner(network, Descent(0.1, 0.02, penalty=penalty))
    learner.step(learner.logits(("1", x))[0].square().sum() / 2)
    for k in range(2):
        theta = {n: t[k].detach().clone().requires_grad_() for n, t in start.items()}
        outputs = functional_call(module, theta, (x[k],)) @ network.heads["1"].weight[k] + network.heads["1"].bias[k]
        loss = outputs.square().sum()
        loss = loss + 2 * 3.0 * sum((fisher[n][k] * (t - anchor[n][k]) ** 2).sum() for n, t in theta.items())
        loss.backward()
        for name, t in theta.items():
            expected = t - 0.1 * (t.grad + 0.02 * t)
            assert torch.allclose(expected, learner.network().body.tensors[name][k], atol=1e-6)


class Unbatchable(nn.Module):
    """A module that vmap refuses: its course depends on its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        return self.linear(x) if float(x.sum()) > 0 else torch.tanh(self.linear(x))


@pytest.mark.parametrize("module", [nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh()), Unbatchable()])
def test_the_fisher_of_a_users_module_is_the_per_example_sum(module):
    blueprint = Blueprint(module, {}, CPU)
    network = blueprint.network(Inputs((4,)), [0])
    head = blueprint.head(5, 3, [0], "1")
    x, y = some(7, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    got = network.with_head("1", head).fisher("1", x, y, rows=3)
    reference = copy.deepcopy(module).double().eval()
    expected = {n: torch.zeros_like(p) for n, p in reference.named_parameters()}
    for i in range(7):
        reference.zero_grad()
        outputs = reference(x[i : i + 1].double()) @ head.weight[0].double() + head.bias[0]
        log_p = F.log_softmax(outputs, -1)[0, y[i]]
        log_p.backward()
        for n, p in reference.named_parameters():
            expected[n] += log_p.exp().detach() * p.grad**2 / 7
    for name, value in expected.items():
        assert_rounded(got[name][0], value, 0 * value, name)


def test_the_fisher_of_a_resnet_is_the_per_example_sum():
    network = resnet(shape=(3, 4, 4))
    tensors = dict(network.body.tensors)
    for seed, (name, t) in enumerate(tensors.items()):  # statistics and weights that are not those of the start
        if t.is_floating_point():
            moved = t + 0.2 * some(*t.shape, seed=seed)
            tensors[name] = moved.abs() if "var" in name else moved
    network = Network(network.body.with_tensors(tensors), network.heads, network.pixels)
    x, y = some(5, 3, 4, 4, seed=1), torch.tensor([0, 1, 2, 0, 1])
    got = network.fisher("1", x, y, rows=2)
    for k in range(2):
        model = in_float64(network, k).eval()
        expected = {n: torch.zeros_like(p) for n, p in model.body.named_parameters()}
        for i in range(5):
            model.zero_grad()
            with ClearOfBends():
                log_p = F.log_softmax(outputs_of(model, x[i : i + 1]), -1)[0, y[i]]
                log_p.backward()
            for n, p in model.body.named_parameters():
                expected[n] += log_p.exp().detach() * p.grad**2 / 5
        assert set(got) == set(expected)
        for name, value in expected.items():
            assert_rounded(got[name][k], value, 0 * value, name, units=1024)
            assert float(value.abs().sum()) > 0


def test_inputs_of_several_parts_go_through_the_body_once(monkeypatch):
    network = resnet(seeds=(0,))
    network = network.with_head("2", Blueprint("mlp", {}, CPU).head(16, 4, [0], "2"))
    sizes = []
    forward = ResNet18.forward
    monkeypatch.setattr(ResNet18, "forward", lambda self, x: (sizes.append(len(x)), forward(self, x))[1])
    x, other = some(1, 5, 3, 8, 8), some(1, 2, 3, 8, 8)
    outputs = Learner(network, Descent(0.1)).logits(("1", x), ("2", x), ("2", other))
    assert sizes == [7]
    assert [tuple(o.shape) for o in outputs] == [(1, 5, 3), (1, 5, 4), (1, 2, 4)]


@pytest.mark.parametrize("train", LEARNERS.values(), ids=LEARNERS)
def test_several_calls_in_one_step_are_differentiated_together_with_the_weights_before_it(train):
    blueprint = Blueprint("mlp", {"hidden": (7,)}, CPU)
    network = blueprint.network(Inputs((4,)), [0]).with_head("1", blueprint.head(7, 3, [0], "1"))
    x, other = some(1, 5, 4), some(1, 2, 4, seed=1)
    one, two = train(network, Descent(0.1)), train(network, Descent(0.1))
    first, second = one.logits(("1", x), ("1", other))
    one.step(first.square().mean() + second.square().mean())
    first = two.logits(("1", x))[0]
    with torch.no_grad():
        unmoved = two.logits(("1", x))[0]
    assert torch.allclose(first, unmoved, atol=1e-6)
    two.step(first.square().mean() + two.logits(("1", other))[0].square().mean())
    for name, tensor in one.network().parameters().items():
        assert torch.allclose(tensor, two.network().parameters()[name], atol=1e-6)
        assert not torch.equal(tensor, network.parameters()[name])


def test_only_what_is_named_is_trained():
    network = resnet(seeds=(0,))
    learner = Learner(network, Descent(0.1, 0.01, only=HEAD))
    learner.step(learner.logits(("1", some(1, 5, 3, 8, 8)))[0].square().sum())
    before, after = network.parameters(), learner.network().parameters()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(HEAD)


def test_a_head_alone_is_trained_on_features_as_they_are_in_training():
    """By the statistics of each batch, which the running statistics follow: as the authors' warm-up has it."""
    network, x = resnet(seeds=(0,)), some(1, 5, 3, 8, 8)
    learner = Learner(network, Descent(0.1, only=HEAD))
    module = ordinary(network, 0).train()
    expected = module(x[0]) @ network.heads["1"].weight[0] + network.heads["1"].bias[0]
    assert torch.allclose(learner.logits(("1", x))[0][0], expected, atol=1e-5)
    statistics = learner.network().body.tensors["norm.running_mean"][0]
    assert torch.allclose(statistics, module.norm.running_mean, atol=1e-6)


def test_heads_and_bodies_are_drawn_for_seed_and_task_alone():
    blueprint = Blueprint("mlp", {}, CPU)
    one, two = blueprint.head(8, 3, [4, 5], "t"), blueprint.head(8, 3, [5], "t")
    assert torch.equal(one.weight[1:], two.weight)
    assert not torch.equal(one.weight[:1], two.weight)
    assert not torch.equal(blueprint.head(8, 3, [5], "u").weight, two.weight)
    a, b = blueprint.body(Inputs((3,)), [1], "t"), blueprint.body(Inputs((3,)), [1], "t")
    assert all(torch.equal(x, y) for x, y in zip(a.tensors.values(), b.tensors.values()))


def test_generators_of_different_seed_task_or_purpose_are_different():
    keys = [
        (0, "1", "a"),
        (1, "1", "a"),
        (0, "2", "a"),
        (0, "1", "b"),
        (0, None, "a"),
        (0, "None", "a"),
        (-1, "1", "a"),
    ]
    draws = {tuple(torch.rand(4, generator=generators([s], t, p)[0]).tolist()) for s, t, p in keys}
    assert len(draws) == len(keys)


def test_mixed_precision_computes_in_bfloat16_and_keeps_everything_in_float32():
    x = some(2, 6, 3, 8, 8)
    full, mixed = (
        Blueprint("resnet18", {"width": 8, "mixed_precision": m}, CPU).network(Inputs((3, 8, 8)), [0, 1])
        for m in (False, True)
    )
    a, b = (network.body.forward(x) for network in (full, mixed))
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert torch.allclose(a, b, atol=0.05 * float(a.abs().max()))
    head = Blueprint("resnet18", {"width": 8}, CPU).head(64, 3, [0, 1], "1")
    learner = Learner(mixed.with_head("1", head), Descent(0.1))
    learner.step(learner.logits(("1", x))[0].square().mean())
    tensors = learner.network().body.tensors
    assert {t.dtype for n, t in tensors.items() if "num_batches" not in n} == {torch.float32}
    assert not torch.equal(tensors["stem.weight"], mixed.body.tensors["stem.weight"])


def test_mixed_precision_takes_the_weights_of_every_step_and_has_a_fisher(monkeypatch):
    x, y = some(16, 3, 8, 8), torch.arange(16) % 2
    settings = {"width": 8, "mixed_precision": True, "epochs": 3, "batch_size": 8, "lr": 0.1}
    agent = Agent("ewc", "resnet18", **settings)
    agent.learn("1", x, y)
    assert all(t.isfinite().all() for t in agent.new_method().read(agent.state()).extras["1"].values())
    clearing = Agent("ewc", "resnet18", **settings)
    forward = ResNet18.forward
    monkeypatch.setattr(ResNet18, "forward", lambda self, x: (torch.clear_autocast_cache(), forward(self, x))[1])
    clearing.learn("1", x, y)
    assert clearing.digest() == agent.digest()


def test_a_body_that_is_not_trained_keeps_nothing_for_a_backward_pass():
    learner = Learner(resnet(seeds=(0,)), Descent(0.1, only=HEAD))
    features = 5 * 16
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        outputs = learner.logits(("1", some(1, 5, 3, 8, 8)))[0]
    assert outputs.requires_grad
    assert max(kept) <= features  # what the head's own gradient needs, and nothing of the body
