"""Learning that methods have in common is done once, and nobody can tell."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from clpu import Agent
from clpu.bench.pieces import share
from clpu.methods import METHODS, Method, base
from clpu.testing import TINY, go_on, make_task

STREAM = "1R 2T 3T 4R 2R 3F 5T 5F"


class Recorder:
    """A place for shared learning that counts what it is asked for."""

    def __init__(self):
        self.kept, self.hits, self.puts = {}, 0, 0

    def get(self, key):
        self.hits += key in self.kept
        return self.kept.get(key)

    def put(self, key, tensors, seconds):
        assert seconds > 0
        self.puts += 1
        self.kept[key] = {name: tensor.clone() for name, tensor in tensors.items()}


def played(method, shared=None, **settings):
    agent = Agent(method, seeds=[3, 4], **{**TINY, **settings})
    agent._method.shared = shared
    return go_on(agent, STREAM)


def test_every_method_ends_in_the_same_bits_with_shared_learning_and_without():
    shared, hits = Recorder(), {}
    for method in sorted(METHODS, key=lambda name: "clpu" not in name):
        before = shared.hits
        assert played(method, shared).digest() == played(method).digest(), method
        hits[method] = shared.hits - before
    # The first task is the same for all but two, CLPU's first temporary task is Seq's second, and Ind's temporary
    # tasks are those of CLPU from scratch. The main networks of both forms of CLPU are the same until the merge.
    first = {"clpu-der++": 2, "der++": 1, "er": 1, "ewc": 1, "lwf": 1, "lsf": 0, "seq": 2, "ind": 3}
    assert hits == {"clpu-der++-scratch": 0, **first}


@pytest.mark.parametrize(
    "change", [{"lr": 0.02}, {"epochs": 3}, {"batch_size": 7}, {"weight_decay": 0.1}, {"hidden": (12, 9)}]
)
def test_other_settings_are_other_learning(change):
    shared = Recorder()
    played("seq", shared)
    before = shared.puts
    assert played("seq", shared, **change).digest() == played("seq", **change).digest()
    assert not shared.hits
    assert shared.puts == 2 * before


def test_other_seeds_other_memories_and_other_data_are_other_learning():
    shared = Recorder()
    settings = {**TINY, "memory": 20}

    def learned(seeds, memory, examples, shared):
        agent = Agent("er", seeds=seeds, **{**settings, "memory": memory})
        agent._method.shared = shared
        agent.learn("1", *make_task("1", examples))
        return agent.digest()

    def other(shared):
        agent = Agent("er", seeds=[0], **settings)
        agent._method.shared = shared
        x, y = make_task("1", 48)
        agent.learn("1", -x, y)  # as many, with the same labels
        return agent.digest()

    learned([0], 20, 48, shared)
    assert other(shared) == other(None)
    for case in [([1], 20, 48), ([0], 10, 48), ([0], 20, 60), ([0, 1], 20, 48)]:
        assert learned(*case, shared) == learned(*case, None)
    assert not shared.hits
    assert learned([0], 20, 48, shared) == learned([0], 20, 48, None)
    assert shared.hits == 1


def test_a_damaged_or_missing_file_only_means_that_learning_is_done_again(tmp_path):
    folder = tmp_path / "shared"

    def digest(with_folder=True):
        agent = Agent("clpu-der++", **TINY)
        share(agent, folder if with_folder else None)
        return go_on(agent, "1R 2T").digest()

    expected = digest(False)
    assert digest() == expected
    files = sorted(folder.iterdir())
    assert len(files) == 4  # for each of two tasks: with its memory, and without
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:-7])
    files[2].unlink()
    flipped = bytearray(files[3].read_bytes())
    flipped[-5] ^= 1
    files[3].write_bytes(flipped)
    assert digest() == expected
    assert digest() == expected


def test_a_folder_gives_what_was_put_there_and_says_how_long_it_took(tmp_path, monkeypatch):
    fits = []
    fit = Method.fit
    monkeypatch.setattr(Method, "fit", lambda self, *rest, **named: (fits.append(1), fit(self, *rest, **named))[1])
    monkeypatch.setattr(base, "time", SimpleNamespace(perf_counter=lambda: 7.0 * len(fits)))
    agents = [Agent("seq", **TINY), Agent("ewc", **TINY)]
    places = [share(agent, tmp_path) for agent in agents]
    for agent in agents:
        go_on(agent, "1R")
    assert len(fits) == 1
    assert [place.seconds for place in places] == [0, 7]
    assert torch.equal(agents[0].logits("1", make_task("1")[0]), agents[1].logits("1", make_task("1")[0]))


def test_a_method_with_batches_of_its_own_shares_nothing():
    class Backwards(METHODS["seq"]):
        name = "backwards"

        def batches(self, task, data, purpose="order"):
            return super().batches(task, data, "another order")

    shared = Recorder()
    played("seq", shared)
    puts = shared.puts
    assert played(Backwards, shared).digest() == played(Backwards).digest()
    assert (shared.hits, shared.puts) == (0, puts)


def test_progress_is_told_for_learning_that_was_done_before():
    shared, steps = Recorder(), []
    played("seq", shared)
    agent = Agent("seq", seeds=[3, 4], **TINY, progress=lambda p: steps.append((p.phase, p.step, p.steps)))
    agent._method.shared = shared
    agent.learn("1", *make_task("1"))
    assert steps == [("learn", 6, 6)]


def test_a_resnet_learned_elsewhere_goes_on_with_the_same_bits():
    settings = {"width": 8, "epochs": 1, "batch_size": 8, "augment": "crop-flip", "memory": 4}
    images = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    shared, digests = Recorder(), {}
    for method in ("er", "clpu-der++", "seq"):
        for place in (shared, None):
            own = {k: v for k, v in settings.items() if k != "memory" or method != "seq"}
            agent = Agent(method, "resnet18", seeds=[0, 1], mean=(0.5,) * 3, std=(0.2,) * 3, **own)
            agent._method.shared = place
            go_on(agent, "1R 2T 3R", lambda task: (images, torch.arange(16) % 2))
            digests[method, place is None] = agent.digest()
        assert digests[method, True] == digests[method, False], method
    assert shared.hits == 3  # the first task twice, and Seq's second


@pytest.mark.parametrize("change", [{"alpha": 3.0}, {"beta": 0.1}, {"rehearsed": 4}, {"logits": "final"}])
def test_other_settings_are_another_rehearsal(change):
    def learned(shared, method, **settings):
        agent = Agent(method, seeds=[3], **{**TINY, **settings})
        agent._method.shared = shared
        return go_on(agent, "1R 2R").digest()

    shared = Recorder()
    learned(shared, "clpu-der++")
    assert learned(shared, "clpu-der++-scratch") == learned(None, "clpu-der++-scratch")
    assert shared.hits == 2
    assert learned(shared, "clpu-der++-scratch", **change) == learned(None, "clpu-der++-scratch", **change)
    assert shared.hits == 3  # the first task


def test_other_memories_are_another_rehearsal():
    def learned(shared, changed):
        agent = Agent("clpu-der++", seeds=[3], **TINY)
        agent._method.shared = shared
        agent.learn("1", *make_task("1"))
        if changed:
            memory = agent._method.memories["1"]
            agent._method.memories["1"] = replace(memory, logits=memory.logits + 1)
        agent.learn("2", *make_task("2"))
        return agent.digest()

    shared = Recorder()
    learned(shared, False)
    assert learned(shared, True) == learned(None, True) != learned(None, False)


def test_a_method_of_ones_own_that_is_a_little_different_takes_no_rehearsal_of_ours():
    class Louder(METHODS["clpu-der++"]):
        def replayed(self, sample, outputs):
            return 2 * super().replayed(sample, outputs)

    def learned(shared, method):
        agent = Agent(method, seeds=[3], **TINY)
        agent._method.shared = shared
        return go_on(agent, "1R 2R").digest()

    shared = Recorder()
    learned(shared, "clpu-der++")
    assert learned(shared, Louder) == learned(None, Louder) != learned(None, "clpu-der++")
