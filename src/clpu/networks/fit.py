"""The training loop: one step of gradient descent for each batch, on a loss that a method writes down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

from clpu.errors import Diverged
from clpu.learning.losses import Loss
from clpu.networks.learner import Descent, Learner, Trainee
from clpu.networks.network import Network

try:  # The fast path. Without it everything is right, only slower.
    from clpu.networks.fast import folded_learner
except ImportError:  # pragma: no cover

    def folded_learner(network: Network, descent: Descent) -> None:  # type: ignore[misc]
        return None


Step = TypeVar("Step", covariant=True)


class Steps(Protocol[Step]):
    """Anything with a length to iterate over: `Batches`, or `range(n)` where no new data come in."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Step]: ...


def fit(
    network: Network,
    steps: Steps[Step],
    loss: Callable[[Trainee, Step], Loss | Tensor],
    descent: Descent,
    progress: Callable[[int, int], None] | None = None,
) -> Network:
    """Train a copy of a network: for each step, one step of descent on `loss(copy, step)`.

    A loss may call the copy's `logits` as often as it likes and use its `parameters`; everything is differentiated.
    """
    total = len(steps)
    learner = folded_learner(network, descent) or Learner(network, descent)
    for done, step in enumerate(steps, 1):
        learner.step(loss(learner, step))
        if progress is not None:
            progress(done, total)
    trained: Network = learner.network()
    if not trained.is_finite():
        raise Diverged(f"training ended in NaN or infinity after {total} steps; try a lower lr than {descent.lr}")
    return trained
