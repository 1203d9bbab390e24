"""Networks out again: programs that answer as the agent does, and say what they hold."""

import hashlib
import json

import numpy as np
import pytest
import torch

from clpu import Agent, BadNetwork, BadSetting, CannotForget, UnknownTask
from clpu.export import ABOUT, describe, export
from clpu.tables import bucket
from clpu.testing import TINY, make_task

X, Y = make_task("1")
RAW = X * np.logspace(-3, 4, 6)
RAW[::5, 1] = np.nan
NAMES = np.array(["ant", "bee", "cat"])[(Y - 7) // 10]
SCALED = {**TINY, "scaling": "auto"}


def taught(method="clpu-der++", **options):
    agent = Agent(method, **{**SCALED, **options})
    agent.learn("1", RAW, NAMES)
    agent.learn("2", 3 * RAW, Y)
    agent.learn("guest", RAW, Y, temporary=True)
    return agent


def test_a_program_answers_as_the_agent_does_and_says_what_it_holds(tmp_path):
    agent = taught()
    about = export(agent, tmp_path / "one.pt2", "1")
    program = torch.export.load(tmp_path / "one.pt2").module()
    for rows in (RAW, RAW[:1], np.repeat(RAW, 3, 0)):
        assert np.allclose(program(torch.tensor(rows)).numpy(), agent.predict("1", rows), atol=1e-6)
    assert describe(tmp_path / "one.pt2") == json.loads(json.dumps(about))
    assert about["tasks"] == [{"task": "1", "status": "R", "labels": ["ant", "bee", "cat"]}]
    assert about["takes"] == "float64 of shape (n, 6): numbers as they are"
    assert "guest" not in json.dumps(about)


@pytest.mark.slow
def test_all_remembered_tasks_are_exported_together_and_a_temporary_one_never_unasked(tmp_path):
    agent = taught()
    about = export(agent, tmp_path / "all.pt2")
    assert [entry["task"] for entry in about["tasks"]] == ["1", "2"]
    first, second = torch.export.load(tmp_path / "all.pt2").module()(torch.tensor(RAW))
    assert np.allclose(first.numpy(), agent.predict("1", RAW), atol=1e-6)
    assert np.allclose(second.numpy(), agent.predict("2", RAW), atol=1e-6)


def test_what_can_still_be_forgotten_is_refused_unless_told(tmp_path):
    agent, ind = taught(), taught("ind")
    for each, task in ((agent, "guest"), (ind, "1"), (ind, None)):
        with pytest.raises(CannotForget, match="can still be forgotten"):
            export(each, tmp_path / "x.pt2", task)
    with pytest.raises(UnknownTask):
        export(agent, tmp_path / "x.pt2", "nobody")
    with pytest.raises(UnknownTask):
        export(Agent(), tmp_path / "x.pt2")
    with pytest.raises(BadSetting, match=r"\.pt2 or \.onnx"):
        export(agent, tmp_path / "x.pickle", "1")
    with pytest.raises(BadSetting, match="one seed"):
        export(taught(seeds=[0, 1]), tmp_path / "x.pt2", "1")
    ridge = Agent("ridge")
    ridge.learn("1", X, Y)
    with pytest.raises(BadNetwork):
        export(ridge, tmp_path / "x.pt2", "1", forgettable=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_forgettable_task_is_exported_when_told(tmp_path):
    agent = taught()
    export(agent, tmp_path / "guest.pt2", "guest", forgettable=True)
    program = torch.export.load(tmp_path / "guest.pt2").module()
    assert np.allclose(program(torch.tensor(RAW)).numpy(), agent.predict("guest", RAW), atol=1e-6)


@pytest.mark.slow
def test_onnx_answers_as_the_agent_does(tmp_path, capfd):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    agent = taught()
    about = export(agent, tmp_path / "one.onnx", "1")
    assert capfd.readouterr().err == ""
    session = runtime.InferenceSession(tmp_path / "one.onnx")
    (found,) = session.run(None, {"x": RAW})
    assert np.allclose(found, agent.predict("1", RAW), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map[ABOUT]) == json.loads(json.dumps(about))


def test_images_of_bytes_and_columns_of_text_are_taken_as_they_were_learned(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (24, 4, 4), dtype=np.uint8)
    agent = Agent(**SCALED)
    agent.learn("1", images, np.arange(24) % 2)
    assert export(agent, tmp_path / "1.pt2", "1")["takes"] == "uint8 of shape (n, 4, 4): pixels from 0 to 255"
    program = torch.export.load(tmp_path / "1.pt2").module()
    assert np.allclose(program(torch.tensor(images)).numpy(), agent.predict("1", images), atol=1e-6)
    table = {"size": X[:, 0], "kind": NAMES}
    agent = Agent(**SCALED)
    agent.learn("1", table, Y)
    how = export(agent, tmp_path / "table.pt2", "1")["text"]
    number = how[how.index("int.from_bytes") :]
    found = {kind: eval(number, {"hashlib": hashlib, "column": "kind", "text": kind}) for kind in ("ant", "bee")}
    assert found == {kind: bucket("kind", kind) for kind in ("ant", "bee")}


@pytest.mark.slow
def test_images_and_own_modules_are_exported(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (24, 3, 8, 8), dtype=np.uint8)
    y = np.arange(24) % 2
    resnet = Agent(network="resnet18", width=1, epochs=1, mean=(0.5,) * 3, std=(0.2,) * 3)
    resnet.learn("1", images, y)
    assert export(resnet, tmp_path / "resnet.pt2", "1")["takes"].startswith("uint8 of shape (n, 3, 8, 8)")
    program = torch.export.load(tmp_path / "resnet.pt2").module()
    assert np.allclose(program(torch.tensor(images)).numpy(), resnet.predict("1", images), atol=1e-5)
    own = Agent(network=torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh()), epochs=1)
    own.learn("1", X, Y)
    export(own, tmp_path / "own.pt2", "1")
    program = torch.export.load(tmp_path / "own.pt2").module()
    assert np.allclose(program(torch.tensor(X)).numpy(), own.predict("1", X), atol=1e-5)
