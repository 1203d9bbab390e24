"""A-GEM with Adam: averaged gradient episodic memory (Chaudhry et al. 2019, arXiv:1812.00420, equation 11).

Before each step the gradient g of the new task is compared with the gradient r of past tasks' memories. Where they
disagree (gᵀr < 0), the part of g that would undo the past is removed: g − (gᵀr / rᵀr) r.
"""

from dataclasses import dataclass

from clpu.learning.losses import cross_entropy
from clpu.methods import NetworkMethod, inputs_of, register
from clpu.settings import Training, setting


@dataclass(frozen=True)
class AGEMSettings(Training):
    optimizer: str = setting("adam", "optimiser", choices=("sgd", "momentum", "adam", "adamw"))
    lr: float = setting(0.001, "learning rate", above=0)
    memory: int = setting(200, "examples kept of each task", at_least=1)
    replay_batch_size: int = setting(32, "examples of past tasks per reference gradient", at_least=1)


@register
class AGEM(NetworkMethod):
    """One network; steps that would increase the loss on past tasks' memories are corrected."""

    name, label = "agem", "A-GEM"
    forgets = "nothing"  # the main network keeps what it learned
    stores = ("memory",)
    costs = (4, 0, 0)
    Settings = AGEMSettings

    def learn(self, state, task, data, temporary):
        known = self.read(state, inputs=inputs_of(data))
        batches = self.batches(task, data)
        reservoir = self.reservoir(task, batches)
        rehearsal = self.rehearsal(state, known.memories, task, "reference")

        def loss(net, batch):
            reservoir.see(batch)
            return cross_entropy(net.logits((task, batch.x))[0], batch.y)

        def edit(net, gradients):
            samples = rehearsal.draw()
            outputs = net.logits(*((s.tasks, s.x) for s in samples))
            past = rehearsal.mean(cross_entropy(h, s.y) for h, s in zip(outputs, samples))
            return project(gradients, net.gradients(past))

        start = self.with_fresh_head(known.main, task, data.classes)
        known.main = self.fit(task, start, batches, loss, edit=edit if known.memories else None)
        known.memories[task] = reservoir.memory()
        return self.learned(state, task, data, temporary, known)

    def forget(self, state, task):
        return self.without_training(state, task)


def project(gradients, reference):
    """g − min(0, gᵀr) / rᵀr · r, for each replica (the first axis) by itself."""

    def dot(a, b):
        return sum((a[name] * b[name]).flatten(1).sum(1) for name in a if name in b)

    factor = (dot(gradients, reference) / dot(reference, reference).clamp(min=1e-30)).clamp(max=0)
    corrected = dict(gradients)
    for name, r in reference.items():
        change = -factor.view(-1, *[1] * (r.dim() - 1)) * r
        corrected[name] = gradients[name] + change if name in gradients else change
    return corrected
