"""The page: complete, well-formed, self-contained, and true to the run."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from clpu.report import FILES, curves, distinct, pareto, strips, tables, write
from clpu.report.html import draw_figure, environment, render
from clpu.report.page import page
from clpu.report.recipes import differences
from clpu.report.summary import summarise
from clpu.report.svg import Canvas, Labels, Scale, spread_out
from clpu.requests import Instruction, Request, Stream

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Checks that elements close in order; collects text and attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def check(html):
    outline = Outline()
    outline.feed(html)
    assert outline.open == []
    for drawing in re.findall(r"<svg.*?</svg>", html, flags=re.S):
        ET.fromstring(drawing)
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<style>.*?</style>", "", html, flags=re.S))
    return outline


@pytest.fixture(scope="module")
def html(paper_run):
    return page([(paper_run, summarise(paper_run))])


def rules(html, where):
    """The declarations by selector of the page's style: of the media whose condition names `where`, or of all media."""
    style = re.sub(r"/\*.*?\*/", "", re.search(r"<style>(.*?)</style>", html, re.S)[1], flags=re.S)
    media = r"@media ([^{]*)\{((?:[^{}]*\{[^{}]*\})*)\s*\}"
    text = (
        "".join(body for asked, body in re.findall(media, style) if where in asked)
        if where
        else re.sub(media, "", style)
    )
    found = {}
    for selectors, declarations in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        for selector in selectors.split(","):
            found[selector.strip()] = found.get(selector.strip(), "") + declarations
    return found


def variables(declarations):
    return dict(re.findall(r"(--[\w-]+):\s*([^;]+)", declarations))


class TestPage:
    def test_is_well_formed(self, html):
        check(html)

    def test_refers_to_nothing_outside_and_runs_no_script(self, html):
        outline = check(html)
        assert "http" not in html.replace("http-equiv", "")
        assert "url(" not in html
        assert "@import" not in html
        assert "<script" not in html
        for name, value in outline.attributes:
            assert name not in ("src", "srcset", "onload", "onclick")
            assert name != "href" or value.startswith("#")

    def test_shows_the_papers_value_and_the_difference(self, paper_run, html):
        row = next(row for row in summarise(paper_run) if row.method == "der++")
        assert "paper 93.88" in html
        assert f"Δ {row.difference('acc'):+.2f}".replace("-", "−") in html

    def test_serves_dark_and_narrow_screens(self, html):
        assert ("name", "viewport") in check(html).attributes
        plain, dark = (variables(rules(html, where)[":root"]) for where in ("", "prefers-color-scheme: dark"))
        assert dark
        assert set(dark) <= set(plain)
        assert all(plain[name] != value for name, value in dark.items())

    def test_a_narrow_screen_has_the_main_table_as_a_list_with_labels(self, html):
        narrow = rules(html, "max-width")
        assert "display: none" in narrow["table.main thead"]
        assert "display: grid" in narrow["table.main tr"]
        assert "content: attr(data-label)" in narrow["table.main td::before"]
        [table] = re.findall(r'<table class="main">.*?</table>', html, re.S)
        assert "<td" in table
        assert all("data-label=" in cell for cell in re.findall(r"<td[^>]*>", table))

    def test_shows_the_recipe(self, paper_run, html):
        text = " ".join(check(html).text)
        for fact in (paper_run.recipe.command, paper_run.recipe.data.sha256, "torch 2.13.0", "weight_decay=0.0005"):
            assert fact in text

    def test_what_comes_from_files_is_escaped(self, paper_run):
        evil = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"
        recipe = paper_run.recipe
        recipe = replace(
            recipe,
            command=evil,
            started=evil,
            versions={evil: evil},
            machine={evil: evil},
            network={evil: evil},
            data=replace(recipe.data, sha256=evil, tasks_sha256=evil),
            settings={method: {**values, evil: evil} for method, values in recipe.settings.items()},
            methods_about={method: replace(facts, label=evil) for method, facts in recipe.methods_about.items()},
        )
        run = replace(paper_run, name=evil, recipe=recipe)
        html = page([(run, summarise(run)), (paper_run, summarise(paper_run))])
        outline = check(html)
        assert "<script" not in html
        assert evil not in html
        assert "49" not in [text.strip() for text in outline.text]
        # Every place shows it as text: the run, the methods in tables and drawings, and each part of the recipe.
        assert sum(evil in text for text in outline.text) > 50
        assert ("aria-label", f"{evil}: accuracy on each task after each request") in outline.attributes

    def test_no_template_switches_escaping_off(self):
        templates = sorted(resources.files("clpu.report").joinpath("templates").iterdir(), key=lambda path: path.name)
        assert len(templates) >= 5
        for path in templates:
            source = path.read_text(encoding="utf-8")
            assert not re.search(r"\|\s*safe|autoescape|Markup", source), path.name
            # An attribute without quotes would let a value add further attributes.
            assert not re.search(r"=\s*\{\{", source), path.name
        assert environment().autoescape is True

    def test_a_value_that_a_template_lacks_is_an_error(self):
        with pytest.raises(UndefinedError):
            render("report.html", title="a page without runs", comparison=None)

    @pytest.mark.parametrize(
        "changes",
        [
            {"seeds": 1},
            {"seeds": 2, "methods": ["ind"]},
            {"requests": "1R 2R 3T"},
            {"requests": "1T 1F 1T 1F 1R"},
            {"requests": "'<b>'T 'a long name & more'R '<b>'F", "methods": ["er", "my-own"]},
            {"requests": " ".join(f"{n}T {n}F" for n in range(1, 20)) + " 20R", "methods": ["seq", "clpu-der++"]},
            {"benchmark": "split-cifar10", "profile": "small"},
            {"methods": ["er"], "without": ["er"]},
            {"methods": ["er", "seq"], "settings": {}, "versions": {}, "command": "", "started": "", "seconds": None},
        ],
        ids=lambda changes: "-".join(changes),
    )
    def test_every_kind_of_run_has_a_page(self, make, changes):
        if changes.get("settings") == {}:
            run = make(methods=changes["methods"])
            run = replace(run, recipe=replace(run.recipe, **changes))
        else:
            run = make(**changes)
        check(page([(run, summarise(run))]))

    def test_a_run_that_forgets_nothing_has_no_privacy_metrics(self, make):
        run = make(requests="1R 2R", methods=["er"])
        html = page([(run, summarise(run))])
        assert "forget nothing" in html
        assert "Can forgetting be seen?" not in html

    def test_few_seeds_make_no_claim_of_forgetting(self, make):
        run = make(seeds=3)
        assert "too few seeds to say" in page([(run, summarise(run))])


class TestSeveralRuns:
    def test_are_compared_and_so_are_their_recipes(self, paper_run, make):
        settings = {m: {**values, "epochs": 3} for m, values in paper_run.recipe.settings.items()}
        other = make("three-epochs", settings=settings)
        html = page([(run, summarise(run)) for run in (paper_run, other)])
        text = check(html).text
        assert "Comparison of runs" in text
        assert "epochs" in text
        assert "lr" not in text
        assert html.count('id="run-') == 2

    def test_differ_in_one_row_where_one_setting_of_one_method_differs(self, paper_run, make):
        settings = {m: {**v, "lr": 0.5} if m == "lsf" else v for m, v in paper_run.recipe.settings.items()}
        table = differences([paper_run, make("other", settings=settings)])
        assert [line.name for line in table.lines] == ["LSF: lr"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"data": {"test": 77}},
            {"data": {"sha256": "cd" * 32}},
            {"counterfactual_seeds": (7, 8, 9, 10, 11)},
            {"machine": {"device": "cuda"}},
            {"versions": {"clpu": "0.1.0", "torch": "2.13.0", "mine (SHA-256)": "ab"}},
        ],
    )
    def test_are_not_called_the_same_when_they_are_not(self, paper_run, changes):
        if "data" in changes:
            changes = {"data": replace(paper_run.recipe.data, **changes["data"])}
        other = replace(paper_run, recipe=replace(paper_run.recipe, **changes))
        assert len(differences([paper_run, other]).lines) == 1

    def test_of_one_name_are_numbered(self, paper_run):
        assert [run.name for run in distinct([paper_run, paper_run])] == ["perm (1)", "perm (2)"]

    def test_with_one_recipe_say_so(self, paper_run):
        group = (paper_run, summarise(paper_run))
        assert "The runs have the same recipe" in page([group, group])


@pytest.mark.parametrize(
    ("profile", "overrides", "said"),
    [
        ("paper", (), []),
        ("medium", (), ["Profile medium uses a narrower network than the paper, so numbers may differ."]),
        ("medium", ("width=64",), ["Not the paper's settings: width=64."]),
        (
            "medium",
            ("epochs=1",),
            [
                "Profile medium uses a narrower network than the paper, so numbers may differ.",
                "Not the paper's settings: epochs=1.",
            ],
        ),
        ("small", (), ["Profile small trains less than the paper did; differences from its numbers are expected."]),
    ],
)
def test_a_smaller_profile_says_how_it_differs_from_the_paper(paper_run, profile, overrides, said):
    run = replace(paper_run, recipe=replace(paper_run.recipe, profile=profile, overrides=overrides))
    notes = [text for text in tables.caveats(run, summarise(run)) if "paper" in text and "requests" not in text]
    assert notes == said


def test_a_profile_that_was_changed_is_never_shown_as_the_profile_itself(paper_run):
    run = replace(paper_run, recipe=replace(paper_run.recipe, overrides=("epochs=1", "er.memory=5")))
    rows = summarise(run)
    assert "profile paper with epochs=1, er.memory=5" in tables.heading(run)
    assert "Not the paper's settings: epochs=1, er.memory=5." in tables.caveats(run, rows)
    group = [(run, rows)]
    assert ",paper,epochs=1 er.memory=5," in tables.to_csv(group)
    assert "(paper with epochs=1, er.memory=5)" in tables.to_latex(group)
    for text in (tables.to_markdown(group), page(group)):
        assert "Not the paper" in text
        assert "epochs=1" in text


def test_the_matrix_has_one_row_per_request_with_every_task(paper_run):
    lines = list(csv.DictReader(io.StringIO(tables.to_matrix([(paper_run, summarise(paper_run))]))))
    assert len(lines) == 9 * 8
    result = paper_run.results["er"]
    sixth = next(line for line in lines if line["method"] == "er" and line["request_number"] == "6")
    assert (sixth["request"], sixth["alive"]) == ("3F", "1 2 4")
    assert float(sixth["bytes"]) == result.bytes[5]
    assert float(sixth["acc_3"]) == pytest.approx(100 * result.accuracy[5, 2].mean(), rel=1e-5)
    assert float(sixth["acc_5_std"]) == pytest.approx(100 * result.accuracy[5, 4].std(ddof=1), rel=1e-5)


def test_intervals_reach_the_tables_for_everything_over_seeds(paper_run):
    row = next(csv.DictReader(io.StringIO(tables.to_csv([(paper_run, summarise(paper_run))]))))
    for name in ("backward_transfer", "forward_transfer", "forgotten_acc"):
        assert float(row[f"{name}_low"]) <= float(row[name]) <= float(row[f"{name}_high"])
    forgets = paper_run.results[row["method"]].forgets
    accuracy = paper_run.results[row["method"]].accuracy
    expected = [100 * accuracy[f.request - 1, int(f.task) - 1].mean() for f in forgets]
    assert float(row["forgotten_acc"]) == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_write_gives_the_same_files_every_time(paper_run, tmp_path):
    first = {path.name: path.read_bytes() for path in write([paper_run], tmp_path / "a")}
    second = {path.name: path.read_bytes() for path in write([paper_run], tmp_path / "b")}
    assert tuple(first) == FILES
    assert first == second


class TestCurves:
    def test_a_forgotten_task_ends_with_a_cross(self, paper_run):
        drawing = str(curves.accuracy_panel(paper_run.results["clpu-der++"], "CLPU-DER++", [0.1]))
        assert drawing.count('class="cross') == 2
        assert "task 3 forgotten" in drawing
        assert ">task 3<" not in drawing
        assert ">task 4<" in drawing

    def test_a_task_learned_again_has_two_lines(self, make):
        run = make(requests="1T 2T 1F 3R 1R 2R", methods=["er"])
        assert curves.lives(run.results["er"].alive, "1") == [(0, 1), (4, 5)]


class TestStrips:
    def test_there_is_one_dot_per_pair(self, paper_run):
        drawing = str(strips.distances(summarise(paper_run)[:1], 900))
        assert drawing.count('class="dot inner"') == 10
        assert drawing.count('class="dot across"') == 25

    def test_equal_replicas_can_be_drawn(self, paper_run):
        row = summarise(paper_run)[0]
        check(str(strips.distances([replace(row, ijsd=row.ijsd * 0, ajsd=row.ajsd * 0)], 358)))
        check(str(strips.distances([replace(row, ijsd=row.ijsd * 0)], 358)))


class TestPareto:
    def test_the_front_contains_what_nothing_beats(self, paper_run):
        rows = {row.method: row for row in summarise(paper_run)}
        good = rows["clpu-der++"]
        worse = replace(good, method="worse", bytes=good.bytes + 1)
        other = replace(
            good, method="smaller", bytes=good.bytes - 1, metrics={**good.metrics, "acc": rows["seq"].metrics["acc"]}
        )
        assert pareto.front([good, worse, other]) == {"clpu-der++", "smaller"}

    def test_equals_do_not_beat_each_other(self, paper_run):
        row = summarise(paper_run)[1]
        assert pareto.front([row, replace(row, method="twin")]) == {row.method, "twin"}

    def test_the_upper_bound_is_excluded(self, paper_run):
        row = summarise(paper_run)[1]
        bound = replace(row, method="bound", bytes=row.bytes - 1, about=replace(row.about, upper_bound=True))
        assert pareto.front([row, bound]) == {row.method}
        for drawing in pareto.panels([row, bound], 520):
            assert str(drawing).count("point bound") == str(drawing).count("point front") == 1

    def test_a_line_leads_to_a_label_that_is_far_from_its_point(self, paper_run):
        row = summarise(paper_run)[1]
        crowd = [replace(row, method=f"m{i}") for i in range(12)]
        assert all("leader" in str(drawing) for drawing in pareto.panels(crowd, 520))
        assert not any("leader" in str(drawing) for drawing in pareto.panels([row], 520))

    def test_an_unbounded_ratio_is_drawn_at_the_edge(self, paper_run):
        rows = summarise(paper_run)
        ratio = replace(rows[1].metrics["js_ratio"], value=float("inf"))
        endless = replace(rows[1], metrics={**rows[1].metrics, "js_ratio": ratio})
        for drawing in pareto.panels([rows[0], endless], 520):
            ET.fromstring(str(drawing))


class TestSvg:
    @given(st.lists(st.floats(0, 100), max_size=8))
    def test_labels_keep_their_distance_and_order(self, wanted):
        placed = spread_out(wanted, 10, 0, 100)
        in_order = [placed[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])]
        assert all(b - a >= 10 - 1e-6 for a, b in pairwise(in_order))
        assert all(-1e-6 <= position <= 100 + 1e-6 for position in placed)

    @given(st.floats(1e-6, 1e3), st.floats(1.01, 1e6), st.sampled_from(["linear", "log", "sqrt"]))
    def test_ticks_are_within_the_axis(self, low, factor, kind):
        scale = Scale(0 if kind == "sqrt" else low, low * factor, 0, 100, kind)
        ticks = scale.ticks(5)
        assert len(ticks) <= 40
        assert all(scale.low <= tick <= scale.high * 1.001 for tick in ticks)
        assert ticks == sorted(ticks)

    def test_labels_avoid_points_and_each_other(self):
        labels = Labels(0, 0, 300, 200)
        for x in (100, 140):
            labels.block(x, 100, 6)
        labels.place(100, 100, 5, "one name")
        labels.place(140, 100, 5, "another name")
        boxes = labels.taken
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                assert min(a[2], b[2]) <= max(a[0], b[0]) or min(a[3], b[3]) <= max(a[1], b[1])


class TestPartsOfAPage:
    """Parts as strings, for pages that are put together from strings."""

    EVIL = "<b>\"'&"

    def test_text_in_them_is_escaped_once(self):
        stream = Stream([Request(self.EVIL, Instruction.TEMPORARY), Request(self.EVIL, Instruction.FORGET)])
        drawn = draw_figure(lambda width: [Canvas(width, 10, self.EVIL)], self.EVIL)
        template = environment().from_string(
            '{% extends "base.html" %}{% from "macros.html" import figure, key, requests %}{% block main %}'
            "{{ requests(stream) }}{{ key(entries) }}{{ figure(drawn) }}{% endblock %}"
        )
        whole = template.render(css="", title=self.EVIL, stream=stream, entries=[("curve", self.EVIL)], drawn=drawn)
        outline = check(whole)
        assert "<b>" not in whole
        assert outline.text.count(self.EVIL) == 3  # the title, the key and the caption
        assert str(stream[1]) in outline.text
        assert ("title", f"forget task {self.EVIL}") in outline.attributes
        assert outline.attributes.count(("aria-label", self.EVIL)) == 2
        assert "&amp;lt;" not in whole
