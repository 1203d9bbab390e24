"""Export the networks of tasks for use without clpu: as a `torch.export` program or as ONNX.

An export defeats forgetting: whoever has the file keeps what is in it. So a task that can still be forgotten is refused
unless the caller insists, and the file says what it holds.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clpu
from clpu.agent import Agent
from clpu.errors import BadData, BadNetwork, BadSetting, CannotForget, MissingPackage, UnknownTask
from clpu.io import canonical, write_atomically
from clpu.networks.blueprint import Inputs
from clpu.networks.parts import Pixels
from clpu.scaling import Scaling, fixed

#: The name under which the description is in a file.
ABOUT = "clpu.json"
FORMATS = (".pt2", ".onnx")


class ExportedTask(nn.Module):
    """Inputs as a task's data were handed in, in; probabilities of its labels, out: (n, *input) → (n, labels)."""

    def __init__(self, body: nn.Module, head: nn.Module, pixels: Pixels, scaling: Any) -> None:
        super().__init__()
        self.body, self.head, self.pixels, self.scaling = body, head, pixels, scaling

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.head(self.body(self.pixels(self._scaled(x)))), -1)

    def _scaled(self, x: Tensor) -> Tensor:
        if self.scaling is None:
            return x
        return fixed(x) if self.scaling == "fixed" else self.scaling(x)


class Exported(nn.Module):
    """Several tasks: the probabilities of each, in the order of their names."""

    def __init__(self, tasks: Sequence[ExportedTask]) -> None:
        super().__init__()
        self.tasks = nn.ModuleList(tasks)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(task(x) for task in self.tasks)


def export(agent: Agent, path: Path | str, task: str | None = None, *, forgettable: bool = False) -> dict[str, Any]:
    """Write a task's network, or those of all remembered tasks, to a `.pt2` or `.onnx` file; returns what it holds.

    With `forgettable`, tasks are included that the agent can still forget, in spite of the copy.
    """
    file = Path(path)
    if file.suffix not in FORMATS:
        raise BadSetting(f"{file} should end with {' or '.join(FORMATS)}")
    state = agent.state()
    names = state.remembered if task is None else [task]
    if not names:
        raise UnknownTask("no task is remembered, so there is nothing to export; name a task")
    for name in names:
        agent.labels(name)  # refuses a task that is not active
        if not forgettable and (state.tasks[name].status == "T" or agent.forgets in ("tasks", "records")):
            raise CannotForget(
                f"task {name!r} can still be forgotten, and an exported copy cannot: export it only on purpose, "
                "with forgettable=True (--forgettable)"
            )
    if len(agent.seeds) > 1:
        raise BadSetting("a population has several networks per task; export an agent with one seed")
    with torch.no_grad():
        modules = [_module(agent, name) for name in names]
        facts = [state.tasks[name].facts for name in names]
        example = _example(facts, modules[0].pixels)
        about = {
            "format": "clpu-export",
            "clpu": clpu.__version__,
            "method": agent.method,
            "takes": _takes(example),
            "tasks": [
                {"task": name, "status": state.tasks[name].status, "labels": list(state.tasks[name].labels)}
                | {key: fact[key] for key in ("columns",) if key in fact}
                for name, fact in zip(names, facts)
            ],
            "note": "a copy of learned networks: forgetting a task in its store does not reach this file",
        }
        module: nn.Module = modules[0] if task is not None else Exported(modules)
        write_atomically(file, _written(module, example, about, file.suffix))
    return about


def _module(agent: Agent, task: str) -> ExportedTask:
    state = agent.state()
    scaling = state.tasks[task].facts.get("scaling")
    inputs = Inputs.from_json(state.tasks[task].facts["inputs"])
    network = agent.new_method(task).network(state, task, inputs)
    if network is None or task not in network.heads:
        raise BadNetwork(f"{agent.method} has no network that answers for task {task!r}, so there is none to export")
    made = scaling if scaling in (None, "fixed") else Scaling.from_json(scaling)
    return ExportedTask(network.body.module(), network.heads[task].module(), network.pixels, made).eval()


def _takes(example: Tensor) -> str:
    """Describe the inputs that an exported network takes."""
    what = {torch.int64: "tokens", torch.uint8: "pixels from 0 to 255", torch.float64: "numbers as they are"}
    kind = what.get(example.dtype, "numbers as the network takes them; pixels from 0 to 1")
    return f"{str(example.dtype).removeprefix('torch.')} of shape (n, {', '.join(map(str, example.shape[1:]))}): {kind}"


def _example(facts: Sequence[Any], pixels: Pixels) -> Tensor:
    """Two inputs as the tasks take them: scaled numbers in double precision, tokens as integers, else floats.

    Pixels are bytes where the network normalises them by the mean and standard deviation of their channels.
    """
    kinds = {"scaled" if fact.get("scaling") is not None else "plain" for fact in facts}
    if len(kinds) > 1:
        raise BadData("some of the tasks scale their inputs and some do not; export them one by one")
    inputs = Inputs.from_json(facts[0]["inputs"])
    if inputs.integer:
        return torch.zeros((2, *inputs.shape), dtype=torch.int64)
    shape = (inputs.shape[0] // 4,) if facts[0].get("scaling") == "fixed" else inputs.shape
    plain = torch.uint8 if pixels.mean else torch.float32
    return torch.zeros((2, *shape), dtype=torch.float64 if kinds == {"scaled"} else plain)


def _written(module: nn.Module, example: Tensor, about: dict[str, Any], suffix: str) -> bytes:
    if suffix == ".onnx":
        try:
            import onnxscript  # noqa: F401
        except ImportError:
            raise MissingPackage("writing ONNX needs two packages: pip install 'clpu[onnx]'") from None
    try:
        with warnings.catch_warnings():  # torch's own, about torch
            warnings.simplefilter("ignore")
            program = torch.export.export(module, (example,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
            if suffix == ".onnx":
                return _onnx(program, about)
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={ABOUT: canonical(about)})
    except Exception as error:
        raise BadNetwork(f"torch cannot export this network: {str(error).splitlines()[0]:.200}") from error
    return buffer.getvalue()


def _onnx(program: Any, about: dict[str, Any]) -> bytes:
    names = [f"p_{entry['task']}" for entry in about["tasks"]]
    made = torch.onnx.export(program, (), input_names=["x"], output_names=names, dynamo=True, verbose=False)
    assert made is not None
    made.model.metadata_props[ABOUT] = canonical(about)
    written: bytes = made.model_proto.SerializeToString()
    return written


def describe(path: Path | str) -> dict[str, Any]:
    """Return the description in an exported `.pt2` file."""
    extra = {ABOUT: ""}
    torch.export.load(path, extra_files=extra)
    about: dict[str, Any] = json.loads(extra[ABOUT])
    return about
