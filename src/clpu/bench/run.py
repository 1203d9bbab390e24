"""A benchmark from end to end: pieces are performed, results put together, and an earlier run is gone on with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock, Timeout

from clpu.bench import engine
from clpu.bench.origins import Origins, admitted, read_origins
from clpu.bench.pieces import Measured, Piece, is_whole, load
from clpu.bench.plan import Plan, in_order
from clpu.errors import BadRun
from clpu.methods import METHODS
from clpu.metrics import jsd_matrix
from clpu.recipe import method_of
from clpu.requests import Stream
from clpu.results import (
    Forget,
    Recipe,
    Result,
    alive_after,
    read_method,
    read_recipe,
    result_path,
    write_recipe,
    write_result,
)

P = TypeVar("P")
M = TypeVar("M")

#: Between the commands that made a run one after the other.
AND = " && "


def run(
    plan: Plan,
    folder: Path,
    workers: int = 1,
    listener: engine.Listener = lambda event: None,
    performer: Callable[..., dict[str, str]] = engine.run_pieces,
    mix: bool = False,
    elsewhere: bool = False,
) -> dict[str, str]:
    """Do what is left of a plan; returns the reasons of the pieces that failed, by piece.

    With `mix`, machines that compute differently may work on one run. `elsewhere` says that the performer does not
    compute on this machine.
    """
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _run(plan, folder, workers, listener, performer, mix, elsewhere)
    except Timeout:
        raise BadRun(f"another process is working in {folder}; wait for it, or choose a different --out") from None


def _run(
    plan: Plan,
    folder: Path,
    workers: int,
    listener: engine.Listener,
    performer: Callable[..., dict[str, str]],
    mix: bool,
    elsewhere: bool,
) -> dict[str, str]:
    recipe = continued(plan.recipe, folder)
    made_by = origins(plan, folder, mix, elsewhere)
    write_recipe(folder, made_by.noted_in(recipe))
    scratch = folder / "results" / "pieces"
    start, before = time.perf_counter(), recipe.seconds or 0.0
    waiting = {m: unfinished(plan, folder, m) for m in plan.pieces if not _has_result(plan, folder, m)}
    left = [piece for pieces in waiting.values() for piece in pieces]
    names = {method: {piece.name for piece in pieces} for method, pieces in waiting.items()}
    failures: dict[str, str] = {}

    def note_time() -> None:
        write_recipe(folder, replace(made_by.noted_in(recipe), seconds=before + time.perf_counter() - start))

    def finish(method: str) -> None:
        try:
            note_time()  # before the files of the pieces, which say what computed them, are gone
            _finish(plan, folder, method)
            note_time()
        except (BadRun, OSError) as error:  # a full disk, say; the other methods go on
            failures[method] = f"{type(error).__name__}: {error}"

    def watch(event: engine.Event) -> None:
        event = admitted(made_by, event, scratch, failures)
        listener(event)
        if event.kind == "done":
            method = method_of(event.piece)
            names[method].discard(event.piece)
            if not names[method]:
                finish(method)

    for method in names:
        if not names[method]:  # all pieces were there, but not yet put together
            finish(method)
    if left:
        try:
            failures |= performer(in_order(left), plan.data, scratch, workers, watch)
        finally:
            with suppress(OSError):  # of a full disk more is told than this
                note_time()
    tidy(scratch, [piece for m, pieces in plan.pieces.items() if _has_result(plan, folder, m) for piece in pieces])
    return failures


def origins(plan: Plan, folder: Path, mix: bool = False, elsewhere: bool = False) -> Origins:
    """What computed what a folder holds; `BadRun` if there is more to do and this machine computes differently."""
    recipe = earlier(folder) or plan.recipe
    scratch = folder / "results" / "pieces"
    files = {
        piece.name: path
        for pieces in plan.pieces.values()
        for piece in pieces
        if is_whole(path := engine.file_of(scratch, piece), piece)
    }
    made_by = read_origins(recipe, [m for m in recipe.methods if _has_result(plan, folder, m)], files, mix)
    left = [piece for method in plan.pieces for piece in unfinished(plan, folder, method)]
    if left and not elsewhere:
        made_by.check(engine.here(left[0].device, left[0].threads), folder)
    return made_by


def make_folder(folder: Path) -> None:
    """Make the folder of a run; `BadRun` if something else is in its place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadRun(f"cannot create {folder}: part of the path is a file. Choose a different --out.") from None


def tidy(scratch: Path, finished: Sequence[Piece] = ()) -> None:
    """Remove what finished pieces and killed workers left, and the folder of pieces once none is left in it."""
    if not scratch.is_dir():
        return
    for piece in finished:
        engine.file_of(scratch, piece).unlink(missing_ok=True)
    for half in scratch.glob(".*.safetensors.*"):
        half.unlink(missing_ok=True)
    if {path.name for path in scratch.iterdir()} <= {engine.SHARED}:
        shutil.rmtree(scratch)


def _has_result(plan: Plan, folder: Path, method: str) -> bool:
    """Whether a method's results are there and whole; damaged ones are made again."""
    return damage(plan, folder, method) == ""


def damage(plan: Plan, folder: Path, method: str) -> str | None:
    """What is wrong with a method's results: nothing (an empty text), or None if there are none."""
    return trouble(result_path(folder, method), lambda: read_method(folder, plan.recipe, method))


def trouble(path: Path, read: Callable[[], object]) -> str | None:
    """What is wrong with a file that `read` reads: nothing (an empty text), or None if there is none."""
    if not path.is_file():
        return None
    with path.open("rb"):  # what may not be read is not taken for damaged
        pass
    try:
        read()
    except BadRun as error:
        return str(error)
    return ""


def taken(read: Callable[[Path, P], M], path: Path, piece: P) -> M:
    """What a finished piece holds; one that cannot be used is removed, so that the same command makes it again."""
    try:
        return read(path, piece)
    except BadRun:
        path.unlink(missing_ok=True)
        raise


def unfinished(plan: Plan, folder: Path, method: str) -> list[Piece]:
    """The pieces of a method that are still to be done; damaged ones are done again."""
    if _has_result(plan, folder, method):
        return []
    scratch = folder / "results" / "pieces"
    return [piece for piece in plan.pieces[method] if not is_whole(engine.file_of(scratch, piece), piece)]


def methods_in(folder: Path, recipe: Recipe | None) -> list[str]:
    """The methods of the recipe that an earlier run left in a folder; `BadRun` if one is not known here."""
    methods = list(recipe.methods) if recipe else []
    for method in methods:
        if method not in METHODS:
            raise BadRun(
                f"{folder} contains results of the method {method!r}, which is not registered. "
                "Load its file with --load FILE."
            )
    return methods


def earlier(folder: Path) -> Recipe | None:
    """The recipe that an earlier run left in a folder."""
    return read_recipe(folder) if (folder / "run.json").is_file() else None


def continued(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of the folder if this one goes on with it; `BadRun` with the differences if it does not."""
    before = earlier(folder)
    return joined(before, recipe, folder) if before else recipe


def joined(before: Recipe, recipe: Recipe, folder: Path) -> Recipe:
    """An earlier recipe with the methods of a later one; `BadRun` with the differences if they do not agree."""
    differences = []

    def compare(name: str, then: Any, now: Any) -> None:
        if _plain(then) != _plain(now):
            differences.append(f"{name}: {then} (existing), {now} (requested)")

    for name in ("stream", "requests", "profile", "seeds", "counterfactual_seeds"):
        compare(name, getattr(before, name), getattr(recipe, name))
    compare("network", before.network.get("name"), recipe.network.get("name"))
    for name, now in vars(recipe.data).items():
        if name != "tasks_sha256" or before.data.tasks_sha256:  # which older runs do not have
            compare(f"data.{name}", getattr(before.data, name), now)
    # Of a method that is there but not asked for now, the settings count that those asked for have too, or one table
    # would hold rows of two learning rates; but what was set for it alone is its own.
    asked = {key for method in recipe.methods for key in recipe.settings[method]}
    for method in [method for method in recipe.settings if method in before.settings]:
        then, now = before.settings[method], recipe.settings[method]
        for key in sorted({*then, *now}):
            alone = any(text.startswith(f"{method}.{key}=") for text in before.overrides)
            if method in recipe.methods or (key in asked and not alone):
                compare(f"{method}.{key}", then.get(key), now.get(key))
    for name in (f"{m} (SHA-256)" for m in recipe.settings if m in before.settings):
        compare(f"version of {name}", before.versions.get(name), recipe.versions.get(name))
    compare("device", before.machine.get("device", "cpu"), recipe.machine.get("device", "cpu"))
    compare("threads", before.machine.get("threads", 1), recipe.machine.get("threads", 1))
    if differences:
        listed = "\n  ".join(differences)
        raise BadRun(
            f"{folder} contains a run with different settings:\n  {listed}\n"
            "Use the same settings, choose a different --out, or delete the folder."
        )
    commands = before.command.split(AND)
    return replace(
        before,
        methods=tuple(dict.fromkeys([*before.methods, *recipe.methods])),
        settings={**{method: recipe.settings[method] for method in recipe.methods}, **before.settings},
        versions={**recipe.versions, **before.versions},
        methods_about={**before.methods_about, **recipe.methods_about},
        overrides=tuple(dict.fromkeys([*before.overrides, *recipe.overrides])),
        command=before.command if recipe.command in commands else AND.join(filter(None, [*commands, recipe.command])),
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _finish(plan: Plan, folder: Path, method: str) -> None:
    """Put the pieces of a method together, write its results, and drop the outputs that they were made from."""
    scratch = folder / "results" / "pieces"
    files = {piece.name: engine.file_of(scratch, piece) for piece in plan.pieces[method]}
    measured = {piece.name: taken(load, files[piece.name], piece) for piece in plan.pieces[method]}
    write_result(folder, assemble(plan, method, measured))
    for path in files.values():
        path.unlink()


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
