"""LSF: learning with selective forgetting (Shibata et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clpu.errors import BadData
from clpu.losses import Loss, cross_entropy, mean, weighted
from clpu.methods.base import register
from clpu.methods.distilling import Distilling, DistillingSettings
from clpu.methods.ewc import Consolidating, EWCSettings
from clpu.networks.network import Network
from clpu.networks.parts import Each, Mixed
from clpu.randomness import rand
from clpu.settings import setting
from clpu.training import Batch, Examples


@dataclass(frozen=True)
class LSFSettings(EWCSettings, DistillingSettings):
    mnemonic: float = setting(10.0, "weight of the codes of retained tasks", at_least=0)


@register
class LSF(Consolidating, Distilling):
    """Mnemonic codes: a Gaussian pattern a class, learned mixed with the class's inputs, stands for it later.

    Cross-entropy on plain and on mixed inputs, on the codes of retained tasks, EWC's penalty and LwF's
    distillation. Forgetting drops the task's codes, F and θ*, and trains on the codes that are retained,
    for as many steps as the task took to learn.
    """

    name = "lsf"
    heads = True  # codes and distillation move the heads of earlier tasks
    Settings = LSFSettings

    def learn(self, task: str, data: Examples, temporary: bool) -> None:
        if data.x.dtype == torch.int64:
            raise BadData("lsf mixes inputs with noise, so it needs numbers, not tokens")
        past = list(self.ledger)
        groups = self.alike(past)
        teacher = self.teacher(groups, data)
        past_codes = self.codes_of(groups)
        shape = data.x.shape[1:]
        draws = [
            torch.randn(data.classes, *shape, generator=g, dtype=torch.float32, device="cpu")
            for g in self.sources(task, "codes")
        ]
        codes = torch.stack(draws).to(self.device)
        mixing = self.sources(task, "mixing")

        def loss(net: Network, batch: Batch) -> Loss:
            x, share = batch.x, torch.stack([rand(batch.x.shape[1], source=g) for g in mixing])
            mixed = Mixed(x, codes, batch.y, share)
            outputs = net.logits((task, x), (task, mixed), *((group, x) for group in groups), *past_codes)
            new = mean(cross_entropy(h, batch.y) for h in outputs[:2])
            if not past:
                return new
            old, coded = outputs[2 : 2 + len(groups)], outputs[2 + len(groups) :]
            return new + self.recalled(groups, coded) + self.distilled(groups, old, teacher(batch))

        network = self.warmed_up(task, data)
        self.main = self.fit(task, network, self.batches(task, data), loss, pull=self.pull(past))
        self.extras[task] = {"codes": codes}
        self.consolidate(task, self.main, data)

    def extra_shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        assert self.state.inputs is not None
        return {**super().extra_shapes(classes), "codes": (classes, *self.state.inputs.shape)}

    def codes_of(self, groups: Sequence[Each]) -> list[tuple[tuple[str, ...], Tensor]]:
        """The codes of each group of tasks, the first task's first."""
        return [(tuple(group), torch.cat([self.extras[t]["codes"] for t in group], 1)) for group in groups]

    def recalled(self, groups: Sequence[Each], outputs: Sequence[Tensor]) -> Loss:
        """weight / |retained| · Σ_τ ℓ(code of class c, c)."""
        terms = (
            cross_entropy(h, torch.arange(h.shape[2], device=h.device).repeat(len(h), len(g)))
            for g, h in zip(groups, outputs)
        )
        return weighted((self.settings.mnemonic, self.over_past(groups, terms)))

    def forget(self, task: str) -> None:
        retained = self.others(task)
        if retained:
            groups = self.alike(retained)
            codes = self.codes_of(groups)
            self.main = self.fit(
                task,
                self.main,
                range(self.ledger[task].steps),
                lambda net, step: self.recalled(groups, net.logits(*codes)),
                "forget",
                pull=self.pull(retained),
            )
