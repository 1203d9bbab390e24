"""What a benchmark leaves behind can be read again, and what is damaged or foreign is refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import MISSING, fields, replace

import numpy as np
import pytest
from fabricate import recipe, result, run_folder

from clpu import BadRun, jsonfile
from clpu.results import ForgetResult, Result, read_run, result_path
from clpu.runs.recipe import Recipe, read_recipe

#: What a recipe may lack.
OPTIONAL = {
    field.name for field in fields(Recipe) if field.default is not MISSING or field.default_factory is not MISSING
}


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("template") / "run", methods=["er"], seeds=2)


@pytest.fixture
def folder(template, tmp_path):
    return shutil.copytree(template, tmp_path / "run")


class TestRoundTrip:
    def test_a_recipe_comes_back_equal(self, tmp_path):
        made = recipe(requests="1R 'my task'T 'my task'F")
        jsonfile.write(tmp_path / "run.json", made)
        assert read_recipe(tmp_path) == made

    def test_results_come_back_to_the_last_bit(self, tmp_path):
        made = result(recipe(), "der++")
        path = jsonfile.write(result_path(tmp_path, "der++"), made)
        again = jsonfile.read(path, Result)
        assert (again.accuracy == made.accuracy).all()
        assert jsonfile.write(tmp_path / "again.json", again).read_text() == path.read_text()

    def test_the_bytes_do_not_depend_on_the_order_of_keys(self):
        assert jsonfile.dumps({"a": 1, "b": {"c": 2, "d": 3}}) == jsonfile.dumps({"b": {"d": 3, "c": 2}, "a": 1})

    def test_the_text_is_plain_json(self):
        value = {"a": [], "b": {}, "c": [[1.5, 2], []], "d": "ü\n", "e": [{"f": None}]}
        assert json.loads(jsonfile.dumps(value)) == value

    def test_a_number_that_is_none_is_not_written(self, tmp_path):
        with pytest.raises(ValueError, match="not JSON compliant"):
            jsonfile.write(tmp_path / "x.json", {"a": float("nan")})
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = jsonfile.write(tmp_path / "x.json", {"a": 1})
        monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            jsonfile.write(path, {"a": 2})
        assert jsonfile.read(path, dict[str, int]) == {"a": 1}
        assert list(tmp_path.iterdir()) == [path]

    def test_a_run_keeps_the_order_of_its_recipe_and_knows_what_is_missing(self, tmp_path):
        run = read_run(run_folder(tmp_path / "a", methods=["seq", "er", "ind"], without=["er"]))
        assert list(run.results) == ["seq", "ind"]
        assert run.missing == ["er"]
        assert run.name == "a"

    def test_more_counterfactual_than_actual_runs_are_fine(self, tmp_path):
        run = read_run(run_folder(tmp_path, methods=["er"], seeds=2, counterfactual_seeds=(7, 8, 9)))
        assert run.results["er"].forgets[0].across["1"].shape == (2, 3)


class TestRefusals:
    def test_a_folder_without_a_recipe(self, tmp_path):
        with pytest.raises(BadRun, match=r"no run\.json"):
            read_run(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"format": "other"}', '{"a": NaN}', "[" * 100_000, "\xff"])
    def test_a_recipe_that_is_none(self, folder, text):
        (folder / "run.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(BadRun, match=r"run\.json"):
            read_run(folder)

    @pytest.mark.parametrize("evil", ["\x1b]0;title\x07", "\ud800", "<img onerror=x>", "a\n\nb", ""])
    @pytest.mark.parametrize("key", ["benchmark", "profile"])
    def test_names_that_could_play_tricks(self, folder, key, evil):
        edit(folder / "run.json", lambda v: v.update({key: evil}))
        with pytest.raises(BadRun, match=r"U\+|cannot be the name|surrogate"):
            read_run(folder)

    def test_text_that_a_terminal_would_obey_anywhere(self, folder):
        edit(folder / "run.json", lambda v: v["machine"].update(cpu="\x1b[31mred"))
        with pytest.raises(BadRun, match=r"U\+001B"):
            read_run(folder)

    @pytest.mark.parametrize("number", [10**400, -(10**400), 1e999])
    def test_numbers_beyond_everything(self, folder, number):
        for name, change in (
            ("run.json", lambda v: v.update(seconds=number)),
            ("results/er.json", lambda v: v["bytes"].__setitem__(0, number)),
            ("results/er.json", lambda v: v["seconds"].__setitem__(0, number)),
            ("results/er.json", lambda v: v["accuracy"][0][0].__setitem__(0, number)),
        ):
            before = (folder / name).read_bytes()
            value = json.loads(before)
            change(value)
            # As a file has it: Python would write 1e999 as Infinity, which is refused as such.
            (folder / name).write_text(json.dumps(value).replace("Infinity", "1e999"))
            with pytest.raises(BadRun):
                read_run(folder)
            (folder / name).write_bytes(before)
        read_run(folder)

    def test_what_is_nested_beyond_reason_or_too_large_anywhere(self, folder):
        edit(folder / "results" / "er.json", lambda v: v.update(accuracy=json.loads("[" * 600 + "]" * 600)))
        with pytest.raises(BadRun, match="nested"):
            read_run(folder)
        path = folder / "run.json"
        path.write_text(path.read_text().replace('"cores": 2', '"cores": 1e999'))
        with pytest.raises(BadRun, match="out of range"):
            read_run(folder)

    @pytest.mark.parametrize("value", [True, "0.5", None])
    def test_accuracies_that_are_no_numbers(self, folder, value):
        edit(folder / "results" / "er.json", lambda v: v["accuracy"][0][0].__setitem__(0, value))
        with pytest.raises(BadRun, match="nothing but numbers"):
            read_run(folder)

    def test_damaged_results_say_what_can_be_done(self, folder):
        path = folder / "results" / "er.json"
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(BadRun, match="recomputes it"):
            read_run(folder)

    @pytest.mark.parametrize("version", [1, 3, "2", None])
    def test_a_different_version(self, folder, version):
        for name in ("run.json", "results/er.json"):
            before = (folder / name).read_bytes()
            edit(folder / name, lambda v: v.update(version=version))
            with pytest.raises(BadRun, match=rf"version {version!r}; this clpu reads version 2"):
                read_run(folder)
            (folder / name).write_bytes(before)

    def test_an_audit_is_not_a_benchmark(self, folder):
        edit(folder / "run.json", lambda v: v.update(kind="audit"))
        with pytest.raises(BadRun, match="contains audit results; expected those of a benchmark"):
            read_run(folder)

    @pytest.mark.parametrize("key", sorted(set(jsonfile.to_plain(recipe())) - OPTIONAL))
    def test_a_recipe_that_lacks_a_field_names_it(self, folder, key):
        edit(folder / "run.json", lambda v: v.pop(key))
        with pytest.raises(BadRun, match=key):
            read_run(folder)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"label": ""}, "label"),
            ({"label": "x" * 81}, "label"),
            ({"label": "two\nlines"}, "label|U\\+000A"),
            ({"label": 1}, "label"),
            ({"forgets": "everything"}, "can forget"),
            ({"upper_bound": 1}, "upper_bound"),
            ({"position": -1}, "position"),
            ({"position": "first"}, "position"),
        ],
    )
    def test_nonsense_about_a_method(self, folder, change, reason):
        edit(folder / "run.json", lambda v: v["methods_about"]["er"].update(change))
        with pytest.raises(BadRun, match=reason):
            read_run(folder)

    @pytest.mark.parametrize("key", sorted(jsonfile.to_plain(recipe())))
    @pytest.mark.parametrize("value", [True, {"x": []}, [[]], -1.5, "x"])
    def test_a_recipe_with_anything_anywhere_is_read_or_refused(self, folder, key, value):
        edit(folder / "run.json", lambda v: v.update({key: value}))
        with contextlib.suppress(BadRun):
            read_run(folder)

    @pytest.mark.parametrize("key", sorted(jsonfile.to_plain(result(recipe(), "er"))))
    @pytest.mark.parametrize("value", [True, {"x": []}, [[]], -1.5, "x", [], None])
    def test_results_with_anything_anywhere_are_refused(self, folder, key, value):
        if (key, value) == ("class_incremental", []):
            return  # as in runs from before it was measured
        edit(result_path(folder, "er"), lambda v: v.update({key: value}))
        with pytest.raises(BadRun):
            read_run(folder)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda v: v["accuracy"].pop(), "accuracy has shape"),
            (lambda v: v["accuracy"][0][0].append(0.5), "different lengths"),
            (lambda v: v["accuracy"][0][0].__setitem__(0, 1.5), "between 0 and 1"),
            (lambda v: v["alive"][2].remove("1"), "do not follow from the requests"),
            (lambda v: v["requests"].__setitem__(7, "9F"), "cannot be read"),
            (lambda v: v["requests"].__setitem__(7, "4F"), "do not follow from the requests"),
            (lambda v: v["forgets"].pop(), "forget requests do not follow"),
            (lambda v: v["forgets"][0].update(counterfactual="1R"), "forget requests do not follow"),
            (lambda v: v["forgets"][0]["in_group"].pop("2"), "instead of"),
            (lambda v: v["forgets"][0]["in_group"]["2"][0].__setitem__(1, 0.6), "not symmetric"),
            (lambda v: v["forgets"][0]["across"]["2"][0].__setitem__(1, 0.8), "between 0 and 0.693"),
            (lambda v: v["forgets"][0]["across"]["2"].pop(), "should have shape"),
            (lambda v: v["forgets"][0]["counterfactual_accuracy"].pop(), "instead of"),
            (lambda v: v["bytes"].__setitem__(0, -1), "expected `int` >= 0"),
            (lambda v: v.update(method="seq"), "contains the results of 'seq'"),
        ],
    )
    def test_damage_is_named(self, folder, change, reason):
        edit(result_path(folder, "er"), change)
        with pytest.raises(BadRun, match=reason):
            read_run(folder)

    def test_results_of_another_recipe(self, folder):
        edit(folder / "run.json", lambda v: v.update(seeds=[0, 1, 2]))
        with pytest.raises(BadRun, match="has 2 seeds, the recipe 3"):
            read_run(folder)

    @pytest.mark.parametrize("name", ["../er", "a/b", "", ".hidden", "x" * 200])
    def test_a_method_whose_name_would_leave_the_folder(self, tmp_path, name):
        with pytest.raises(BadRun, match="cannot be a method's name"):
            result_path(tmp_path, name)

    def test_a_huge_file_is_not_read(self, folder, monkeypatch):
        monkeypatch.setattr(jsonfile, "MAX_BYTES", 100)
        with pytest.raises(BadRun, match="larger than"):
            read_run(folder)

    def test_the_runner_cannot_write_nonsense_either(self):
        made = recipe()
        with pytest.raises(BadRun, match="no seeds"):
            replace(made, seeds=())
        with pytest.raises(BadRun, match="name 6 tasks, the data have 5"):
            replace(made, requests="1R 2R 3R 4R 5R 6R")
        with pytest.raises(BadRun, match="for 3 seeds"):
            ForgetResult(1, "1", "", np.zeros((1, 3)), {"1": np.zeros((2, 2))}, {"1": np.zeros((2, 3))})
        assert isinstance(made, Recipe)
