"""The reservoir against the textbook algorithm, and draws for rehearsal."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from clpu.learning.batches import Batches, Examples
from clpu.learning.memory import STEPS_AT_ONCE, Memory, Rehearsal, Reservoir, survivors
from clpu.learning.randomness import generators


def generator(seed):
    return torch.Generator().manual_seed(seed)


def textbook_reservoir(items, size, draws):
    """Algorithm R, one item at a time; `draws[i]` is uniform on [0, 1)."""
    kept = []
    for i, item in enumerate(items):
        if i < size:
            kept.append(item)
        else:
            j = int(draws[i] * (i + 1))
            if j < size:
                kept[j] = item
    return kept


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 300))
def test_survivors_are_those_of_the_textbook_algorithm(seed, size, length):
    draws = torch.rand(length, dtype=torch.float64, generator=generator(seed)).tolist()
    assert survivors(length, size, generator(seed)).tolist() == textbook_reservoir(range(length), size, draws)


def test_every_position_is_equally_likely_to_stay():
    length, size, runs = 50, 10, 4000
    counts = np.zeros(length)
    for seed in range(runs):
        counts[survivors(length, size, generator(seed)).numpy()] += 1
    assert counts.sum() == runs * size
    # Each run keeps a set without repetition, which makes the statistic smaller than chi-square's, never larger.
    assert stats.chisquare(counts).pvalue > 1e-4
    biased = counts + np.linspace(-60, 60, length)
    assert stats.chisquare(biased, np.full(length, biased.mean())).pvalue < 1e-4


@pytest.mark.parametrize(("examples", "batch", "epochs", "size"), [(23, 5, 3, 7), (8, 32, 2, 40), (33, 32, 2, 5)])
def test_a_reservoir_fed_by_batches_holds_what_the_textbook_algorithm_would(examples, batch, epochs, size):
    data = Examples(torch.arange(examples * 2).view(examples, 2).float(), torch.arange(examples) % 2, (0, 1))
    seeds = [5, 6]
    batches = Batches(data, epochs, batch, generators(seeds, "t", "order"))
    reservoir = Reservoir(batches, size, generators(seeds, "t", "reservoir"))
    seen = {k: [] for k in range(2)}
    for step, b in enumerate(batches):
        outputs = torch.stack([b.x[:, :, 0] + 1000 * step, b.x[:, :, 1]], -1)
        reservoir.see(b, outputs)
        for k in range(2):
            seen[k] += [(b.x[k, i].tolist(), int(b.y[k, i]), outputs[k, i].tolist()) for i in range(b.x.shape[1])]
    memory = reservoir.memory()
    for k, source in enumerate(generators(seeds, "t", "reservoir")):
        draws = torch.rand(epochs * examples, dtype=torch.float64, generator=source).tolist()
        expected = textbook_reservoir(seen[k], size, draws)
        got = list(zip(memory.x[k].tolist(), memory.y[k].tolist(), memory.logits[k].tolist()))
        assert got == [tuple(e) for e in expected]


def test_batches_show_every_example_once_an_epoch_and_differ_between_replicas():
    data = Examples(torch.arange(65).view(65, 1).float(), torch.arange(65) % 3, (0, 1, 2))
    batches = list(Batches(data, 2, 32, generators([0, 1], "t", "order")))
    assert [b.x.shape[1] for b in batches] == [22, 22, 21] * 2
    for k in range(2):
        for epoch in (batches[:3], batches[3:]):
            assert sorted(torch.cat([b.index[k] for b in epoch]).tolist()) == list(range(65))
    assert not torch.equal(batches[0].index[0], batches[0].index[1])
    assert all(torch.equal(b.x[..., 0], b.index.float()) for b in batches)


def test_images_are_kept_as_bytes():
    data = Examples(torch.zeros(50, 784, dtype=torch.uint8), torch.arange(50) % 2, (0, 1))
    batches = Batches(data, 1, 10, generators([0], "t", "order"))
    reservoir = Reservoir(batches, 20, generators([0], "t", "reservoir"))
    for batch in batches:
        reservoir.see(batch)
    memory = reservoir.memory()
    assert memory.x.dtype == torch.uint8
    assert memory.x.nbytes == 20 * 784
    assert memory.logits is None


def two_memories(replicas=3):
    def rows(n):
        return (torch.arange(n) + 100 * torch.arange(replicas).view(-1, 1)).float()

    return {
        "a": Memory(rows(40).unsqueeze(-1), rows(40).long(), rows(40).unsqueeze(-1)),
        "b": Memory(-rows(9).unsqueeze(-1), rows(9).long()),
    }


def test_rehearsal_divides_its_samples_and_draws_without_replacement_from_each_replicas_own_memory():
    rehearsal = Rehearsal(two_memories(), {"a": 2, "b": 2}, 32, generators([0, 1, 2], "t", "r"))
    for _ in range(STEPS_AT_ONCE + 5):
        a, b = rehearsal.draw()
        assert (a.tasks, b.tasks) == (("a",), ("b",))
        assert a.x.shape == (3, 16, 1)
        assert b.x.shape == (3, 9, 1)  # no more than there are
        for k in range(3):
            assert len(set(a.y[k].tolist())) == 16
            assert all(100 * k <= value < 100 * k + 40 for value in a.y[k].tolist())
        assert torch.equal(a.x[..., 0].long(), a.y)
        assert torch.equal(a.logits, a.x)


def test_rehearsal_draws_every_example_equally_often_and_anew_at_each_step():
    rehearsal = Rehearsal({"a": two_memories(1)["a"]}, {"a": 2}, 10, generators([0], "t", "r"))
    draws = [rehearsal.draw()[0].y[0] for _ in range(2000)]
    counts = torch.bincount(torch.cat(draws), minlength=40).numpy()
    assert stats.chisquare(counts).pvalue > 1e-4
    assert len({tuple(sorted(d.tolist())) for d in draws}) > 1900


def test_rehearsal_of_nothing_is_nothing():
    rehearsal = Rehearsal({}, {}, 32, generators([0], "t", "r"))
    assert rehearsal.draw() == []
    assert float(rehearsal.mean([])) == 0.0


def test_memories_that_are_alike_are_drawn_together_each_from_its_own_rows():
    rows = {t: (torch.arange(30) + 1000 * i + 100 * torch.arange(2).view(-1, 1)) for i, t in enumerate("abc")}
    memories = {t: Memory(r.unsqueeze(-1).float(), r, r.unsqueeze(-1).float()) for t, r in rows.items()}
    rehearsal = Rehearsal(memories, {"a": 3, "b": 4, "c": 3}, 32, generators([0, 1], "t", "r"))
    for _ in range(STEPS_AT_ONCE + 3):
        together, alone = rehearsal.draw()
        assert (together.tasks, alone.tasks) == (("a", "c"), ("b",))
        assert together.x.shape == (2, 20, 1)
        for k in range(2):
            for i, first in ((0, 0), (1, 2000)):
                drawn = together.y[k, 10 * i : 10 * i + 10].tolist()
                assert len(set(drawn)) == 10
                assert all(first + 100 * k <= value < first + 100 * k + 30 for value in drawn)
        assert torch.equal(together.x[..., 0].long(), together.y)
        assert torch.equal(together.logits, together.x)


def test_the_mean_over_past_tasks_weighs_every_task_equally():
    rows = torch.arange(30).unsqueeze(0)
    memories = {t: Memory(rows.unsqueeze(-1).float(), rows) for t in "abc"}
    rehearsal = Rehearsal(memories, {"a": 3, "b": 4, "c": 3}, 32, generators([0], "t", "r"))
    assert float(rehearsal.mean([torch.tensor(6.0), torch.tensor(3.0)])) == pytest.approx((6.0 + 3.0 + 6.0) / 3)
