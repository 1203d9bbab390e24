"""Parts of a step: mixed inputs, and inputs for several heads, against an obvious computation."""

import pytest
import torch
from torch import nn

from clpu.learning.losses import cross_entropy
from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.learner import Descent, Learner
from clpu.networks.parts import Each, Mixed
from clpu.testing import run_stream
from formulakit import (
    SETTINGS,
    each_learner,
    main_of,
    some,
)
from oracle import LEARNERS


@each_learner
def test_mixed_inputs_of_another_kind_at_a_later_step_are_not_taken_for_those_before(train):
    blueprint = Blueprint("mlp", {"hidden": (6,)}, torch.device("cpu"))
    net = blueprint.network(Inputs((5,)), [0]).with_head("a", blueprint.head(6, 3, [0], "a"))
    learner = train(net, Descent(0.0))
    x, codes, y = some(1, 3, 5), some(1, 3, 5, seed=1), torch.tensor([[0, 2, 1]])
    pixels = torch.randint(0, 256, x.shape, generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    share = torch.tensor([[0.2, 0.5, 0.9]])
    for inputs, other in [(x, x), (pixels, pixels), (x, codes), (pixels, codes)]:
        floats, beside = (t / 255 if t.dtype == torch.uint8 else t for t in (inputs, other))
        mixed = share.unsqueeze(2) * floats + (1 - share.unsqueeze(2)) * codes[:, y[0]]
        outputs = learner.logits(("a", Mixed(inputs, codes, y, share)), ("a", other))
        for got, expected in zip(outputs, (mixed, beside)):
            assert torch.allclose(got, net.heads["a"](net.body.forward(expected)), atol=1e-5)
        learner.step(sum(outputs).mean())


@pytest.mark.parametrize(
    ("network", "train"),
    [
        *(("mlp", train) for train in LEARNERS.values()),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh()), Learner),
    ],
)
@pytest.mark.parametrize("pixels", [False, True])
def test_mixed_inputs_are_weighted_sums_of_each_input_and_its_classs_code(network, train, pixels):
    blueprint = Blueprint(network, {"hidden": (6, 5)} if network == "mlp" else {}, torch.device("cpu"))
    net = blueprint.network(Inputs((3, 8, 8)), [0, 1])
    for task in "ab":
        net = net.with_head(task, blueprint.head(net.body.features, 4, [0, 1], task))
    x, codes, y = some(2, 3, 3, 8, 8), some(2, 4, 3, 8, 8, seed=1), torch.tensor([[0, 3, 1], [2, 2, 0]])
    if pixels:
        x = torch.randint(0, 256, x.shape, generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    floats, share = x / 255 if pixels else x, some(2, 3, seed=2).abs() % 1
    expected = torch.stack(
        [
            torch.stack([share[k, i] * floats[k, i] + (1 - share[k, i]) * codes[k, y[k, i]] for i in range(3)])
            for k in range(2)
        ]
    )
    learner = train(net, Descent(0.1, 0.01))
    for _ in range(2):  # a second step, with weights that moved
        plain = train(learner.network(), Descent(0.1, 0.01))
        asked = [("a", x), ("a", Mixed(x, codes, y, share)), ("b", x), ("b", codes)]
        by_hand = [("a", floats), ("a", expected), ("b", floats), ("b", codes)]
        for each, parts in ((learner, asked), (plain, by_hand)):
            outputs = each.logits(*parts)
            with torch.no_grad():
                again = each.network().logits(*parts)
            assert all(torch.allclose(o, a, atol=1e-5) for o, a in zip(outputs, again))
            each.step(sum(cross_entropy(h, y) for h in outputs[:3]) + outputs[3].square().mean())
        mine, theirs = learner.network(), plain.network()
        for name, tensor in mine.parameters().items():
            assert torch.allclose(tensor, theirs.parameters()[name], atol=1e-5)
    assert not any(torch.allclose(mine.heads[task].weight, net.heads[task].weight, atol=1e-3) for task in "ab")


def test_inputs_go_through_each_head_of_a_group_in_the_order_of_its_tasks():
    agent = run_stream("1R 2R 3R", "seq", seeds=[0, 1], **SETTINGS)
    network, x = main_of(agent), some(2, 5, 6)
    for learner in (network, *(train(network, Descent(0.1)) for train in LEARNERS.values())):
        alone = [network.logits((t, x))[0] for t in "132"]
        own, together, parts = learner.logits(("2", x), (Each(("1", "3")), x), (("1", "3"), torch.cat([x, x], 1)))
        assert torch.allclose(own, alone[2], atol=1e-6)
        assert torch.allclose(together, torch.cat(alone[:2], 1), atol=1e-6)
        assert torch.allclose(parts, together, atol=1e-6)
