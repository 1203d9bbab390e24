"""An audit from end to end: plan, cost, resuming, files, page, program."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module

import clpu
from clpu import jsonfile, machine
from clpu.audit import plan as planning
from clpu.audit import run as auditing
from clpu.audit.api import audit
from clpu.audit.findings import decode_findings
from clpu.audit.page import page
from clpu.audit.plan import Design, audit_profile, estimate, plan, probes
from clpu.audit.probes import load, perform
from clpu.audit.tables import markdown, show
from clpu.audit.verdict import ATTACKS, EXACT, TRACE, verdict
from clpu.errors import BadData, BadRun, BadSetting, CannotForget
from clpu.requests import Stream
from clpu.runs.folder import RunFolder
from clpu.runs.jobs import write_arrays
from clpu.runs.profiles import profile, with_overrides
from clpu.runs.recipe import read_recipe
from clpu.testing import make_task

ROOT = Path(__file__).parent.parent.parent
DESIGN = Design(runs=4, images=30, members=30, stops=4)
SIZE = with_overrides(profile("rot-digits", "smoke"), ["train=96"], {"seq": []})
TASKS = {name: make_task(name, 60) for name in ("1", "2", "3")}
TINY = {"hidden": (8,), "epochs": 1}


def planned(*methods, design=DESIGN, requests="1R 2T 2F 3T 3F"):
    return plan("rot-digits", SIZE, methods, design, requests)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    assert auditing.run(planned("seq", "clpu-der++"), folder) == {}
    return folder


def test_the_two_groups_are_independent_and_twins_have_the_same_seeds():
    made = planned("seq").jobs["seq"]
    seeds = {group: {s for p in made if p.group.startswith(group) for s in p.seeds} for group in ("actual", "counter")}
    assert not seeds["actual"] & seeds["counter"]
    twins = [p for p in made if p.group.startswith("bits")]
    assert len({p.seeds for p in twins}) == 1
    assert {p.requests for p in twins} == {"1R 2T 2F 3T 3F", "1R"}


def test_every_forget_request_is_compared_with_its_own_counterfactual():
    made = list(probes("seq", Stream("1R 2T 3T 2F 4R 3F"), planned("seq").data, DESIGN, "mlp", SETTINGS, "cpu"))
    seen = {p.requests: p.sights for p in made if p.sights}
    assert seen == {
        "1R 2T 3T 2F 4R 3F": ((4, "2", ""), (6, "3", "")),
        "1R 3T": ((2, "2", ""),),
        "1R 4R": ((2, "3", ""),),
    }


SETTINGS = clpu.Agent("seq", epochs=10, batch_size=32, lr=0.01).settings


def test_the_cost_counts_agents():
    plan, larger = planned("seq"), planned("seq", design=dataclasses.replace(DESIGN, runs=16))
    assert plan.agents == 2 * 4 + 2 * 2
    assert larger.agents == 2 * 16 + 2 * 2


def test_the_estimated_time_grows_with_the_work_and_with_the_time_of_a_step(monkeypatch):
    plan = planned("seq")

    def estimated(a_step, probes=plan.jobs["seq"], workers=1):
        stamps = itertools.count(0, a_step)
        monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter=lambda: next(stamps)))
        return estimate(plan, probes, workers)

    assert estimated(3) - estimated(2) == pytest.approx(estimated(2) - estimated(1))
    assert estimated(2) - estimated(1) > estimated(0) > 0
    assert estimated(1) > estimated(1, plan.jobs["seq"][1:]) > 0
    assert estimated(1, workers=2) == pytest.approx(estimated(1) / 2)
    assert estimated(1, []) == 0


def test_the_verdicts_tell_an_exact_method_from_another(finished):
    found = auditing.read_audit(finished).findings
    assert verdict(found["clpu-der++"]).kind == EXACT
    assert all(bits.digest == bits.digest_counterfactual for bits in found["clpu-der++"].bits)
    assert not found["seq"].exact
    assert any(part.startswith("shared/body") for part in found["seq"].bits[0].differing)


def test_all_attacks_are_made_at_every_forget(finished):
    findings = auditing.read_audit(finished).findings["seq"]
    names = [[a.name for a in forget.attacks] for forget in findings.forgets]
    assert names[0] == names[1] == list(ATTACKS)


def test_findings_survive_the_file(finished, tmp_path):
    path = auditing.findings_path(finished, "seq")
    findings = decode_findings(path.read_bytes(), read_recipe(finished, "audit"), "seq", "seq")
    assert jsonfile.write(tmp_path / "again.json", findings).read_bytes() == path.read_bytes()


def test_an_interrupted_run_resumes_and_comes_out_the_same(tmp_path, finished):
    plan = planned("seq", "clpu-der++")
    started = []

    def stop_in_the_middle(event):
        if event.kind == "done":
            started.append(event.job)
        if len(started) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        auditing.run(plan, tmp_path, listener=stop_in_the_middle)
    with RunFolder(tmp_path, auditing.AUDIT) as folder:
        folder.resume(plan)
        left = [probe.name for probe in folder.left]
    assert not set(left) & set(started)
    again = []
    auditing.run(plan, tmp_path, listener=lambda event: again.append(event.job))
    assert set(again) == set(left)
    for method in ("seq", "clpu-der++"):
        ours, theirs = (auditing.findings_path(f, method).read_text() for f in (tmp_path, finished))
        assert ours == theirs


def test_another_method_is_added_to_a_folder_but_another_design_is_refused(tmp_path):
    auditing.run(planned("ind"), tmp_path)
    auditing.run(planned("seq"), tmp_path)
    assert list(auditing.read_audit(tmp_path).findings) == ["ind", "seq"]
    with pytest.raises(BadRun, match=r"design\.runs: 4 \(existing\), 5 \(requested\)"):
        auditing.run(planned("seq", design=dataclasses.replace(DESIGN, runs=5)), tmp_path)
    with pytest.raises(BadRun, match="different settings"):
        auditing.run(planned("seq", requests="1R 2T 2F"), tmp_path)


def test_a_damaged_job_is_recomputed(tmp_path):
    plan = planned("seq")
    probe = plan.jobs["seq"][0]
    path = tmp_path / "jobs" / f"{probe.name}.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no tensors")
    with pytest.raises(BadRun, match="damaged"):
        load(path, probe)
    assert auditing.run(plan, tmp_path) == {}
    assert list(auditing.read_audit(tmp_path).findings) == ["seq"]


def test_a_job_with_an_intact_header_but_different_content_is_recomputed_next_time(tmp_path):
    plan = planned("seq")
    probe = plan.jobs["seq"][0]
    path = tmp_path / "jobs" / f"{probe.name}.safetensors"
    write_arrays(
        path,
        {"nonsense": np.zeros(1)},
        {"job": probe.described(), "facts": "{}", "machine": jsonfile.dumps(machine.here())},
    )
    assert list(auditing.run(plan, tmp_path)) == ["seq"]
    assert auditing.run(plan, tmp_path) == {}


def test_damaged_findings_are_recomputed(tmp_path, finished):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = auditing.findings_path(tmp_path, "seq")
    whole = path.read_text()
    path.write_text(whole[:50])
    assert auditing.run(planned("seq"), tmp_path) == {}
    assert path.read_text() == whole


def test_findings_of_an_unknown_form_are_refused(tmp_path, finished):
    (tmp_path / "findings").mkdir()
    (tmp_path / "run.json").write_text((finished / "run.json").read_text())
    auditing.findings_path(tmp_path, "seq").write_text('{"format": "something"}')
    with pytest.raises(BadRun, match="not a file of the format clpu-findings"):
        auditing.read_audit(tmp_path)


def test_what_is_left_on_disk_is_a_trace(finished):
    """The place for the scan of a durable store: exact in memory is not enough."""
    found = dataclasses.replace(auditing.read_audit(finished).findings["clpu-der++"], residue=("3 inputs in old.bin",))
    assert verdict(found).kind == TRACE
    assert verdict(found).by[0] == "residue"
    assert verdict(dataclasses.replace(found, residue=())).kind == EXACT


@pytest.mark.parametrize(("method", "clean"), [("clpu-der++", True), ("ind", True), ("seq", False)])
def test_the_disk_of_a_durable_agent_is_searched(method, clean):
    """An exact method leaves nothing; one that keeps the head of a forgotten task leaves its name."""
    from clpu.audit.residue import residue

    plan = planned(method)
    found = residue(method, Stream("1R 2T 2F"), plan.data, "mlp", plan.recipe.settings[method])
    assert (found == ()) == clean
    assert clean or "its name" in found[0]


class Parser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br", "line", "circle", "path", "rect"):
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        if tag not in ("line", "circle", "path", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_explains_every_figure(finished):
    html = page(auditing.read_audit(finished))
    parser = Parser()
    parser.feed(html)
    assert parser.open == []
    assert parser.addresses == []
    assert "<script" not in html
    assert "exact (proved bitwise)" in parser.text
    for words in ("What it means", "What would be ideal", "What it cannot show"):
        assert parser.text.count(words) == 7  # bits, outputs, side effects, membership, relearning, relapse, features


def test_names_on_the_page_are_text_and_not_markup(finished):
    made = auditing.read_audit(finished)
    seq = made.findings["seq"]
    forgets = tuple(dataclasses.replace(f, task="<b>clinic</b>") for f in seq.forgets)
    html = page(dataclasses.replace(made, findings={"seq": dataclasses.replace(seq, forgets=forgets)}))
    assert "<b>clinic" not in html
    assert "&lt;b&gt;clinic" in html


def test_the_tables_star_what_was_found(finished, capsys):
    made = auditing.read_audit(finished)
    seq = made.findings["seq"]
    first = seq.forgets[0]
    hit = dataclasses.replace(first.attacks[0], found=True)
    marked = dataclasses.replace(seq, forgets=(dataclasses.replace(first, attacks=(hit, *first.attacks[1:])),))
    text = markdown(dataclasses.replace(made, findings={"seq": marked}))
    assert text.count("\\* [") == 1
    show(made)
    assert "exact (proved bitwise)" in capsys.readouterr().out


def test_a_users_tasks_may_have_any_labels_and_test_data(tmp_path):
    tasks = {name: (*make_task(name, 60), *make_task(name, 30)) for name in ("clinic", "ward")}
    result = audit("clpu-der++", tasks, "clinicR wardT wardF", runs=4, folder=tmp_path, **TINY)
    assert result.verdict.kind == EXACT
    assert "clpu-der++: exact" in str(result)
    assert json.loads(json.dumps(result.to_json()))["verdict"]["kind"] == EXACT
    assert result.page().startswith("<!DOCTYPE html>")


def test_inputs_of_whole_numbers_are_read_as_the_agent_reads_them():
    tasks = {name: ((10 * x).astype(int), y) for name, (x, y) in TASKS.items()}
    assert audit("ind", tasks, "1R 2T 2F", runs=4, **TINY).verdict.kind == EXACT


def test_worker_processes_come_to_the_same_findings(tmp_path, finished):
    auditing.run(planned("seq"), tmp_path, workers=2)
    ours, theirs = (auditing.read_audit(folder).findings["seq"] for folder in (tmp_path, finished))
    assert ours == theirs


def test_an_empty_counterfactual_can_be_audited():
    """1T 1F: the runs that never learned have learned nothing at all."""
    result = audit("seq", TASKS, "1T 1F", runs=4, **TINY)
    assert [a.name for a in result.findings.attacks].count("side effects") == 0
    assert result.findings.bits[0].differing


def test_a_users_module_can_be_audited():
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    assert audit("ind", TASKS, "1R 2T 2F", network=module, runs=4, epochs=1).verdict.kind == EXACT


def test_an_audit_leaves_the_agents_randomness_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    audit("clpu-der++", TASKS, "1R 2T 2F", runs=4, **TINY)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("tasks", "requests", "options", "error", "message"),
    [
        (TASKS, "1R 2R", {}, BadSetting, "nothing is forgotten"),
        (TASKS, "1R 9T 9F", {}, BadSetting, "the requests name 9"),
        (TASKS, "1R 1F", {}, CannotForget, "request 2"),
        (TASKS, "1R 2T 2F", {"runs": 3}, BadSetting, "4 to"),
        (TASKS, "1R 2T 2F", {"error_rate": 0}, BadSetting, "error_rate"),
        ({"1": (np.zeros((4, 2)),)}, "1T 1F", {}, BadData, "train_x"),
        ({"1": (*make_task("1"), make_task("1")[0], make_task("1")[1] + 1)}, "1T 1F", {}, BadData, "was not taught"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_the_reason(tasks, requests, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        audit("seq", tasks, requests, **{**TINY, **options})


def test_a_method_that_fails_is_reported_with_its_reason():
    class Broken(clpu.METHODS["seq"]):
        name = "broken"

        def learn(self, state, task, data, temporary):
            raise RuntimeError("this method is broken")

    with pytest.raises(BadRun, match="this method is broken"):
        audit(Broken, TASKS, "1R 2T 2F", runs=4, **TINY)


def test_the_package_itself_can_be_called():
    import clpu.audit as package

    with pytest.raises(BadSetting, match="nothing is forgotten"):
        package("seq", TASKS, "1R")


def test_the_program_says_what_it_costs_then_audits_and_resumes(tmp_path):
    code = "import sys; from clpu.cli import main; sys.argv[0] = 'clpu'; main()"
    command = [sys.executable, "-c", code, "audit", "--profile", "smoke", "--methods", "ind", "--runs", "4"]
    command += ["--requests", "1R 2T 2F", "--set", "train=96", "--out", "mine", "--workers", "1", "--store"]
    environment = {**os.environ, "COLUMNS": "120"}

    def again():
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)

    shown = again()
    assert shown.returncode == 0, shown.stderr
    assert "12 agents to train" in shown.stderr
    assert "exact (proved bitwise)" in shown.stdout
    assert {p.name for p in (tmp_path / "mine").iterdir()} >= {"run.json", "audit.html", "table.md", "verdicts.json"}
    assert json.loads((tmp_path / "mine" / "verdicts.json").read_text())["ind"]["kind"] == EXACT
    assert json.loads((tmp_path / "mine" / "findings" / "ind.json").read_text())["residue"] == []
    assert "agents to train" not in again().stderr


def test_the_code_in_the_documentation_runs():
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "audit.md").read_text(), re.S | re.M)
    names = {}
    exec(code, names)
    assert names["result"].verdict.title == "exact (proved bitwise)"


def test_the_command_is_cheap_to_import():
    code = "import sys, typer; from clpu.audit.cli import add_commands; add_commands(typer.Typer()); "
    code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_audit_takes_fewer_images_than_a_benchmark_of_that_profile():
    assert audit_profile("perm-mnist", "small").train == 1500 < profile("perm-mnist", "small").train
    assert audit_profile("perm-mnist", "paper") == profile("perm-mnist", "paper")
    assert audit_profile("rot-digits", "small").train is None  # all 1,442
    assert audit_profile("perm-mnist", "smoke").train == profile("perm-mnist", "smoke").train


def test_bits_are_compared_between_agents_that_were_trained_independently(tmp_path):
    made = planned("seq")
    twin = next(p for p in made.jobs["seq"] if p.outputs_after)
    other = next(p for p in made.jobs["seq"] if p.sights)
    perform(twin, made.data, shared=tmp_path / "twins")
    assert not (tmp_path / "twins").exists()
    perform(other, made.data, shared=tmp_path / "others")
    assert list((tmp_path / "others").iterdir())
