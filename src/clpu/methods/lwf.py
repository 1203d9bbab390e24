"""LwF: learning without forgetting (Li & Hoiem 2017)."""

from __future__ import annotations

from clpu.learning.batches import Batch, Examples
from clpu.learning.losses import Loss, cross_entropy
from clpu.methods.base import inputs_of, register
from clpu.methods.distillation import DistillationMethod
from clpu.networks.learner import Trainee
from clpu.state import State


@register
class LwF(DistillationMethod):
    """Cross-entropy on the new task plus distillation; forgetting leaves the task out of what is distilled."""

    name, label = "lwf", "LwF"
    costs = (2.4, 0, 0)

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        known = self.read(state, inputs=inputs_of(data))
        if not state.tasks:
            known.main, _ = self.train_plain(task, data, known.main)
            return self.learned(state, task, data, temporary, known)
        groups = self.group_by_class_count(state, list(state.tasks))
        teacher = self.teacher(known.main, groups, data)

        def loss(net: Trainee, batch: Batch) -> Loss:
            new, *old = net.logits((task, batch.x), *((group, batch.x) for group in groups))
            return cross_entropy(new, batch.y) + self.distillation_loss(groups, old, teacher(batch))

        start = self.warm_up_head(state, known.main, task, data)
        known.main = self.fit(task, start, self.batches(task, data), loss)
        return self.learned(state, task, data, temporary, known)

    def forget(self, state: State, task: str) -> State:
        return self.without_training(state, task)
