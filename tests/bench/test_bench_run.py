"""A benchmark from end to end on a tiny scale: results, resuming, failures, other settings."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clpu import Agent, BadData, BadRun, BadSetting, Stream, jsonfile, machine
from clpu.bench import measure
from clpu.bench.measure import class_incremental, load, perform, save
from clpu.bench.plan import plan
from clpu.bench.run import BENCHMARK, run
from clpu.methods import METHODS, Method, plugins
from clpu.metrics import jsd
from clpu.results import read_run
from clpu.runs import engine, shared_training
from clpu.runs.folder import RunFolder
from clpu.runs.jobs import Job, TaskData, file_of, write_arrays
from clpu.runs.plan import check_methods, known_settings, with_settings
from clpu.runs.profiles import profile, with_overrides
from clpu.runs.recipe import check_method, read_recipe
from clpu.runs.shared_training import SHARED
from clpu.testing import continue_stream


def tiny(methods=("seq", "clpu-der++"), overrides=(), requests="1R 2T 2F", seeds=2, stream="rot-digits"):
    known = {m: list(known_settings(m, "mlp")) for m in methods}
    chosen = with_overrides(profile(stream, "smoke"), ["tasks=3", *overrides] if "rot" in stream else overrides, known)
    return plan(stream, chosen, methods, requests, seeds)


def metrics_in(folder):
    """What a run found, without the times it took."""
    found = {}
    for path in sorted((folder / "results").glob("*.json")):
        found[path.name] = json.loads(path.read_text())
        del found[path.name]["seconds"]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert run(tiny(), folder) == {}
    return folder


def test_a_run_folder_holds_the_recipe_and_one_result_per_method(finished):
    read = read_run(finished)
    assert list(read.results) == ["seq", "clpu-der++"]
    assert read.missing == []
    assert read.recipe.requests == "1R 2T 2F"
    assert read.recipe.settings["seq"]["lr"] == 0.1
    assert read.recipe.data.train == 200
    assert not set(read.recipe.seeds) & set(read.recipe.counterfactual_seeds)
    assert read.recipe.seconds > 0
    assert not (finished / "jobs").exists()


def test_the_figures_are_those_of_the_agents_themselves(finished):
    work, result = tiny(), read_run(finished).results["clpu-der++"]
    data = {d.name: (d.train_x, d.train_y) for d in work.data}
    settings = work.recipe.settings["clpu-der++"]
    actual = continue_stream(Agent("clpu-der++", seeds=[0, 1], **settings), "1R 2T 2F", lambda t: data[t])
    never = continue_stream(Agent("clpu-der++", seeds=[1000, 1001], **settings), "1R", lambda t: data[t])
    task = work.data[1]
    a, n = (F.log_softmax(x.logits("2", task.test_x, 10), -1).numpy() for x in (actual, never))
    forget = result.forgets[0]
    assert forget.counterfactual == "1R"
    for i in range(2):
        for j in range(2):
            assert forget.across["2"][i, j] == pytest.approx(jsd(a[i], n[j]), rel=1e-5, abs=1e-9)
    assert forget.in_group["2"][0, 1] == pytest.approx(jsd(n[0], n[1]), rel=1e-5, abs=1e-9)
    first = work.data[0]
    assert np.allclose(result.accuracy[-1, 0], actual.accuracy("1", first.test_x, first.test_y))
    assert result.bytes[-1] * 2 == actual.storage()["main"] + sum(actual.storage()["tasks"].values())
    assert result.bytes[1] > result.bytes[2] == result.bytes[0]


def test_learning_that_methods_share_is_done_once_and_changes_no_figure(tmp_path, monkeypatch):
    planned, fits = tiny(("seq", "ewc")), []
    fit = Method.fit
    monkeypatch.setattr(Method, "fit", lambda self, *rest, **named: (fits.append(1), fit(self, *rest, **named))[1])
    # A clock by which a training takes a second, and nothing else takes any time.
    for module in (measure, shared_training):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(len(fits))))

    def unshared(job, data, path, progress):
        save(path, job, perform(job, data, progress))

    def without(*arguments):
        return engine.run_jobs(*arguments[:-1], unshared)

    assert run(planned, tmp_path / "shared") == {}
    together = len(fits)
    assert run(planned, tmp_path / "not", performer=without) == {}
    # Both methods learn 1R in the same way, actual and counterfactual.
    assert (together, len(fits) - together) == (4, 6)
    assert metrics_in(tmp_path / "shared") == metrics_in(tmp_path / "not")
    # Learning taken from another job counts as if it had been done.
    for folder in ("shared", "not"):
        for result in read_run(tmp_path / folder).results.values():
            assert list(result.seconds) == [1, 1, 0], (folder, result.method)


def test_a_finished_run_is_not_recomputed(finished):
    events = []
    assert run(tiny(), finished, listener=events.append) == {}
    assert events == []


def test_an_interrupted_run_resumes_and_ends_with_the_same_figures(finished, tmp_path):
    jobs = []

    def stop_after_two(event):
        if event.kind == "done":
            jobs.append(event.job)
        if len(jobs) == 2 and event.kind == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny(), tmp_path, listener=stop_after_two)
    again = []
    run(tiny(), tmp_path, listener=lambda e: again.append(e.job) if e.kind == "done" else None)
    assert len(jobs) == 2
    assert len(again) == 2
    assert not set(jobs) & set(again)
    assert metrics_in(tmp_path) == metrics_in(finished)


def test_worker_processes_give_the_same_figures(finished, tmp_path):
    assert run(tiny(), tmp_path, workers=2) == {}
    assert metrics_in(tmp_path) == metrics_in(finished)


def test_a_killed_worker_fails_its_job_only_and_the_next_run_completes(finished, tmp_path):
    killed = []

    def kill_once(event):
        if event.kind == "step" and not killed:
            victim = multiprocessing.active_children()[0]
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(victim.pid)

    failures = run(tiny(), tmp_path, workers=2, listener=kill_once)
    assert len(failures) == 1
    assert "SIGKILL" in next(iter(failures.values()))
    assert run(tiny(), tmp_path) == {}
    assert metrics_in(tmp_path) == metrics_in(finished)


def test_a_job_that_fails_is_reported_with_its_reason_and_the_others_continue(tmp_path):
    work = tiny(overrides=["seq.lr=1e20"])
    failures = run(work, tmp_path)
    assert set(failures) == {"seq--actual--0", "seq--counterfactual-3--1000"}
    assert all("Diverged" in reason for reason in failures.values())
    assert list(read_run(tmp_path).results) == ["clpu-der++"]


def test_different_settings_in_the_same_folder_are_refused_with_the_difference(finished):
    with pytest.raises(BadRun, match=r"seq\.lr: 0\.1 \(existing\), 0\.2 \(requested\)"):
        run(tiny(overrides=["seq.lr=0.2"]), finished)
    with pytest.raises(BadRun, match="requests"):
        run(tiny(requests="1R 2T"), finished)
    with pytest.raises(BadRun, match="seeds"):
        run(tiny(seeds=3), finished)


def test_a_different_device_or_different_data_are_refused(finished):
    work = tiny()
    other = replace(work, recipe=replace(work.recipe, machine={**work.recipe.machine, "device": "cpu:0"}))
    with pytest.raises(BadRun, match=r"device: cpu \(existing\), cpu:0 \(requested\)"):
        run(other, finished)
    with pytest.raises(BadRun, match=r"data\.test: 100 \(existing\), 50 \(requested\)\n"):
        run(tiny(overrides=["test=50"]), finished)


def test_a_further_method_has_the_settings_of_those_that_are_there(finished):
    """Or one table would hold rows of two learning rates."""
    with RunFolder(finished, BENCHMARK) as found:
        assert found.methods() == ["seq", "clpu-der++"]
    chosen = with_settings(profile("rot-digits", "smoke"), ["tasks=3", "lr=0.2"], ["er", "seq"])
    with pytest.raises(BadRun, match=r"seq\.lr: 0\.1 \(existing\), 0\.2 \(requested\)"):
        run(plan("rot-digits", chosen, ["er"], "1R 2T 2F", 2, also=["seq"]), finished)


def test_what_is_one_methods_own_hinders_no_other(tmp_path):
    def asked(method, also, *overrides):
        chosen = with_settings(profile("rot-digits", "smoke"), ["tasks=3", *overrides], [method, *also])
        return plan("rot-digits", chosen, [method], "1R", 1, also=also)

    assert run(asked("er", [], "er.lr=0.2", "memory=7"), tmp_path) == {}
    assert run(asked("seq", ["er"]), tmp_path) == {}
    assert run(asked("er", ["seq"], "er.lr=0.2", "memory=7"), tmp_path) == {}
    with pytest.raises(BadRun, match=r"er\.memory: 7 \(existing\), 200 \(requested\)"):
        run(asked("der++", ["er", "seq"]), tmp_path)
    recipe = read_run(tmp_path).recipe
    assert (recipe.settings["er"]["lr"], recipe.settings["seq"]["lr"]) == (0.2, 0.1)


def test_a_method_that_is_not_known_here_is_asked_for(finished, tmp_path):
    jsonfile.write(tmp_path / "run.json", replace(read_recipe(finished), methods=("seq", "mine")))
    with (
        RunFolder(tmp_path, BENCHMARK) as found,
        pytest.raises(BadRun, match=r"'mine', which is not registered.*--load"),
    ):
        found.methods()


def test_a_method_from_another_file_is_another_method(finished, monkeypatch):
    monkeypatch.setitem(plugins.CHECKSUMS, "seq", "ab" * 32)
    with pytest.raises(BadRun, match=r"version of seq \(SHA-256\): None \(existing\)"):
        run(tiny(), finished)


def test_names_that_a_disk_could_take_for_one_are_refused():
    with pytest.raises(BadRun, match="no --"):
        check_method("er--v2")
    with pytest.raises(BadSetting, match="upper and lower case"):
        plan("rot-digits", profile("rot-digits", "smoke"), ["er", "ER"])


def test_what_may_not_be_read_is_not_recomputed(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    kept, opened = (tmp_path / "results" / "seq.json").read_bytes(), Path.open

    def forbidden(path, *rest, **named):
        if path.name == "seq.json":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **named)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(PermissionError):
        run(tiny(), tmp_path, listener=lambda e: pytest.fail("nothing is to be trained again"))
    monkeypatch.undo()
    assert (tmp_path / "results" / "seq.json").read_bytes() == kept


def test_a_job_with_an_intact_header_but_different_content_is_recomputed_next_time(tmp_path):
    work, scratch = tiny(("seq",)), tmp_path / "jobs"
    job = work.jobs["seq"][0]
    path = file_of(scratch, job)
    write_arrays(
        path,
        {"nothing": np.zeros(1)},
        {
            "job": job.described(),
            "facts": jsonfile.dumps({"bytes": [], "seconds": [], "evaluation": 0.0}),
            "machine": jsonfile.dumps(machine.here()),
        },
    )
    assert "damaged" in run(work, tmp_path)["seq"]
    assert run(work, tmp_path) == {}
    assert list(read_run(tmp_path).results) == ["seq"]


def test_every_command_that_made_a_run_is_recorded(tmp_path):
    for methods, command in ((("seq",), "clpu a"), (("ind",), "clpu b"), (("seq",), "clpu a")):
        work = tiny(methods)
        run(replace(work, recipe=replace(work.recipe, command=command)), tmp_path)
    recipe = read_run(tmp_path).recipe
    assert recipe.command == "clpu a && clpu b"
    assert recipe.overrides == ("tasks=3",)


def test_damaged_jobs_and_results_are_recomputed(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    result = tmp_path / "results" / "seq.json"
    result.write_bytes(result.read_bytes()[:100])
    work, scratch = tiny(), tmp_path / "jobs"
    for number, job in enumerate(work.jobs["seq"]):
        path = file_of(scratch, job)
        save(path, job, perform(job, work.data))
        if number:
            path.write_bytes(path.read_bytes()[:-9])
    again = []
    assert run(work, tmp_path, listener=lambda e: again.append(e.job) if e.kind == "done" else None) == {}
    assert again == [job.name for job in work.jobs["seq"][1:]]
    assert metrics_in(tmp_path) == metrics_in(finished)


def test_a_full_disk_while_a_method_is_put_together_fails_that_method_only(finished, tmp_path, monkeypatch):
    write = jsonfile.write

    def full(path, value):
        if path.name == "seq.json":
            raise OSError(28, "No space left on device")
        return write(path, value)

    monkeypatch.setattr(jsonfile, "write", full)
    failures = run(tiny(), tmp_path)
    assert list(failures) == ["seq"]
    assert "No space left" in failures["seq"]
    assert list(read_run(tmp_path).results) == ["clpu-der++"]
    monkeypatch.undo()
    assert run(tiny(), tmp_path, listener=lambda e: pytest.fail("nothing is to be trained again")) == {}
    assert metrics_in(tmp_path) == metrics_in(finished)


def test_what_a_kill_leaves_is_cleared(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    work, scratch = tiny(), tmp_path / "jobs"
    job = work.jobs["seq"][0]
    save(file_of(scratch, job), job, perform(job, work.data))
    (scratch / ".er--actual--0.safetensors.999").write_bytes(b"half")
    (scratch / SHARED).mkdir()
    assert run(work, tmp_path) == {}
    assert not scratch.exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(BadRun, match="part of the path is a file"):
            run(tiny(), folder)
    assert (tmp_path / "file").read_text() == "mine"


def test_further_methods_may_join_a_run(finished, tmp_path):
    run(tiny(("seq",)), tmp_path)
    run(tiny(("clpu-der++",)), tmp_path)
    assert metrics_in(tmp_path) == metrics_in(finished)
    assert read_run(tmp_path).recipe.methods == ("seq", "clpu-der++")


def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"), pytest.raises(BadRun, match="another process"):
        run(tiny(), tmp_path)


def test_a_damaged_job_is_named(tmp_path):
    job = Job("seq", "actual", "1R", (0,), "mlp", {"hidden": (4,)}, (1,))
    data = [TaskData("1", torch.rand(8, 5), torch.arange(8) % 2, torch.rand(4, 5), torch.arange(4) % 2, (0, 1))]
    path = tmp_path / "p.safetensors"
    save(path, job, perform(job, data))
    assert load(path, job).outputs[1, "1"].shape == (1, 4, 2)
    other = Job("seq", "actual", "1R", (1,), "mlp", {"hidden": (4,)}, (1,))
    with pytest.raises(BadRun, match="a different job"):
        load(path, other)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadRun, match="damaged"):
        load(path, job)


def test_a_counterfactual_without_requests_is_a_fresh_agent(tmp_path):
    assert run(tiny(("clpu-der++",), requests="1T 1F"), tmp_path) == {}
    forget = read_run(tmp_path).results["clpu-der++"].forgets[0]
    assert forget.counterfactual == ""
    assert forget.counterfactual_accuracy.mean() < 0.4


def test_requests_beyond_the_streams_tasks_and_too_few_images_are_refused():
    with pytest.raises(BadSetting, match="9"):
        tiny(requests="9T")
    with pytest.raises(BadData, match="too few"):
        tiny(overrides=["train=5"])
    for seeds in (0, 1001):  # beyond 1000 the seeds of the two groups would be the same
        with pytest.raises(BadSetting, match="1 to 1000"):
            tiny(seeds=seeds)
    with pytest.raises(BadSetting, match="no requests"):
        tiny(requests="")
    with pytest.raises(BadSetting, match="separated by spaces"):
        tiny(requests="1R,2T")


def test_methods_are_named_once_and_all_means_all():
    assert check_methods(["seq", "seq", "er"]) == ["seq", "er"]
    assert check_methods(["all"]) == [name for name, method in METHODS.items() if method.takes("mlp")]
    with pytest.raises(BadSetting, match="gem"):
        check_methods(["gem"])
    with pytest.raises(BadSetting, match="no method"):
        check_methods([])


def test_the_estimated_work_grows_with_what_a_method_does():
    def cost(method):
        return sum(Job(method, "actual", str(Stream("clpu-2022")), (0, 1), "mlp", {}, ()).costs())

    assert cost("seq") < cost("clpu-der++") < cost("der++") < cost("lsf")


def test_data_are_shared_between_processes_not_copied():
    data = TaskData("1", torch.rand(8, 5), torch.arange(8) % 2, torch.rand(4, 5), torch.arange(4) % 2, (0, 1))
    assert all(t.is_shared() for t in vars(engine.in_shared_memory(data)).values() if isinstance(t, torch.Tensor))


def test_a_network_that_did_not_change_is_not_examined_again(monkeypatch):
    made, asked = tiny(("clpu-der++",)), []
    job = next(p for p in made.jobs["clpu-der++"] if p.group == "actual")
    logits = Agent.logits
    monkeypatch.setattr(Agent, "logits", lambda agent, task, *rest: (asked.append(task), logits(agent, task, *rest))[1])
    measured = perform(job, made.data)
    # After 1R all three tasks; after 2T only task 2, which has its own network; after 2F again only task 2.
    assert asked == ["1", "2", "3", "2", "2"]
    agent = Agent("clpu-der++", seeds=job.seeds, **job.settings)
    for number, request in enumerate(Stream("1R 2T 2F")):
        continue_stream(agent, str(request), lambda t: next((d.train_x, d.train_y) for d in made.data if d.name == t))
        for column, task in enumerate(made.data):
            right = logits(agent, task.name, task.test_x, 10).argmax(-1) == task.test_y
            assert np.array_equal(measured.accuracy[number, column], right.double().mean(-1).numpy())


def test_class_incremental_accuracy_counts_right_pairs_of_task_and_label():
    rng = np.random.default_rng(0)
    x = {label: (8 * np.eye(4)[label] + rng.normal(size=(30, 4))).astype(np.float32) for label in range(4)}

    def task(name, labels):
        inputs = torch.from_numpy(np.concatenate([x[label] for label in labels]))
        y = torch.tensor(np.repeat(labels, 30))
        return TaskData(name, inputs, y, inputs, y, tuple(labels))

    data = [task("1", [0, 1]), task("2", [2, 3]), task("never", [0, 2])]
    agent = Agent("ridge", seeds=[0, 1])
    assert class_incremental(agent, data).shape == (0,)
    for one in data[:2]:
        agent.learn(one.name, one.train_x, one.train_y)
    assert class_incremental(agent, data).shape == (2,)
    assert (class_incremental(agent, data) > 0.9).all()
    swapped = [replace(data[0], test_x=data[1].test_x), data[1]]
    assert (class_incremental(agent, swapped) < 0.6).all(), "half of the images are of the other task"
    agent.forget("2", labels=[3])
    assert (class_incremental(agent, data) > 0.9).all(), "images of a forgotten label are not asked about"


@pytest.mark.parametrize("method", ["clpu-der++", "ridge"])
def test_class_incremental_accuracy_is_that_of_asking_about_one_image_at_a_time(method):
    network = ["network=base:random", "features=50"] if method == "ridge" else []
    made = plan(
        "split-digits", with_settings(profile("split-digits", "smoke"), network, [method]), [method], "1R 2T 4R 2F", 2
    )
    job = next(job for job in made.jobs[method] if job.group == "actual")
    by_name = {task.name: task for task in made.data}
    agent = job.agent()
    for request in Stream(job.requests):
        brings = str(request) != "2F"
        agent.handle(request, *((by_name[request.task].train_x, by_name[request.task].train_y) if brings else ()))
    right = [[] for _ in job.seeds]
    for name in ("1", "4"):  # what is active at the end
        for image, label in zip(by_name[name].test_x, by_name[name].test_y.tolist()):
            for replica, probabilities in enumerate(agent.predict(None, image[None]).tolist()):
                answers = dict(zip(agent.labels(None), probabilities[0]))
                del answers[None]
                right[replica].append(max(answers, key=answers.get) == (name, label))
    expected = np.array([sum(one) / len(one) for one in right])
    found = perform(job, made.data).class_incremental
    assert np.array_equal(found, expected)
    assert 0.3 < found.mean() < 1, "neither perfect nor chance, so that a mistake would show"
