"""A user's own module: respected where it is frozen, never shared, never read again, refused when it cannot work."""

import gc
import threading
import time

import pytest
import torch
from torch import nn
from torch.func import functional_call

import clpu.store
from clpu import Agent, BadData, BadNetwork, BadSetting, BadState, Stream, register_network
from clpu.testing import continue_stream, in_fresh_process, make_task, run_stream

X, Y = make_task("x")


def learned(module, method="der++", tasks="1R 2R", **options):
    return run_stream(tasks, method, network=module, epochs=2, batch_size=16, **options)


def body(agent, task="1", replica=0):
    """What is learned of the network that answers for a task, by name."""
    return {name: tensor[replica] for name, tensor in agent.network(task, X).body.tensors.items()}


def kept(agent):
    """The names of all tensors in all leaves of an agent's state."""
    return {name for _, leaf in agent.state().leaves() for name in leaf.specs}


def own(module):
    return dict([*module.named_parameters(), *module.named_buffers()])


METHODS = ["ind", "seq", "ewc", "er", "lwf", "lsf", "der++", "clpu-der++", "clpu-der++-scratch"]


@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_stay_as_they_are_and_are_in_no_leaf(method):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    module[0].requires_grad_(False)
    agent = learned(module, method, "1R 2T 3T 2R 3F")
    tensors = body(agent)
    assert tensors.keys() == {"2.weight", "2.bias"}
    assert not any("0.weight" in name or "0.bias" in name for name in kept(agent))
    assert not torch.equal(tensors["2.weight"], module[2].weight)
    expected = functional_call(module, tensors, (torch.tensor(X),))  # with the frozen ones as the user made them
    assert torch.allclose(agent.network("1", X).features(torch.tensor(X))[0], expected, atol=1e-6)


class Drifting(nn.Module):
    """Changes its buffer at every call, in place, whatever its mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.linear(x - self.mean)


FROZEN = {
    "affine": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)),
    "without-parameters": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.BatchNorm1d(5, affine=False)))),
    "any-buffer": Drifting,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_the_statistics_of_frozen_layers_never_drift_and_are_in_no_leaf(frozen, method):
    torch.manual_seed(0)
    module = nn.Sequential(frozen().requires_grad_(False), nn.Linear(5, 4), nn.BatchNorm1d(4)).train()
    agent = learned(module, method, "1R 2T 3T 2R 3F", seeds=[0, 1])
    tensors = body(agent)
    assert tensors.keys() == own(module[1:]).keys()
    assert int(tensors["2.num_batches_tracked"]) > 0
    assert not any("/0." in name for name in kept(agent))
    base = agent.network("1", X).body.skeleton.base
    assert base.keys() == {f"0.{name}" for name in own(module[0])}
    assert all(torch.equal(base[f"0.{name}"], tensor) for name, tensor in own(module[0]).items())
    assert module[0].training
    again = learned(module, method, "1R 2T 3T 2R 3F", seeds=[0, 1])  # answers between requests change nothing
    assert torch.equal(agent.logits("1", X), agent.logits("1", X))
    assert torch.equal(agent.logits("1", X), again.logits("1", X))


def test_statistics_of_layers_that_are_trained_or_belong_to_nobody_frozen_are_learned():
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False))
    module[0].bias.requires_grad_(False)
    tensors = body(learned(module))
    assert tensors.keys() == {"0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert int(tensors["1.num_batches_tracked"]) > 0


def test_all_tasks_replicas_and_trainings_share_one_copy_of_what_is_frozen():
    module = nn.Sequential(nn.Linear(6, 500).requires_grad_(False), nn.Linear(500, 4))
    trained = sum(p.nbytes for p in module[1].parameters()) + sum(p.nbytes for p in nn.Linear(4, 3).parameters())
    for seeds in ([0], [0, 1, 2]):
        agent = learned(module, "ind", "1R 2T", seeds=seeds)
        assert agent.storage() == {"main": 0, "tasks": dict.fromkeys("12", trained * len(seeds))}
        bodies = [agent.network(task, X).body for task in "12"]
        bodies += [bodies[0].private(), bodies[0].with_tensors(bodies[0].tensors)]
        places = {b.skeleton.base["0.weight"].data_ptr() for b in bodies}
        assert len(places) == 1


def large():
    """40 MB of it frozen."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 3200), nn.ReLU(), nn.Linear(3200, 3200), nn.BatchNorm1d(3200), nn.ReLU())
    return nn.Sequential(base.requires_grad_(False), nn.Linear(3200, 8))


def held():
    """Bytes of all tensors that there are."""
    gc.collect()
    storages = (t.untyped_storage() for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter))
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def test_a_temporary_task_on_a_large_frozen_module_costs_less_than_a_megabyte(tmp_path):
    """In memory, in storage(), in saved bytes and on disk."""
    module, limit = large(), 1_000_000
    assert sum(t.nbytes for t in own(module).values()) > 40_000_000
    with clpu.store.create(tmp_path / "store", "clpu-der++", module, epochs=1, batch_size=16) as agent:
        agent.learn("1", *make_task("1"))
        before = held()
        agent.learn("2", *make_task("2"), temporary=True)
        agent.learn("3", *make_task("3"), temporary=True)
        assert held() - before < 2 * limit
        assert agent.storage()["tasks"]["2"] < limit
        assert agent.storage()["main"] < limit
        assert len(agent.state().only("2").to_bytes()) < 2 * limit  # with what remembered tasks share
        assert len(agent.state().to_bytes()) < 4 * limit
        assert sum(f.stat().st_size for f in (tmp_path / "store").rglob("*") if f.is_file()) < 4 * limit
        digest = agent.digest()
    with clpu.store.open(tmp_path / "store", network=module) as again:
        assert again.digest() == digest


def test_a_normalisation_that_the_user_put_into_evaluation_mode_stays_there():
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5))
    module[1].eval()
    for method in ("der++", "lwf", "clpu-der++"):
        tensors = body(learned(module, method, "1R 2T 2R"))
        assert int(tensors["1.num_batches_tracked"]) == 0, method
        assert int(tensors["3.num_batches_tracked"]) > 0, method
    assert not module[1].training
    assert module[3].training


def test_the_module_is_taken_as_it_was_when_the_agent_was_made():
    module = nn.Linear(6, 5)
    agents = [Agent("ind", network=module, epochs=1) for _ in range(2)]
    agents[0].learn("1", X, Y)
    with torch.no_grad():
        module.weight.add_(1)
    agents[1].learn("1", X, Y)
    assert agents[0].digest() == agents[1].digest()


def test_a_saved_agent_wants_the_module_it_started_from():
    torch.manual_seed(0)
    module, other = nn.Linear(6, 5), nn.Linear(6, 5)
    agent = learned(module, "ind")
    saved = agent.state().to_bytes()
    assert Agent.from_state(saved, network=module).digest() == agent.digest()
    with pytest.raises(BadState, match="start"):
        Agent.from_state(saved, network=other)


def test_lazy_modules_are_refused():
    with pytest.raises(BadNetwork, match="lazy"):
        Agent(network=nn.LazyLinear(4))


class Counting(nn.Module):
    """Holds what is neither a parameter nor a buffer: a counter, and a running mean in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.mean = nn.Linear(6, 5), 0, torch.zeros(6)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean) * (1 + 0.01 * self.calls)


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.5, True)


@pytest.mark.parametrize("module", [Counting(), AlwaysDropping()])
@pytest.mark.parametrize("text", ["1R 2T 2F 3R", "2T 1R 2F 3R"])
@pytest.mark.parametrize("logits", ["online", "final"])
def test_forgetting_is_exact_whatever_a_module_holds_or_draws(module, text, logits):
    stream = Stream(text)
    actual = learned(module, "clpu-der++", stream, logits=logits)
    never = learned(module, "clpu-der++", stream.counterfactual(), logits=logits)
    assert actual.digest() == never.digest()
    assert (actual.predict("3", X) == never.predict("3", X)).all()
    assert (actual.predict("3", X) == actual.predict("3", X)).all()


def test_replicas_drop_out_differently():
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5))
    agent = run_stream("1R", "seq", network=module, epochs=2, seeds=[0, 1], lr=0.1)
    first, second = (body(agent, replica=k) for k in range(2))
    assert not torch.equal(first["0.weight"], second["0.weight"])
    changes = [(t["0.weight"] - module[0].weight).abs().sum(1) for t in (first, second)]
    assert not torch.allclose(*changes)


def test_predicting_while_another_thread_learns_disturbs_neither():
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    expected = learned(module, "clpu-der++", "1R 2R 3R").digest()
    agent = learned(module, "clpu-der++", "1R")
    answer, errors, stop = agent.predict("1", X), [], threading.Event()
    apart = agent.copy()

    def ask():
        try:
            while not stop.is_set():
                assert (apart.predict("1", X) == answer).all()
                agent.predict("1", X)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for task in "23":
        agent.learn(task, *make_task(task))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert agent.digest() == expected


@pytest.mark.parametrize("method", ["seq", "der++"])
def test_readers_in_two_threads_see_the_state_before_a_request_or_after_it(method):
    """The module has statistics, a frozen part, and something that is neither a parameter nor a buffer."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).requires_grad_(False)
    module = nn.Sequential(base, Counting(), nn.BatchNorm1d(5), nn.ReLU())
    agent = learned(module, method, "1R")
    later = agent.copy()
    later.learn("2", *make_task("2"))
    answers = {"before": agent.logits("1", X), "after": later.logits("1", X)}
    assert not torch.equal(*answers.values())
    seen, errors, stop, started = [], [], threading.Event(), threading.Barrier(3)

    def ask():
        try:
            started.wait(60)
            while not stop.is_set():
                now = agent.logits("1", X)
                seen.append(next((name for name, answer in answers.items() if torch.equal(now, answer)), "neither"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    steps = []

    def wait_for_an_answer(step):
        steps.append(len(seen))
        while len(seen) == steps[-1] and not errors:
            time.sleep(0.001)

    agent.progress = wait_for_an_answer
    started.wait(60)
    agent.learn("2", *make_task("2"))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(seen) <= {"before", "after"}
    assert steps[-1] > steps[0]  # there were answers while it was being trained
    assert set(seen[: steps[-1]]) == {"before"}
    assert agent.digest() == later.digest()


# Factories


@register_network("tests-small")
def small():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())


@register_network("tests-frozen-at-random")
def frozen_at_random():
    return nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 4))


@register_network("tests-frozen-alike")
def frozen_alike():
    module = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 4))
    nn.init.eye_(module[0].weight)
    nn.init.zeros_(module[0].bias)
    return module


def reopened(saved, request):
    """In another process: the digests of an agent from bytes, and after a further request."""
    agent = Agent.from_state(saved)
    return agent.digest(), continue_stream(agent, request).digest()


def opened(path):
    with clpu.store.open(path) as agent:
        return agent.digest()


@pytest.mark.parametrize("options", [{"seed": 3}, {"seeds": [3, 1]}])
def test_an_agent_with_a_networks_factory_reopens_from_bytes_in_another_process(options):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    agent = learned("tests-small", "clpu-der++", "1R 2T", **options)
    assert torch.equal(state, torch.get_rng_state())  # the factory does not draw from the user's generator
    saved, digest = agent.state().to_bytes(), agent.digest()
    assert in_fresh_process(reopened, saved, "2R") == (digest, continue_stream(agent, "2R").digest())
    torch.manual_seed(1)
    assert learned("tests-small", "clpu-der++", "1R 2T", **options).digest() == digest  # nor depends on it


def test_a_store_with_a_networks_factory_opens_in_another_process(tmp_path):
    with clpu.store.create(tmp_path / "store", "clpu-der++", "tests-small", epochs=1) as agent:
        agent.learn("1", *make_task("1"), temporary=True)
        digest = agent.digest()
    assert in_fresh_process(opened, tmp_path / "store") == digest


@pytest.mark.parametrize("network", ["tests-small", "tests-frozen-alike"])
def test_replicas_of_a_networks_factory_agree_with_single_agents(network):
    population = learned(network, "seq", "1R", seeds=[3, 1])
    for k, seed in enumerate([3, 1]):
        single = learned(network, "seq", "1R", seed=seed)
        assert torch.allclose(population.logits("1", X)[k], single.logits("1", X), atol=1e-5)


def test_a_frozen_part_that_differs_between_seeds_cannot_be_shared_by_replicas():
    one, other = (learned("tests-frozen-at-random", "seq", "1R", seed=seed) for seed in (3, 1))
    assert not torch.equal(*(a.network("1", X).body.skeleton.base["0.weight"] for a in (one, other)))
    with pytest.raises(BadNetwork, match="frozen"):
        Agent("seq", "tests-frozen-at-random", seeds=[3, 1])


def test_a_factory_that_makes_something_else_now_is_refused(monkeypatch):
    saved = learned("tests-small", "ind", "1R").state().to_bytes()
    monkeypatch.setitem(clpu.networks.blueprint.FACTORIES, "tests-small", lambda: nn.Linear(6, 5))
    with pytest.raises(BadState, match="start"):
        Agent.from_state(saved)


@pytest.mark.parametrize("options", [{}, {"seeds": [0, 1]}])
def test_the_same_weights_in_a_different_architecture_are_refused(options):
    module, other = (nn.Sequential(nn.Linear(6, 5), kind(), nn.Linear(5, 4)) for kind in (nn.ReLU, nn.Tanh))
    other.load_state_dict(module.state_dict())
    agent = learned(module, "clpu-der++", "1R 2T", **options)
    saved = agent.state().to_bytes()
    with pytest.raises(BadState, match="its code has changed"):
        Agent.from_state(saved, network=other)
    assert Agent.from_state(saved, network=module).digest() == agent.digest()


def test_the_name_of_a_network_is_taken_once():
    for name in ("mlp", "module", "tests-small", ""):
        with pytest.raises(BadSetting, match="different"):
            register_network(name)(lambda: nn.Linear(6, 5))


@pytest.mark.parametrize("method", METHODS)
def test_a_module_without_parameters_is_a_linear_probe(method):
    agent = learned(nn.Flatten(), method, "1R 2T 3R 2R", lr=0.1)
    assert agent.accuracy("3", *make_task("3")) > 0.6  # chance is a third


class Empty(nn.Module):
    def forward(self, x):
        return x[:, :0]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Linear(6, 4, dtype=torch.float64), "Double"),
        (Empty(), r"\(2, 0\)"),
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), "failed on inputs of shape"),
    ],
)
def test_what_a_module_cannot_do_is_told_as_such(module, says):
    agent = Agent(network=module, epochs=1, batch_size=1)
    before = agent.digest()
    with pytest.raises(BadNetwork, match=says):
        agent.learn("1", X, Y)
    assert agent.digest() == before


def test_tokens_out_of_range_and_tokens_with_lsf_are_refused():
    module = nn.Sequential(nn.Embedding(9, 5), nn.Flatten())
    tokens = torch.randint(0, 9, (40, 4))
    with pytest.raises(BadNetwork, match="failed"):
        Agent(network=module).learn("1", tokens + 5, tokens[:, 0] > 4)
    with pytest.raises(BadData, match="tokens"):
        Agent("lsf", network=module).learn("1", tokens, tokens[:, 0] > 4)
