"""CLPU-DER++: continual learning and exact private unlearning (Liu, Liu & Stone 2022, Algorithm 1).

The agent holds a main network θ_main and, for each temporary task, an isolated network θ̂ with a memory
of its own. A temporary task touches neither θ_main nor any other task, so forgetting it is removing it.

Where the algorithm box and the text differ, the text counts, as in the authors' experiment: only
*remembered* tasks are rehearsed (rehearsing a temporary one would write it into θ_main), and a temporary
network learns from its own data alone.
"""

from __future__ import annotations

from clpu.losses import Loss
from clpu.memory import Memory
from clpu.methods.base import register
from clpu.methods.derpp import Dark, DarkSettings
from clpu.networks.network import Network
from clpu.training import Examples


@register
class CLPUDERppScratch(Dark):
    """The variant whose temporary networks start from scratch."""

    name = "clpu-der++-scratch"
    exact = True
    Settings = DarkSettings
    twins = ("clpu-der++", "clpu-der++-scratch")  # until the first merge their main networks are the same

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        if not temporary:
            # Case I: DER++ on the main network.
            self.main, self.memories[task] = self.learned(task, data, self.main, self.remembered())
        else:
            # Case II: SGD on an isolated network, on the task's own data only.
            self.isolated[task], self.memories[task] = self.learned(task, data, self.start(task), {})

    def keep(self, task: str) -> None:
        """Case III: merge θ̂ into θ_main by distillation on the memories, then remove θ̂.

        α·(f − h)² + β·ℓ on the task's own memory, and the same averaged over the remembered tasks.
        """
        own = self.rehearsal({task: self.memories[task]}, task, "merge")
        others = self.rehearsal(self.remembered(), task, "merge rehearsal")

        def loss(net: Network, step: int) -> Loss:
            samples = [*own.draw(), *others.draw()]
            outputs = net.logits(*((s.tasks, s.x) for s in samples))
            mine, *rest = (self.replayed(s, h) for s, h in zip(samples, outputs))
            return mine + others.mean(rest)

        entry = self.ledger[task]
        network = self.with_fresh_head(self.main, task, len(entry.labels))
        self.main = self.fit(task, network, range(entry.steps), loss, "merge")
        del self.isolated[task]

    def forget(self, task: str) -> None:
        """Case IV: remove θ̂ and B. They are all that stands under the task's name, and that is dropped by itself."""

    def start(self, task: str) -> Network:
        """θ̂ before its first step."""
        return self.fresh_network(task)

    def remembered(self) -> dict[str, Memory]:
        """The memories B of the remembered tasks."""
        return {t: self.memories[t] for t in self.ledger.remembered}

    def network_of(self, task: str) -> Network:
        return self.isolated.get(task) or self.main


@register
class CLPUDERpp(CLPUDERppScratch):
    """The method itself: a temporary network starts from the main one, so it benefits from what was learned."""

    name = "clpu-der++"

    def start(self, task: str) -> Network:
        return self.main.without_heads()
