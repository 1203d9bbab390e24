"""The inputs of a step share one buffer, which is reused at every step and at no other time."""

import pytest
import torch

from clpu.networks.blueprint import Blueprint, Inputs
from clpu.networks.learner import Descent

fast = pytest.importorskip("clpu.networks.fast")
CPU = torch.device("cpu")


def images(seed):
    return torch.randint(0, 256, (2, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def learner():
    blueprint = Blueprint("mlp", {"hidden": (5,)}, CPU)
    network = blueprint.network(Inputs((6,)), [0, 1])
    for task in "ab":
        network = network.with_head(task, blueprint.head(5, 3, [0, 1], task))
    made = fast.folded_learner(network, Descent(0.1))
    assert made is not None
    return made


def test_a_look_at_other_inputs_in_the_middle_of_a_step_does_not_change_the_step():
    looking, plain = learner(), learner()
    for network in (looking, plain):
        for step in range(3):
            outputs = network.logits(("a", images(step)), ("b", images(10 + step)))
            if network is looking:
                with torch.no_grad():
                    network.logits(("a", images(20 + step)), ("b", images(30 + step)))
            network.step(sum(h.square().mean() for h in outputs))
    for name, value in plain.network().body.tensors.items():
        assert torch.equal(value, looking.network().body.tensors[name])


def test_every_step_learns_from_its_own_inputs():
    """Steps with equal shapes share a buffer; a step alone, from the same state, must do the same."""
    network = learner()
    for step in range(3):
        fresh = fast.folded_learner(network.network(), Descent(0.1))
        for one in (network, fresh):
            one.step(sum(h.square().mean() for h in one.logits(("a", images(step)), ("b", images(10 + step)))))
        for name, value in network.network().body.tensors.items():
            assert torch.equal(value, fresh.network().body.tensors[name])
