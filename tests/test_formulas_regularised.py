"""The formulas of EWC, LwF and LSF against an independent, obvious computation."""

import torch
import torch.nn.functional as F

from clpu import Agent
from clpu.learning.batches import Batches
from clpu.learning.randomness import generators
from clpu.networks.learner import QuadraticPenalty
from clpu.testing import make_task, run_stream
from formulakit import SETTINGS, both_paths, examples, known_to, main_of, warmed_up, with_fresh_head
from oracle import Plain, assert_rounded, assert_steps, fisher, recorded


def mixture(batch, codes, share):
    """The inputs that LSF mixes with the codes of their classes."""
    share = share.double().unsqueeze(1)
    return share * batch.x[0] + (1 - share) * codes[batch.y[0]]


def test_the_fisher_is_the_per_example_mean():
    agent = run_stream("1R", "ewc", seeds=[2, 9], **SETTINGS)
    data = examples("1")
    for k in range(2):
        expected = fisher(Plain(main_of(agent), k), "1", data.x, data.y)
        extras = known_to(agent).extras["1"]
        got = []
        for i in range(2):
            got += [extras[f"fisher/{i}.weight"][k].T, extras[f"fisher/{i}.bias"][k, 0]]
        for e, g in zip(expected, got):
            assert_rounded(g, e, 0 * e, "fisher")
        assert sum(float(e.sum()) for e in expected) > 0


@both_paths
def test_ewc_descends_on_cross_entropy_plus_the_penalty_of_every_past_task():
    before = run_stream("1R 2R", "ewc", seed=5, strength=30.0, **SETTINGS)
    start = with_fresh_head(before, "3")
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))

    def stored(task, kind):
        extras = known_to(before).extras[task]
        for i in range(2):
            yield extras[f"{kind}/{i}.weight"][0].T
            yield extras[f"{kind}/{i}.bias"][0, 0]

    def penalty(model):
        return 30.0 * sum(
            (f * (p - a) ** 2).sum()
            for task in "12"
            for f, a, p in zip(stored(task, "fisher"), stored(task, "anchor"), model.body.parameters())
        )

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    losses = [lambda m, b=b: F.cross_entropy(m("3", b.x[0]), b.y[0]) + penalty(m) for b in batches]
    assert_steps(*runs, start, losses, 0.05, 0.01, main_of(after))


def test_no_past_task_means_no_penalty():
    assert QuadraticPenalty.towards(100.0, []) is None


@both_paths
def test_lwf_trains_the_new_head_first_then_everything_with_distillation():
    before = run_stream("1R 2R", "lwf", seed=5, **SETTINGS)
    old = Plain(main_of(before))
    start = with_fresh_head(before, "3")
    warmed = warmed_up(before, "3")
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    warming, learning = runs
    warm = Batches(examples("3"), 2, 16, generators([5], "3", "warm-up order"))
    losses = [lambda m, b=b: F.cross_entropy(m("3", b.x[0]), b.y[0]) for b in warm]
    assert_steps(warming, start, losses, 0.05, 0.01, warmed, only="3")

    def loss(b):
        def of(model):
            total = F.cross_entropy(model("3", b.x[0]), b.y[0])
            for t in "12":
                p = F.softmax(old(t, b.x[0]).detach() / 2, -1)
                total = total - (p * F.log_softmax(model(t, b.x[0]) / 2, -1)).sum(-1).mean() / 2
            return total

        return of

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    assert_steps(learning, warmed, [loss(b) for b in batches], 0.05, 0.01, main_of(after))


@both_paths
def test_lsf_forgets_by_training_on_the_codes_that_are_retained():
    before = run_stream("1R 2T 3R", "lsf", seed=5, strength=0.0, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    codes = {t: known_to(before).extras[t]["codes"][0] for t in "13"}

    def loss(model):
        return 10 * sum(F.cross_entropy(model(t, c), torch.arange(3)) for t, c in codes.items()) / 2

    assert_steps(*runs, main_of(before), [loss] * 6, 0.05, 0.01, main_of(after))
    assert set(known_to(after).extras) == {"1", "3"}


@both_paths
def test_lsf_learns_on_plain_and_mixed_inputs_codes_and_distillation():
    before = run_stream("1R", "lsf", seed=5, strength=0.0, **SETTINGS)
    warmed = warmed_up(before, "2")
    old = Plain(main_of(before))
    after = before.copy()
    with recorded() as runs:
        after.learn("2", *make_task("2"))
    codes, past = known_to(after).extras["2"]["codes"], known_to(before).extras["1"]["codes"]
    [mixing] = generators([5], "2", "mixing")

    def loss(b, share):
        def of(model):
            mixed = mixture(b, codes[0], share)
            new = F.cross_entropy(model("2", torch.cat([b.x[0], mixed])), torch.cat([b.y[0], b.y[0]]))
            p = F.softmax(old("1", b.x[0]).detach() / 2, -1)
            distilled = -(p * F.log_softmax(model("1", b.x[0]) / 2, -1)).sum(-1).mean()
            return new + distilled + 10 * F.cross_entropy(model("1", past[0]), torch.arange(3))

        return of

    batches = Batches(examples("2"), 2, 16, generators([5], "2", "order"))
    losses = [loss(b, torch.rand(b.x.shape[1], generator=mixing)) for b in batches]
    assert_steps(runs[-1], warmed, losses, 0.05, 0.01, main_of(after))


def test_ewc_and_lwf_protect_temporary_tasks_too():
    for method in ("ewc", "lwf"):
        kinds = {}
        for text in ("1T 2R", "1R 2R"):
            agent = run_stream(text, method, seed=5, **SETTINGS)
            agent.learn("3", *make_task("3"))
            kinds[text] = Plain(main_of(agent))
        for a, b in zip(kinds["1T 2R"].parameters(), kinds["1R 2R"].parameters()):
            assert torch.equal(a, b), method


def test_only_from_the_second_task_on_is_the_head_warmed_up():
    for method in ("lwf", "lsf"):
        phases = {}
        agent = run_stream("", method, **SETTINGS)
        for task in "12":
            seen = phases.setdefault(task, set())
            agent.progress = lambda p, seen=seen: seen.add(p.phase)
            agent.learn(task, *make_task(task))
        assert phases == {"1": {"learn"}, "2": {"warm-up", "learn"}}, method


def lsf_penalty(extras, strength):
    """strength · Σ_τ Σ F (θ − θ*)² over the body and each task's own head, as a function of a plain model."""

    def of(model):
        total = torch.zeros(())
        for task, kept in extras.items():
            parts = [("0", model.body[1]), ("1", model.body[3]), ("head", model.heads[task])]
            for name, layer in parts:
                total = (
                    total
                    + (
                        kept[f"fisher/{name}.weight"][0].T * (layer.weight - kept[f"anchor/{name}.weight"][0].T) ** 2
                    ).sum()
                )
                total = (
                    total
                    + (kept[f"fisher/{name}.bias"][0, 0] * (layer.bias - kept[f"anchor/{name}.bias"][0, 0]) ** 2).sum()
                )
        return strength * total

    return of


@both_paths
def test_lsf_learns_with_the_codes_and_the_penalty_of_every_past_task():
    before = run_stream("1R 2T", "lsf", seed=5, strength=20.0, **SETTINGS)
    warmed = warmed_up(before, "3")
    old, past = Plain(main_of(before)), known_to(before).extras
    after = before.copy()
    with recorded() as runs:
        after.learn("3", *make_task("3"))
    codes = known_to(after).extras["3"]["codes"]
    [mixing] = generators([5], "3", "mixing")
    penalty = lsf_penalty(past, 20.0)

    def loss(b, share):
        def of(model):
            mixed = mixture(b, codes[0], share)
            total = F.cross_entropy(model("3", torch.cat([b.x[0], mixed])), torch.cat([b.y[0], b.y[0]])) + penalty(
                model
            )
            for t in "12":
                p = F.softmax(old(t, b.x[0]).detach() / 2, -1)
                total = total - (p * F.log_softmax(model(t, b.x[0]) / 2, -1)).sum(-1).mean() / 2
                total = total + 10 * F.cross_entropy(model(t, past[t]["codes"][0]), torch.arange(3)) / 2
            return total

        return of

    batches = Batches(examples("3"), 2, 16, generators([5], "3", "order"))
    losses = [loss(b, torch.rand(b.x.shape[1], generator=mixing)) for b in batches]
    assert_steps(runs[-1], warmed, losses, 0.05, 0.01, main_of(after))


@both_paths
def test_lsf_forgets_with_the_penalty_of_the_tasks_that_stay():
    before = run_stream("1R 2T 3R", "lsf", seed=5, strength=20.0, **SETTINGS)
    after = before.copy()
    with recorded() as runs:
        after.forget("2")
    kept = {t: known_to(before).extras[t] for t in "13"}
    penalty = lsf_penalty(kept, 20.0)

    def loss(model):
        coded = sum(F.cross_entropy(model(t, k["codes"][0]), torch.arange(3)) for t, k in kept.items())
        return 10 * coded / 2 + penalty(model)

    assert_steps(*runs, main_of(before), [loss] * 6, 0.05, 0.01, main_of(after))


def test_the_fisher_of_a_head_is_the_per_example_mean():
    agent = run_stream("1R", "lsf", **SETTINGS)
    data, model = examples("1"), Plain(main_of(agent))
    total = torch.zeros_like(model.heads["1"].weight)
    for x, y in zip(data.x, data.y):
        model.zero_grad()
        log_p = F.log_softmax(model("1", x.unsqueeze(0)), -1)[0, y]
        log_p.backward()
        total += log_p.exp().detach() * model.heads["1"].weight.grad ** 2 / len(data)
    assert_rounded(known_to(agent).extras["1"]["fisher/head.weight"][0].T, total, 0 * total, "fisher")


def test_the_fisher_may_be_estimated_from_some_of_the_examples():
    x, y = make_task("1", 48)
    some_rows = [0, 16, 31, 47]
    whole, part = (Agent("ewc", fisher_samples=n, **SETTINGS) for n in (0, 4))
    for agent in (whole, part):
        agent.learn("1", x, y)
    kept = known_to(part).extras["1"]
    assert not torch.equal(known_to(whole).extras["1"]["fisher/0.weight"], kept["fisher/0.weight"])
    classes = torch.from_numpy((y - 7) // 10)
    expected = main_of(part).fisher("1", torch.from_numpy(x)[some_rows], classes[some_rows])
    for name, value in expected.items():
        assert torch.equal(kept[f"fisher/{name}"], value)


@both_paths
def test_lsf_treats_past_tasks_alike_whatever_their_numbers_of_classes():
    classes = {"1": 3, "2": 2, "3": 3}
    before = Agent("lsf", seed=5, strength=20.0, **SETTINGS)
    for task, count in classes.items():
        before.learn(task, *make_task(task, classes=count))
    warmed = warmed_up(before, "4")
    old, past = Plain(main_of(before)), known_to(before).extras
    after = before.copy()
    with recorded() as runs:
        after.learn("4", *make_task("4"))
    codes = known_to(after).extras["4"]["codes"]
    [mixing] = generators([5], "4", "mixing")
    penalty = lsf_penalty(past, 20.0)

    def loss(b, share):
        def of(model):
            mixed = mixture(b, codes[0], share)
            total = F.cross_entropy(model("4", torch.cat([b.x[0], mixed])), torch.cat([b.y[0], b.y[0]]))
            for t, count in classes.items():
                p = F.softmax(old(t, b.x[0]).detach() / 2, -1)
                total = total - (p * F.log_softmax(model(t, b.x[0]) / 2, -1)).sum(-1).mean() / 3
                total = total + 10 * F.cross_entropy(model(t, past[t]["codes"][0]), torch.arange(count)) / 3
            return total + penalty(model)

        return of

    batches = Batches(examples("4"), 2, 16, generators([5], "4", "order"))
    losses = [loss(b, torch.rand(b.x.shape[1], generator=mixing)) for b in batches]
    assert_steps(runs[-1], warmed, losses, 0.05, 0.01, main_of(after))
