"""Low-rank adapters on a frozen body (Hu et al. 2021, arXiv:2106.09685): each task trains W + down·up and its head.

The body is the untrained network of the seed, or your own module as you made it. It is never trained and not stored,
so a task costs its adapters and its head only. Tasks share nothing that is trained, so each can be forgotten exactly.
"""

from dataclasses import dataclass

from clpu.learning.randomness import uniform
from clpu.methods import NetworkMethod, inputs_of, register
from clpu.networks.body import Body
from clpu.settings import Training, setting


class AdaptedBody(Body):
    """A frozen body that computes with W + down·up in place of each weight W, seen as a matrix."""

    def __init__(self, base, tensors):
        self.base, self.tensors, self.parameters = base, dict(tensors), tuple(tensors)
        self.replicas, self.features = base.replicas, base.features

    def forward(self, x, tensors=None, training=False, generators=()):
        used, adapted = tensors or self.tensors, dict(self.base.tensors)
        for name in (name.removesuffix(".up") for name in used if name.endswith(".up")):
            change = used[f"{name}.down"] @ used[f"{name}.up"]
            adapted[name] = adapted[name] + change.view_as(adapted[name])
        return self.base.forward(x, adapted)  # never in training mode: statistics are frozen too

    def with_tensors(self, tensors):
        return AdaptedBody(self.base, {name: tensors[name] for name in self.tensors})

    def private(self):
        return AdaptedBody(self.base.private(), self.tensors)


@dataclass(frozen=True)
class AdapterSettings(Training):
    optimizer: str = setting("adam", "optimiser", choices=("sgd", "momentum", "adam", "adamw"))
    lr: float = setting(0.001, "learning rate", above=0)
    rank: int = setting(2, "rank of the change of each weight matrix", at_least=1)


@register
class Adapter(NetworkMethod):
    """A frozen body; each task has low-rank adapters of its weights, and a head."""

    name, label = "adapter", "Adapter"
    forgets = "tasks"
    costs = (1.5, 0, 0)
    Settings = AdapterSettings

    def learn(self, state, task, data, temporary):
        known = self.read(state, [], inputs_of(data))
        draws, adapters = self.generators(task, "adapters"), {}
        for name, (_, shape) in self.isolated_shapes(known.inputs).items():
            bound = shape[0] ** -0.5 if name.endswith(".down") else 0.0  # up = 0: starts as the frozen body
            adapters[name] = uniform(shape, bound, draws).to(self.device)
        start = known.main.with_body(self.isolated_body(adapters, known.inputs))
        known.isolated[task], _ = self.train_plain(task, data, start)
        return self.learned(state, task, data, temporary, known, main=False)

    def isolated_body(self, tensors, inputs):
        return AdaptedBody(self.fresh_network(inputs, None).body, tensors)

    def isolated_shapes(self, inputs):
        rank, frozen = self.settings.rank, self.fresh_network(inputs, None)
        weights = {name: w[0] for name, w in frozen.parameters().items() if w[0].squeeze().dim() > 1}
        down = {f"{name}.down": ("F32", (len(w), rank)) for name, w in weights.items()}
        return down | {f"{name}.up": ("F32", (rank, w[0].numel())) for name, w in weights.items()}
