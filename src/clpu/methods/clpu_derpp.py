"""CLPU-DER++: continual learning and exact private unlearning (Liu, Liu & Stone 2022, Algorithm 1).

The agent holds a main network θ_main and, for each temporary task, an isolated network θ̂ with a memory
of its own. A temporary task touches neither θ_main nor any other task, so forgetting it is removing its leaf.

Where the algorithm box and the text differ, the text counts, as in the authors' experiment: only
*remembered* tasks are replayed (replaying a temporary one would write it into θ_main), and a temporary
network learns from its own data alone.
"""

from __future__ import annotations

from clpu.learning.batches import Examples
from clpu.learning.losses import Loss
from clpu.methods.base import inputs_of, register
from clpu.methods.derpp import DarkReplay
from clpu.methods.networks import Knowledge
from clpu.methods.replay import ReplayMethod
from clpu.networks.learner import Trainee
from clpu.networks.network import Network
from clpu.state import State


class CLPU(ReplayMethod):
    """Learning of permanent and temporary tasks; `start` is where a temporary network begins."""

    forgets = "temporary"

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        if not temporary:
            # Case I: the main network learns it, while the remembered tasks are replayed.
            known = self.read(state, state.remembered, inputs_of(data))
            known.main, known.memories[task] = self.train_with_replay(state, task, data, known.main, known.memories)
            return self.learned(state, task, data, temporary, known)
        # Case II: SGD on an isolated network, on the task's own data only.
        known = self.read(state, [], inputs_of(data))
        start = self.start(known, task)
        known.isolated[task], known.memories[task] = self.train_with_replay(state, task, data, start, {})
        return self.learned(state, task, data, temporary, known, main=False)

    # Case IV: forgetting removes the task's leaf, which holds θ̂ and B. That is what every method does by default.

    def start(self, known: Knowledge, task: str) -> Network:
        """θ̂ before its first step: the main network, so that a temporary task benefits from what was learned."""
        return known.main.without_heads()


class Distilled(CLPU, DarkReplay):
    """Replay and merge are DER++ on the memories."""

    costs = (1.2, 2, 0)

    def keep(self, state: State, task: str) -> State:
        """Case III: merge θ̂ into θ_main by distillation on the memories, then remove θ̂.

        α·(f − h)² + β·ℓ on the task's own memory, and the same averaged over the remembered tasks.
        """
        known = self.read(state, [*state.remembered, task])
        remembered = {t: known.memories[t] for t in state.remembered}
        own = self.rehearsal(state, {task: known.memories[task]}, task, "merge")
        others = self.rehearsal(state, remembered, task, "merge rehearsal")

        def loss(net: Trainee, step: int) -> Loss:
            samples = [*own.draw(), *others.draw()]
            outputs = net.logits(*((s.tasks, s.x) for s in samples))
            mine, *rest = (self.replay_loss(s, h) for s, h in zip(samples, outputs))
            return mine + others.mean(rest)

        entry = state.tasks[task]
        network = self.with_fresh_head(known.main, task, len(entry.labels))
        known.main = self.fit(task, network, range(entry.facts["steps"]), loss, "merge")
        del known.isolated[task]
        return self.write(state, known)


@register
class CLPUDERppScratch(Distilled):
    """The variant whose temporary networks start from scratch."""

    name, label = "clpu-der++-scratch", "CLPU-DER++ (scratch)"

    def start(self, known: Knowledge, task: str) -> Network:
        return self.fresh_network(known.inputs, task)


@register
class CLPUDERpp(Distilled):
    """The paper's method: a temporary network starts from the main one."""

    name, label = "clpu-der++", "CLPU-DER++"
