"""Every kind of bad input gets a typed error that says what was given and what was expected, and changes nothing."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import clpu
from clpu import Agent, BadData, BadNetwork, BadRequest, BadSetting, Diverged, UnknownTask
from clpu.testing import TINY, make_task, run_stream

X, Y = make_task("x")


class Pairs(Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


class Sparse:
    def toarray(self):
        return X


BAD_DATA = {
    "one dimension": (X[:, 0], Y, r"shape .* x\[None\]"),
    "no examples": (X[:0], Y[:0], "empty"),
    "empty inputs": (np.zeros((5, 0)), Y[:5], "empty"),
    "NaN": (np.where(X[3, 2] == X, np.nan, X), Y, "1 of 48"),
    "infinity": (np.where(X[3, 2] == X, np.inf, X), Y, "1 of 48"),
    "both infinities": (np.where(X > 0, np.inf, -np.inf), Y, "NaN, infinity"),
    "too large for float32": (X.astype(np.float64) * 1e300, Y, "too large"),
    "text": (X.astype(str), Y, "numbers, .* data frame"),
    "complex": (X.astype(complex), Y, "numbers"),
    "objects": ([object()] * 4, Y[:4], "numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], [0, 1], "inputs"),
    "complex tensor": (torch.zeros(4, 2, dtype=torch.complex64), Y[:4], "real"),
    "no labels": (X, None, "labels are missing"),
    "float labels": (X, Y.astype(float), r"y.astype\(int\)"),
    "measured quantities as labels": (X, Y + 0.5, r"np.digitize"),
    "missing labels": (X, np.where(Y == 7, np.nan, Y), "leave those rows out"),
    "labels of two kinds": (X, [*Y[1:].tolist(), "7"], "all integers, all booleans or all text"),
    "missing text labels": (X, [*Y[1:].astype(str).tolist(), None], "1 of 48 labels are missing"),
    "labels of bytes": (X, Y.astype("S"), "integers, booleans or text"),
    "labels that are essays": (X, ["a" * 201] * 24 + ["b"] * 24, "200 characters"),
    "labels with lone surrogates": (X, ["\ud800"] * 24 + ["b"] * 24, "Unicode"),
    "fewer labels": (X, Y[:-1], r"\(48,\)"),
    "labels as a column": (X, Y[:, None], r"\(48, 1\); write np.ravel\(y\)"),
    "one-hot labels": (X, np.eye(8)[Y % 8], r"argmax\(1\)"),
    "a quantity as labels": (X, np.arange(48) + 7, "48 different labels, 7 to 54: clpu learns classes"),
    "nothing": (None, Y, "inputs are missing"),
    "a path": ("data.csv", Y, "read the file first"),
    "a sparse matrix": (Sparse(), Y, r"toarray\(\)"),
    "one class": (X, np.full(48, 7), "two classes"),
    "labels beyond 64 bits": (X, np.full(48, 2**64 - 1, dtype=np.uint64), "64"),
    "dataset and labels": (TensorDataset(torch.tensor(X), torch.tensor(Y)), Y, "not both"),
    "empty dataset": (Pairs([]), None, "length"),
    "iterable dataset": (Endless(), None, "length"),
    "dataset without labels": (Pairs([X[0], X[1]]), None, "pairs"),
    "dataset of odd shapes": (Pairs([(X[0], 0), (X[1, :3], 1)]), None, "one shape"),
    "dataset of vector labels": (Pairs([(X[0], [0, 1]), (X[1], [1, 0])]), None, "one label"),
}


@pytest.mark.parametrize("case", BAD_DATA, ids=lambda c: c.replace(" ", "-"))
def test_bad_data_are_refused_and_nothing_changes(case):
    x, y, says = BAD_DATA[case]
    for agent in (Agent(**TINY), run_stream("1R 2T", "clpu-der++", **TINY)):
        before = agent.digest()
        for temporary in (False, True):
            with pytest.raises(BadData, match=says):
                agent.learn("new", x, y, temporary=temporary)
        assert agent.digest() == before


def test_sizes_must_not_change_between_calls():
    agent = run_stream("1R", "clpu-der++", **TINY)
    for attempt in (
        lambda: agent.learn("2", X[:, :5], Y),
        lambda: agent.predict("1", X[:, :5]),
        lambda: agent.logits("other", X[:, :5], 3),
        lambda: agent.accuracy("1", X[:, :, None], Y),
    ):
        with pytest.raises(BadData, match=r"\(6,\)"):
            attempt()


def test_once_all_is_forgotten_inputs_may_have_another_shape():
    agent = run_stream("1T 1F", "clpu-der++", **TINY)
    agent.learn("2", X[:, :5], Y)
    assert agent.tasks == {"2": "R"}


@pytest.mark.parametrize("name", ["", "a\x07", "x" * 101, 7])
def test_unsuitable_task_names_are_refused(name):
    agent = run_stream("1T", "clpu-der++", **TINY)
    before = agent.digest()
    for attempt in (
        lambda: agent.learn(name, X, Y),
        lambda: agent.keep(name),
        lambda: agent.forget(name),
        lambda: agent.predict(name, X),
    ):
        with pytest.raises(clpu.Error):
            attempt()
    assert agent.digest() == before


def test_requests_need_data_when_they_learn_and_take_none_when_they_do_not():
    agent = run_stream("1T", "clpu-der++", **TINY)
    with pytest.raises(BadData, match="needs data"):
        agent.handle("2R")
    with pytest.raises(BadRequest, match="takes no data"):
        agent.handle("1R", X, Y)
    with pytest.raises(BadRequest, match="'Q'"):
        agent.handle("1Q")
    assert agent.tasks == {"1": "T"}


def test_an_unknown_task_has_no_predictions_and_needs_a_number_of_classes():
    agent = run_stream("1T", "clpu-der++", **TINY)
    for attempt in (lambda: agent.predict("2", X), lambda: agent.logits("2", X), lambda: agent.labels("2")):
        with pytest.raises(UnknownTask, match="unknown task '2'; active tasks: '1'"):
            attempt()
    with pytest.raises(BadData, match="3 classes"):
        agent.logits("1", X, classes=4)


def test_messages_name_no_other_tasks_where_that_is_asked_for(monkeypatch):
    agent = run_stream("1T", "clpu-der++", **TINY)
    monkeypatch.setenv("CLPU_DISCREET", "1")
    for attempt in (lambda: agent.predict("2", X), lambda: agent.forget("2"), lambda: agent.keep("2")):
        with pytest.raises(UnknownTask) as caught:
            attempt()
        assert str(caught.value) == "unknown task '2'"


class Returns(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Returns(lambda x: x.unsqueeze(-1)), r"\(2, 6, 1\)"),
        (Returns(lambda x: x[:1]), r"\(1, 6\)"),
        (Returns(lambda x: x.sum(1)), r"\(2,\)"),
        (Returns(lambda x: x.long()), "int64"),
        (Returns(lambda x: (x, x)), "tuple"),
        (Returns(lambda x: 1 / 0), "division by zero"),
        (torch.nn.Linear(5, 3), r"inputs of shape \(2, 6\)"),
    ],
)
def test_a_module_that_returns_something_else_is_refused(module, says):
    agent = Agent(network=module, epochs=1)
    before = agent.digest()
    with pytest.raises(BadNetwork, match=says):
        agent.learn("1", X, Y)
    assert agent.digest() == before
    assert agent.tasks == {}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"method": "gem"}, BadSetting, "clpu-der"),
        ({"method": 3}, BadSetting, "got 3"),
        ({"network": "vgg"}, BadNetwork, "resnet18"),
        ({"network": 3}, BadNetwork, "got 3"),
        ({"epoch": 3}, BadSetting, "did you mean 'epochs'"),
        ({"width": 8}, BadSetting, "no setting 'width'"),
        ({"epochs": 0}, BadSetting, "at least 1"),
        ({"epochs": 1.5}, BadSetting, "an integer"),
        ({"epochs": True}, BadSetting, "an integer"),
        ({"lr": 0}, BadSetting, "above 0"),
        ({"lr": float("nan")}, BadSetting, "finite"),
        ({"lr": "fast"}, BadSetting, "must be a number"),
        ({"hidden": ()}, BadSetting, "positive integers"),
        ({"hidden": (3, -1)}, BadSetting, "positive integers"),
        ({"method": "clpu-der++", "logits": "now"}, BadSetting, "online, final"),
        ({"seeds": []}, BadSetting, "one or more"),
        ({"seeds": [1, 1]}, BadSetting, "differ"),
        ({"seeds": 5}, BadSetting, "list"),
        ({"seed": 1.5}, BadSetting, "integers"),
        ({"device": "quantum"}, BadSetting, "quantum"),
        ({"device": "cuda:99"}, BadSetting, "cuda"),
    ],
)
def test_bad_settings_are_refused_with_what_is_known(arguments, error, says):
    with pytest.raises(error, match=says):
        Agent(**arguments)


def test_a_setting_of_the_agent_is_not_one_of_a_request():
    agent = Agent(**TINY)
    with pytest.raises(BadSetting, match="hidden is a setting of the agent"):
        agent.learn("1", X, Y, hidden=(8,))
    assert agent.tasks == {}


def test_training_that_explodes_is_refused():
    agent = run_stream("1R", "clpu-der++", **TINY)
    before = agent.digest()
    for temporary in (False, True):
        with pytest.raises(Diverged, match="lower lr"):
            agent.learn("2", X * 1e20, Y, temporary=temporary)
    assert agent.digest() == before
    assert agent.tasks == {"1": "R"}
    with pytest.raises(Diverged, match=r"lower lr than 1e\+20"):
        Agent(**{**TINY, "lr": 1e20}).learn("1", X, Y)


def test_resnet_wants_images():
    with pytest.raises(BadNetwork, match="images"):
        Agent(network="resnet18", width=2).learn("1", X, Y)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda a: a.predict(["1"], X),
        lambda a: a.logits("9", X, classes="x"),
        lambda a: a.logits("9", X, classes=2.5),
        lambda a: a.logits("9", X, classes=10**15),
        lambda a: a.predict("1", torch.zeros(3, 6).to_sparse()),
        lambda a: a.predict("1", torch.zeros(3, 6, device="meta")),
        lambda a: a.predict("1", np.ma.masked_greater(X, 0)),
        lambda a: a.predict("1", [torch.tensor(X[0], requires_grad=True)] * 2),
        lambda a: clpu.Request("1", "X"),
        lambda a: clpu.Stream(5),
        lambda a: clpu.Stream("1R").counterfactual("x"),
        lambda a: Agent(clpu.Method),
        lambda a: Agent(progress=3),
        lambda a: Agent(device="meta"),
        lambda a: Agent(lr=10**400),
        lambda a: Agent(memory=10**30),
        lambda a: Agent(seed=10**5000),
    ],
)
def test_odd_arguments_get_typed_errors(attempt):
    agent = run_stream("1R", "clpu-der++", **TINY)
    before = agent.digest()
    with pytest.raises(clpu.Error):
        attempt(agent)
    assert agent.digest() == before


def test_a_request_during_a_request_is_refused():
    agent = run_stream("1T", "clpu-der++", **TINY)

    def meddle(progress):
        agent.forget("1")

    agent.progress = meddle
    before = agent.digest()
    with pytest.raises(BadRequest, match="busy with 2R"):
        agent.learn("2", X, Y)
    agent.progress = None
    assert agent.digest() == before


def test_numbers_of_numpy_are_numbers():
    assert Agent(lr=np.float64(0.1), epochs=np.int64(3)).settings["epochs"] == 3


def test_a_misnamed_network_is_told_before_its_settings():
    with pytest.raises(BadNetwork, match="resnet18"):
        Agent(network="resnet", width=8)


def test_a_written_request_is_read_back_as_the_same_task():
    agent = Agent(**TINY)
    request = clpu.Request("my task's", clpu.Instruction.TEMPORARY)
    agent.handle(str(request), X, Y)
    assert agent.tasks == {"my task's": "T"}
    with pytest.raises(BadRequest, match="one request"):
        agent.handle("my taskT", X, Y)


def test_statistics_that_explode_are_refused_too():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4))
    agent = Agent("seq", network=module, epochs=1)
    with pytest.raises(Diverged):
        agent.learn("1", X * 1e25, Y)
    assert agent.tasks == {}


def test_autocast_and_a_default_device_make_no_difference():
    expected = run_stream("1R 2T 2R", "clpu-der++", **TINY).digest()
    with torch.autocast("cpu", torch.bfloat16):
        agent = run_stream("1R 2T 2R", "clpu-der++", **TINY)
        assert agent.predict("1", X).dtype == np.float32
    assert agent.digest() == expected
    for method in ("ewc", "lsf", "lwf", "clpu-der++"):
        expected = run_stream("1R 2T 3R", method, **TINY).digest()
        with torch.device("meta"):
            assert run_stream("1R 2T 3R", method, **TINY).digest() == expected, method
