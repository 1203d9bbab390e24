"""What the tests of formulas have in common: small agents, their networks and memories, and both learners."""

import pytest
import torch

from clpu.learning.batches import Examples
from clpu.learning.memory import Rehearsal
from clpu.networks.blueprint import Inputs
from clpu.testing import make_task
from oracle import LEARNERS

SETTINGS = {"hidden": (12, 8), "epochs": 2, "batch_size": 16, "lr": 0.05, "weight_decay": 0.01, "scaling": "none"}


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def examples(task):
    x, y = make_task(task)
    labels = sorted(set(y))
    return Examples(torch.tensor(x), torch.tensor([labels.index(v) for v in y]), tuple(labels))


def drawn(memories, samples, sources):
    return Rehearsal(memories, dict.fromkeys(memories, 3), samples, sources)


def by_task(samples):
    """The parts of the first replica's samples: task, x, y, logits."""
    for s in samples:
        share = s.x.shape[1] // len(s.tasks)
        for i, task in enumerate(s.tasks):
            rows = slice(i * share, (i + 1) * share)
            yield task, s.x[0, rows], s.y[0, rows], None if s.logits is None else s.logits[0, rows].double()


def known_to(agent):
    """What an agent's state holds, as networks, memories and further tensors."""
    return agent.new_method().read(agent.state())


def main_of(agent):
    return known_to(agent).main


def with_fresh_head(agent, task):
    """The main network with a head for a task of three classes that is about to be learned."""
    return agent.new_method().with_fresh_head(main_of(agent), task, 3)


def fresh(agent, task):
    """A network as drawn for the agent's seeds, with a head for the task."""
    method = agent.new_method()
    return method.with_fresh_head(method.fresh_network(Inputs((6,)), None), task, 3)


def warmed_up(agent, task):
    """The main network with a head for a task, which was trained first."""
    return agent.new_method().warm_up_head(agent.state(), main_of(agent), task, examples(task))


#: Both ways in which `fit` trains an MLP by plain SGD; the fixture is in conftest.py.
both_paths = pytest.mark.usefixtures("_path")
each_learner = pytest.mark.parametrize("train", LEARNERS.values(), ids=LEARNERS)
