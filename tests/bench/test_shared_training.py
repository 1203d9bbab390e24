"""Training that methods have in common is done once, with the same results."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from clpu import Agent
from clpu.methods import METHODS, Method
from clpu.runs import shared_training
from clpu.runs.shared_training import SharedFolder, sharing
from clpu.state import Leaf
from clpu.testing import TINY, continue_stream, make_task

STREAM = "1R 2T 3T 4R 2R 3F 5T 5F"


class Recorder:
    """A place for shared training that counts what it is asked for."""

    def __init__(self):
        self.kept, self.hits, self.puts = {}, 0, 0

    def get(self, key):
        self.hits += key in self.kept
        return self.kept.get(key)

    def put(self, key, tensors, seconds):
        assert seconds > 0
        self.puts += 1
        self.kept[key] = {name: tensor.clone() for name, tensor in tensors.items()}


def agent_of(method, place=None, network="mlp", **settings):
    """An agent whose method takes training from a place, and leaves its own there."""
    chosen = METHODS[method] if isinstance(method, str) else method
    return Agent(chosen if place is None else sharing(chosen, place), network, **settings)


def trained(method, place=None, **settings):
    return continue_stream(agent_of(method, place, seeds=[3, 4], **{**TINY, **settings}), STREAM)


def test_every_method_ends_in_the_same_bits_with_shared_training_and_without():
    shared, hits = Recorder(), {}
    for method in sorted((m for m in METHODS if METHODS[m].takes("mlp")), key=lambda name: "clpu" not in name):
        before = shared.hits
        assert trained(method, shared).digest() == trained(method).digest(), method
        hits[method] = shared.hits - before
    # The first task is the same for all but two, CLPU's first temporary task is Seq's second, and Ind's temporary
    # tasks are those of CLPU from scratch. The main networks of both forms of CLPU are the same until the merge. All
    # that CLPU-Live learns without replay is shared.
    first = {"clpu-der++": 2, "clpu-live": 3, "der++": 1, "er": 1, "ewc": 1, "lwf": 1, "lsf": 0, "seq": 2, "ind": 3}
    assert hits == {"clpu-der++-scratch": 0, **first}


@pytest.mark.parametrize(
    "change", [{"lr": 0.02}, {"epochs": 3}, {"batch_size": 7}, {"weight_decay": 0.1}, {"hidden": (12, 9)}]
)
def test_different_settings_are_different_training(change):
    shared = Recorder()
    trained("seq", shared)
    before = shared.puts
    assert trained("seq", shared, **change).digest() == trained("seq", **change).digest()
    assert not shared.hits
    assert shared.puts == 2 * before


def test_different_seeds_memories_and_data_are_different_training():
    shared = Recorder()
    settings = {**TINY, "memory": 20}

    def learned(seeds, memory, examples, shared):
        agent = agent_of("er", shared, seeds=seeds, **{**settings, "memory": memory})
        agent.learn("1", *make_task("1", examples))
        return agent.digest()

    def other(shared):
        agent = agent_of("er", shared, seeds=[0], **settings)
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


def test_a_damaged_or_missing_file_only_means_that_training_is_done_again(tmp_path):
    folder = tmp_path / "shared"

    def digest(place=None):
        return continue_stream(agent_of("clpu-der++", place or SharedFolder(folder), **TINY), "1R 2T").digest()

    expected = digest(Recorder())
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
    monkeypatch.setattr(shared_training, "time", SimpleNamespace(perf_counter=lambda: 7.0 * len(fits)))
    places = [SharedFolder(tmp_path) for _ in range(2)]
    agents = [agent_of(method, place, **TINY) for method, place in zip(("seq", "ewc"), places)]
    for agent in agents:
        continue_stream(agent, "1R")
    assert len(fits) == 1
    assert [place.seconds for place in places] == [0, 7]
    assert torch.equal(agents[0].logits("1", make_task("1")[0]), agents[1].logits("1", make_task("1")[0]))


def test_a_method_with_custom_batches_shares_nothing():
    class Backwards(METHODS["seq"]):
        name = "backwards"

        def batches(self, task, data, purpose="order"):
            return super().batches(task, data, "another order")

    shared = Recorder()
    trained("seq", shared)
    puts = shared.puts
    assert trained(Backwards, shared).digest() == trained(Backwards).digest()
    assert (shared.hits, shared.puts) == (0, puts)


def test_progress_is_reported_for_training_that_was_done_before():
    shared, steps = Recorder(), []
    trained("seq", shared)
    watch = lambda p: steps.append((p.phase, p.step, p.steps))  # noqa: E731
    agent = agent_of("seq", shared, seeds=[3, 4], **TINY, progress=watch)
    agent.learn("1", *make_task("1"))
    assert steps == [("learn", 6, 6)]


def test_a_resnet_trained_elsewhere_continues_with_the_same_bits():
    settings = {"width": 8, "epochs": 1, "batch_size": 8, "augment": "crop-flip", "memory": 4}
    images = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    shared, digests = Recorder(), {}
    for method in ("er", "clpu-der++", "seq"):
        for place in (shared, None):
            own = {k: v for k, v in settings.items() if k != "memory" or method != "seq"}
            agent = agent_of(method, place, "resnet18", seeds=[0, 1], mean=(0.5,) * 3, std=(0.2,) * 3, **own)
            continue_stream(agent, "1R 2T 3R", lambda task: (images, torch.arange(16) % 2))
            digests[method, place is None] = agent.digest()
        assert digests[method, True] == digests[method, False], method
    assert shared.hits == 3  # the first task twice, and Seq's second


@pytest.mark.parametrize("change", [{"alpha": 3.0}, {"beta": 0.1}, {"replay_batch_size": 4}, {"logits": "final"}])
def test_different_settings_are_a_different_replay(change):
    def learned(shared, method, **settings):
        return continue_stream(agent_of(method, shared, seeds=[3], **{**TINY, **settings}), "1R 2R").digest()

    shared = Recorder()
    learned(shared, "clpu-der++")
    assert learned(shared, "clpu-der++-scratch") == learned(None, "clpu-der++-scratch")
    assert shared.hits == 2
    assert learned(shared, "clpu-der++-scratch", **change) == learned(None, "clpu-der++-scratch", **change)
    assert shared.hits == 3  # the first task


def test_different_memories_are_a_different_replay():
    def learned(shared, changed):
        agent = agent_of("clpu-der++", shared, seeds=[3], **TINY)
        agent.learn("1", *make_task("1"))
        if changed:
            state = agent.state()
            tensors = state.tasks["1"].own.tensors
            own = Leaf({**tensors, "memory/logits": tensors["memory/logits"] + 1})
            state = state.with_task("1", replace(state.tasks["1"], own=own))
            agent = Agent.from_state(state, method=type(agent.new_method()))
        agent.learn("2", *make_task("2"))
        return agent.digest()

    shared = Recorder()
    learned(shared, False)
    assert learned(shared, True) == learned(None, True) != learned(None, False)


def test_a_custom_method_that_is_a_little_different_takes_no_replay_of_ours():
    class Louder(METHODS["clpu-der++"]):
        def replay_loss(self, sample, outputs):
            return 2 * super().replay_loss(sample, outputs)

    def learned(shared, method):
        return continue_stream(agent_of(method, shared, seeds=[3], **TINY), "1R 2R").digest()

    shared = Recorder()
    learned(shared, "clpu-der++")
    assert learned(shared, Louder) == learned(None, Louder) != learned(None, "clpu-der++")
