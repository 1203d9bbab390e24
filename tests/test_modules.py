"""A user's own module: respected where it is frozen, never shared, never read again, refused when it cannot work."""

import threading

import pytest
import torch
from torch import nn

from clpu import Agent, BadData, BadNetwork, BadState, Stream
from clpu.testing import make_task, play

X, Y = make_task("x")


def learned(module, method="der++", tasks="1R 2R", **options):
    return play(tasks, method, network=module, epochs=2, batch_size=16, **options)


def body(agent):
    return agent._method.main.body.replica_tensors[0]


def test_frozen_parameters_stay_as_they_are():
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    module[0].requires_grad_(False)
    tensors = body(learned(module))
    assert torch.equal(tensors["0.weight"], module[0].weight)
    assert not torch.equal(tensors["2.weight"], module[2].weight)


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
    agent = play("1R", "seq", network=module, epochs=2, seeds=[0, 1], lr=0.1)
    first, second = agent._method.main.body.replica_tensors
    assert not torch.equal(first["0.weight"], second["0.weight"])
    kept = [(t["0.weight"] - module[0].weight).abs().sum(1) for t in (first, second)]
    assert not torch.allclose(kept[0], kept[1])


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


@pytest.mark.parametrize("method", ["ind", "seq", "ewc", "er", "lwf", "lsf", "der++", "clpu-der++"])
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
