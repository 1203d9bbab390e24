"""LSF: learning with selective forgetting (Shibata et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from clpu.errors import BadData
from clpu.learning.batches import Batch, Examples
from clpu.learning.losses import Loss, cross_entropy, mean, weighted
from clpu.learning.randomness import rand
from clpu.methods.base import inputs_of, register
from clpu.methods.distillation import DistillationMethod, DistillationSettings
from clpu.methods.ewc import ConsolidationMethod, EWCSettings
from clpu.methods.networks import Knowledge
from clpu.networks.blueprint import Inputs
from clpu.networks.learner import Trainee
from clpu.networks.parts import Each, Mixed
from clpu.settings import setting
from clpu.state import State


@dataclass(frozen=True)
class LSFSettings(EWCSettings, DistillationSettings):
    mnemonic: float = setting(10.0, "weight of the codes of retained tasks", at_least=0)


@register
class LSF(ConsolidationMethod, DistillationMethod):
    """Mnemonic codes: a Gaussian pattern per class, learned mixed with the class's inputs, represents it later.

    Cross-entropy on plain and on mixed inputs, on the codes of retained tasks, EWC's penalty and LwF's
    distillation. Forgetting drops the task's codes, F and θ*, and trains on the codes that are retained,
    for as many steps as the task took to learn.
    """

    name, label = "lsf", "LSF"
    costs = (4.2, 0, 1)
    # The penalty on the heads lets some of many replicas diverge at the learning rate of the other methods.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **ConsolidationMethod.presets,
        "digits small": {"lr": 0.05},
        "digits paper": {"lr": 0.05},
    }
    penalise_heads = True  # codes and distillation move the heads of earlier tasks
    Settings = LSFSettings

    def learn(self, state: State, task: str, data: Examples, temporary: bool) -> State:
        if data.x.dtype == torch.int64:
            raise BadData("lsf mixes inputs with noise, so it needs numbers, not tokens")
        known = self.read(state, inputs=inputs_of(data))
        past = list(state.tasks)
        groups = self.group_by_class_count(state, past)
        teacher = self.teacher(known.main, groups, data)
        past_codes = self.codes_of(known, groups)
        codes = torch.stack(
            [
                torch.randn(data.classes, *data.x.shape[1:], generator=g, dtype=torch.float32, device="cpu")
                for g in self.generators(task, "codes")
            ]
        ).to(self.device)
        mixing = self.generators(task, "mixing")

        def loss(net: Trainee, batch: Batch) -> Loss:
            x, share = batch.x, torch.stack([rand(batch.x.shape[1], source=g) for g in mixing])
            mixed = Mixed(x, codes, batch.y, share)
            outputs = net.logits((task, x), (task, mixed), *((group, x) for group in groups), *past_codes)
            new = mean(cross_entropy(h, batch.y) for h in outputs[:2])
            if not past:
                return new
            old, coded = outputs[2 : 2 + len(groups)], outputs[2 + len(groups) :]
            return new + self.code_loss(groups, coded) + self.distillation_loss(groups, old, teacher(batch))

        network = self.warm_up_head(state, known.main, task, data)
        known.main = self.fit(task, network, self.batches(task, data), loss, penalty=self.penalty(known, past))
        known.extras[task] = {"codes": codes}
        self.consolidate(known, task, data)
        return self.learned(state, task, data, temporary, known)

    def extra_shapes(self, inputs: Inputs, classes: int) -> dict[str, tuple[int, ...]]:
        return {**super().extra_shapes(inputs, classes), "codes": (classes, *inputs.shape)}

    def codes_of(self, known: Knowledge, groups: Sequence[Each]) -> list[tuple[tuple[str, ...], Tensor]]:
        """The codes of each group of tasks, the first task's first."""
        return [(tuple(group), torch.cat([known.extras[t]["codes"] for t in group], 1)) for group in groups]

    def code_loss(self, groups: Sequence[Each], outputs: Sequence[Tensor]) -> Loss:
        """weight / |retained| · Σ_τ ℓ(code of class c, c)."""
        terms = (
            cross_entropy(h, torch.arange(h.shape[2], device=h.device).repeat(len(h), len(g)))
            for g, h in zip(groups, outputs)
        )
        return weighted((self.settings.mnemonic, self.mean_over_past(groups, terms)))

    def forget(self, state: State, task: str) -> State:
        known = self.read(state)
        retained = [t for t in state.tasks if t != task]
        if retained:
            groups = self.group_by_class_count(state, retained)
            codes = self.codes_of(known, groups)
            known.main = self.fit(
                task,
                known.main,
                range(state.tasks[task].facts["steps"]),
                lambda net, step: self.code_loss(groups, net.logits(*codes)),
                "forget",
                penalty=self.penalty(known, retained),
            )
        known.extras.pop(task)
        return self.write(state.without(task), known)
