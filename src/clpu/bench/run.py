"""A benchmark from end to end: pieces are performed, results put together, and an earlier run is gone on with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from clpu.bench import engine
from clpu.bench.pieces import Measured, Piece, load
from clpu.bench.plan import Plan, in_order
from clpu.errors import BadRun
from clpu.metrics import jsd_matrix
from clpu.requests import Stream
from clpu.results import (
    Forget,
    Recipe,
    Result,
    alive_after,
    read_recipe,
    result_path,
    write_recipe,
    write_result,
)


def run(
    plan: Plan,
    folder: Path,
    workers: int = 1,
    listener: engine.Listener = lambda event: None,
    performer: Callable[..., dict[str, str]] = engine.run_pieces,
) -> dict[str, str]:
    """Do what is left of a plan; returns the reasons of the pieces that failed, by piece."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _run(plan, folder, workers, listener, performer)
    except Timeout:
        raise BadRun(f"another process is working in {folder}; wait for it or choose another --out") from None


def _run(
    plan: Plan, folder: Path, workers: int, listener: engine.Listener, performer: Callable[..., dict[str, str]]
) -> dict[str, str]:
    recipe = continued(plan.recipe, folder)
    write_recipe(folder, recipe)
    scratch = folder / "results" / "pieces"
    start, before = time.perf_counter(), recipe.seconds or 0.0
    left = [piece for method in plan.pieces for piece in unfinished(plan, folder, method)]
    state = {m: {p.name for p in unfinished(plan, folder, m)} for m in plan.pieces if not _has_result(folder, m)}

    def watch(event: engine.Event) -> None:
        listener(event)
        if event.kind == "done":
            method = event.piece.partition("--")[0]
            state[method].discard(event.piece)
            if not state[method]:
                _finish(plan, folder, method)
                write_recipe(folder, replace(recipe, seconds=before + time.perf_counter() - start))

    for method, names in state.items():
        if not names:  # all pieces were there, but not yet put together
            _finish(plan, folder, method)
    failures = performer(in_order(left), plan.data, scratch, workers, watch) if left else {}
    if left:
        write_recipe(folder, replace(recipe, seconds=before + time.perf_counter() - start))
    tidy(scratch)
    return failures


def tidy(scratch: Path) -> None:
    """Remove the folder of pieces once none is left in it."""
    if scratch.is_dir() and {path.name for path in scratch.iterdir()} <= {engine.SHARED}:
        shutil.rmtree(scratch)


def _has_result(folder: Path, method: str) -> bool:
    return result_path(folder, method).is_file()


def unfinished(plan: Plan, folder: Path, method: str) -> list[Piece]:
    """The pieces of a method that are still to be done."""
    if _has_result(folder, method):
        return []
    scratch = folder / "results" / "pieces"
    return [piece for piece in plan.pieces[method] if not engine.file_of(scratch, piece).is_file()]


def continued(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of the folder if this one goes on with it; `BadRun` with the differences if it does not."""
    if not (folder / "run.json").is_file():
        return recipe
    return joined(read_recipe(folder), recipe, folder)


def joined(before: Recipe, recipe: Recipe, folder: Path) -> Recipe:
    """An earlier recipe with the methods of a later one; `BadRun` with the differences if they do not agree."""
    differences = []
    for name in ("stream", "requests", "profile", "seeds", "counterfactual_seeds", "network", "data"):
        if getattr(before, name) != getattr(recipe, name):
            differences.append(f"{name}: {getattr(before, name)} there, {getattr(recipe, name)} now")
    for method in recipe.methods:
        then, now = before.settings.get(method, recipe.settings[method]), recipe.settings[method]
        for key in sorted({*then, *now}):
            if _plain(then.get(key)) != _plain(now.get(key)):
                differences.append(f"{method}.{key}: {then.get(key)} there, {now.get(key)} now")
    for name in ("clpu", "torch"):
        if before.versions.get(name) != recipe.versions.get(name):
            differences.append(f"version of {name}: {before.versions.get(name)} there, {recipe.versions.get(name)} now")
    if differences:
        listed = "\n  ".join(differences)
        raise BadRun(f"{folder} holds a run with other settings:\n  {listed}\nChoose another --out, or remove it.")
    methods = tuple(dict.fromkeys([*before.methods, *recipe.methods]))
    return replace(before, methods=methods, settings={**before.settings, **recipe.settings})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _finish(plan: Plan, folder: Path, method: str) -> None:
    """Put the pieces of a method together, write its results, and drop the outputs that they were made from."""
    scratch = folder / "results" / "pieces"
    measured = {piece.name: load(engine.file_of(scratch, piece), piece) for piece in plan.pieces[method]}
    write_result(folder, assemble(plan, method, measured))
    for piece in plan.pieces[method]:
        engine.file_of(scratch, piece).unlink()


def assemble(plan: Plan, method: str, measured: dict[str, Measured]) -> Result:
    """One method's results from the measurements of its pieces."""
    stream = Stream(plan.recipe.requests)
    groups: dict[str, list[Measured]] = {}
    streams: dict[str, str] = {}
    for piece in plan.pieces[method]:
        groups.setdefault(piece.group, []).append(measured[piece.name])
        streams[piece.requests] = piece.group
    actual = groups["actual"]
    forgets = []
    for number in stream.forgets:
        text = str(stream.counterfactual(number))
        never = groups[streams[text]]
        last = len(Stream(text))
        in_group, across = {}, {}
        for task in plan.data:
            runs = np.concatenate([m.outputs[number, task.name] for m in actual])
            others = np.concatenate([m.outputs[last, task.name] for m in never])
            in_group[task.name], across[task.name] = jsd_matrix(others), jsd_matrix(runs, others)
        forgets.append(
            Forget(
                request=number,
                task=stream[number - 1].task,
                counterfactual=text,
                counterfactual_accuracy=np.concatenate([m.accuracy[-1] for m in never], axis=-1),
                in_group=in_group,
                across=across,
            )
        )
    return Result(
        method=method,
        tasks=tuple(task.name for task in plan.data),
        requests=tuple(str(request) for request in stream),
        accuracy=np.concatenate([m.accuracy for m in actual], axis=-1),
        alive=tuple(tuple(names) for names in alive_after(stream)),
        bytes=tuple(actual[0].bytes),
        seconds=tuple(float(s) for s in np.sum([m.seconds for m in actual], axis=0)),
        forgets=tuple(forgets),
    )
