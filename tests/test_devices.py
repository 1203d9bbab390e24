"""No GPU is available, but every tensor operation can be asked on which devices its tensors are.

The agent lives on torch's "meta" device, which has shapes but no numbers, and random numbers are drawn on the CPU as
always. An operation that a GPU would refuse, because its tensors are on two devices, is refused.
"""

from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import clpu.agent
import clpu.intake
import clpu.methods.familiarity
import clpu.methods.networks
from clpu import Agent, Stream
from clpu.learning.batches import Examples
from clpu.methods import METHODS
from clpu.networks.blueprint import Blueprint
from clpu.networks.network import Network

#: Operations that may move numbers between devices, and indexing, which takes indices from the CPU on any device.
MOVES = {torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.index}

SMALL = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices; single numbers may be anywhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
        devices = {t.device.type for t in tensors}
        assert len(devices) < 2 or func.overloadpacket in MOVES, f"{func} takes tensors on {sorted(devices)}"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def elsewhere(monkeypatch):
    """A device without numbers, and what cannot be asked there: whether they are finite or equal, and what they are."""
    monkeypatch.setattr(clpu.agent, "check_device", lambda device: torch.device("meta"))
    monkeypatch.setattr(clpu.methods.familiarity, "calibration", lambda *_: {})
    monkeypatch.setattr(clpu.methods.networks.NetworkMethod, "memory_accuracy", lambda *_: None)
    monkeypatch.setattr(Network, "is_finite", lambda self: True)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(clpu.methods.networks, "_same_bits", lambda one, other: False)
    probe = Blueprint.probe

    def probed(*args):
        with suppress(NotImplementedError):  # computed, but the outcome cannot be read
            probe(*args)
        return []

    monkeypatch.setattr(Blueprint, "probe", probed)

    def examples(x, y, *rest, **options):
        return Examples(x.to("meta"), torch.from_numpy(y).to("meta"), tuple(np.unique(y).tolist()))

    monkeypatch.setattr(clpu.intake, "read_examples", examples)


def test_an_operation_on_two_devices_is_noticed():
    with OneDevice(), pytest.raises(AssertionError, match=r"index_select.*cpu.*meta"):
        torch.zeros(4, device="meta").index_select(0, torch.tensor([1]))


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "network",
    [{"hidden": (6,)}, {"hidden": (6,), "augment": "crop-flip"}, {"network": SMALL, "augment": "crop-flip"}],
    ids=["mlp", "mlp-augmented", "module"],
)
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.takes("mlp")])
def test_a_method_works_on_one_device_alone(method, network):
    agent = Agent(method, seeds=(0, 1), epochs=1, batch_size=16, **network)
    x = torch.randint(0, 256, (32, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    with OneDevice():
        for request in Stream("1R 2T 3T 4R 2R 3F"):
            new = request.instruction.value != "F" and request.task not in agent.tasks
            agent.handle(request, *((x, np.arange(32) % (3 if request.task == "3" else 4)) if new else ()))
    network = agent.network("1", x)
    assert {t.device.type for t in network.parameters().values()} == {"meta"}
