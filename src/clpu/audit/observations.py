"""Observations of a group of agents after a forget request: outputs, features, and the course of relearning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clpu.agent import Agent
from clpu.learning.batches import Batch, Batches, Examples
from clpu.learning.losses import Loss, cross_entropy
from clpu.learning.randomness import generators
from clpu.networks.fit import fit
from clpu.networks.learner import Descent, Trainee
from clpu.runs.jobs import TaskData, answers

Array = NDArray[np.float32]

#: The name under which a later task is learned to see whether a forgotten one reappears.
LATER_TASK = "a later task"


@dataclass(frozen=True)
class Sizes:
    """The extent of observation: test images, training examples attacked, and the steps and stops of relearning."""

    images: int
    members: int
    steps: int
    stops: int

    def marks(self) -> list[int]:
        """The steps after which relearning stops to measure, 0 included.

        >>> Sizes(10, 10, 48, 4).marks()
        [0, 12, 24, 36, 48]
        """
        return [round(self.steps * i / self.stops) for i in range(self.stops + 1)]


@dataclass(frozen=True, eq=False)
class Observations:
    """One group of K runs, about one forgotten task.

    outputs     (K, images, classes)         log-probabilities on the task's test images
    others      (K, images, columns)         log-probabilities for the active tasks on the same images, if any
    features    (K, images, features)        what the network that answers for the task makes of these images
    confidence  (K, members)                 log p/(1-p) of the right class on the task's training examples
    accuracy    (K,)                         on the test images, right after the forget request
    relearning  (K, stops + 1)               test accuracy while the task is learned again by plain SGD, if it can be
    relapse     (K,)                         test accuracy after one more task was learned
    """

    outputs: Array
    others: Array
    features: Array
    confidence: Array
    accuracy: Array
    relearning: Array
    relapse: Array

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def joined(parts: Sequence[Observations]) -> Observations:
        """Groups of runs as one group."""
        return Observations(
            **{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Observations)}
        )


def observe(agent: Agent, task: TaskData, sizes: Sizes, data: Mapping[str, TaskData]) -> Observations:
    """All but the relapse, which is seen after another task was learned; the agent stays as it is.

    `task` has what was forgotten: a task, or the records of one that were about a person. `data` are all tasks.
    """
    images, labels = task.test_x[: sizes.images], task.test_y[: sizes.images]
    outputs = answers(agent, task, images)
    active = [name for name in agent.tasks if name != task.name]
    others = [F.log_softmax(answers(agent, data[name], images), -1) for name in active]
    members = answers(agent, task, task.train_x[: sizes.members])
    return Observations(
        outputs=_array(F.log_softmax(outputs, -1)),
        others=_array(torch.cat(others, -1) if others else outputs[..., :0]),
        features=_array(features(agent, task.name, images)),
        confidence=_array(confidence(members, positions(task, task.train_y[: sizes.members]))),
        accuracy=_array(_right(outputs, positions(task, labels))),
        relearning=_array(relearn(agent, task, sizes)),
        relapse=np.zeros(len(agent.seeds), dtype=np.float32),
    )


def positions(task: TaskData, labels: Tensor) -> Tensor:
    """Labels as columns of the outputs.

    Labels that do not occur among the task's classes would be found at a wrong place: the data are checked before.
    """
    return torch.searchsorted(torch.tensor(task.classes), labels.cpu().long())


def confidence(logits: Tensor, classes: Tensor) -> Tensor:
    """log p/(1-p) of the right class, from logits (K, n, classes): z_y - log Σ_{c≠y} exp z_c.

    On this scale confidences of many runs are about normal (Carlini et al. 2022).

    >>> confidence(torch.tensor([[[0.0, 0.0]]]), torch.tensor([1]))
    tensor([[0.]])
    """
    chosen = classes.to(logits.device).expand(logits.shape[:2]).unsqueeze(-1)
    right = logits.gather(-1, chosen).squeeze(-1)
    rest = logits.scatter(-1, chosen, float("-inf")).logsumexp(-1)
    return right - rest


@torch.no_grad()
def features(agent: Agent, task: str, x: Tensor) -> Tensor:
    """Return the features (K, n, features) of inputs in the network that answers for a task."""
    network = agent.network(task, x)
    if network is None:  # a method without a network has nothing to look into
        return torch.zeros(len(agent.seeds), len(x), 0)
    return network.features(x.to(network.body_device))


def relearn(agent: Agent, task: TaskData, sizes: Sizes) -> Tensor:
    """Test accuracy (K, stops + 1) while a copy of the network learns the task by plain SGD.

    The auditor's own training, not the method's: the same steps for every method, from whatever the network has.
    A head that was kept is part of that.
    """
    network = agent.network(task.name, task.train_x)
    if network is None:
        return torch.zeros(len(agent.seeds), 0)
    if task.name not in network.heads or network.heads[task.name].outputs != len(task.classes):
        network = agent.new_method().with_fresh_head(network, task.name, len(task.classes))
    settings, device = agent.settings, network.body_device
    data = Examples(task.train_x.to(device), positions(task, task.train_y).to(device), task.classes)
    batch_size = settings.get("batch_size", 32)
    batches = Batches(data, sizes.steps, batch_size, generators(agent.seeds, task.name, "audit"))
    images, labels = task.test_x[: sizes.images].to(device), positions(task, task.test_y[: sizes.images])

    def loss(net: Trainee, batch: Batch) -> Loss:
        return cross_entropy(net.logits((task.name, batch.x))[0], batch.y)

    steps, curve, marks = iter(batches), [], sizes.marks()
    for done, until in zip([0, *marks], marks):
        if until > done:
            descent = Descent(
                settings.get("lr", 0.01),
                settings.get("weight_decay", 0.0),
                generators=generators(agent.seeds, task.name, f"audit {done}"),
            )
            network = fit(network, [next(steps) for _ in range(until - done)], loss, descent)
        curve.append(_right(network.evaluate(network.heads[task.name], images), labels))
    return torch.stack(curve, -1)


def accuracy(agent: Agent, task: TaskData, sizes: Sizes) -> Array:
    """The share of test images that each run gets right, whether it knows the task or not."""
    outputs = answers(agent, task, task.test_x[: sizes.images])
    return _array(_right(outputs, positions(task, task.test_y[: sizes.images])))


def _right(outputs: Tensor, classes: Tensor) -> Tensor:
    return (outputs.argmax(-1) == classes.to(outputs.device)).double().mean(-1)


def _array(tensor: Tensor) -> Array:
    return tensor.cpu().numpy().astype(np.float32)
