"""The numbers in the tables: what they are, where the paper's are, which are bold."""

from __future__ import annotations

import csv
import html
import io
import re
import shutil
import subprocess
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from fabricate import about
from rich.console import Console

from clpu import metrics
from clpu.report import paper, tables, terminal
from clpu.report.html_tables import comparison_table, main_table
from clpu.report.page import page
from clpu.report.summary import NAN, Estimate, best, summarise
from clpu.runs.recipe import MethodAbout


@pytest.fixture(scope="module")
def group(paper_run):
    return paper_run, summarise(paper_run)


def read_csv(groups):
    return list(csv.DictReader(io.StringIO(tables.to_csv(groups))))


def latex_page(folder, groups):
    """Compile a page with the table of these runs, and assert that it fits."""
    (folder / "table.tex").write_text(tables.to_latex(groups), encoding="utf-8")
    (folder / "page.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True)
    assert b"Overfull" not in done.stdout
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


class TestSummary:
    def test_rows_are_in_the_order_of_registration_and_unknown_methods_last(self, make):
        rows = summarise(make(methods=["my-own", "clpu-der++", "ind"]))
        assert [row.label for row in rows] == ["Ind", "CLPU-DER++", "my-own"]
        assert rows[-1].paper == {}

    def test_an_older_run_has_its_recipes_order_and_the_names_of_its_methods(self, make):
        run = make(methods=["my-own", "clpu-der++", "ind"], methods_about={})
        rows = summarise(run)
        assert [row.label for row in rows] == ["my-own", "clpu-der++", "ind"]
        assert not any(row.about.exact or row.about.upper_bound for row in rows)
        assert "upper bound" not in tables.to_markdown([(run, rows)]) + tables.to_latex([(run, rows)])

    def test_a_users_method_is_shown_by_what_its_run_says_about_it(self, make):
        mine = MethodAbout("My (own) | method", "temporary", upper_bound=True, position=3)
        run = make(methods=["mine", "clpu-mine", "er"], methods_about={"mine": mine, "er": about("er")})
        rows = summarise(run)
        assert [row.label for row in rows] == ["My (own) | method", "ER", "clpu-mine"]
        assert best(rows, "acc", -3) == {"er", "clpu-mine"}
        assert not np.isnan(rows[1].forward.value)
        assert "My (own) \\| method" in tables.to_markdown([(run, rows)])
        lines = main_table(rows).lines
        assert [line.style for line in lines] == ["upper-bound exact", "", ""]

    def test_privacy_metrics_come_from_the_forgotten_tasks_alone(self, paper_run, group):
        result = paper_run.results["er"]
        row = next(row for row in group[1] if row.method == "er")
        ajsd = (result.forgets[0].across["3"] + result.forgets[1].across["5"]) / 2
        assert row.metrics["ajsd"].value == pytest.approx(ajsd.mean())
        assert row.metrics["ajsd"].spread == pytest.approx(ajsd.std(ddof=1))

    def test_as_published_sums_over_all_tasks_at_the_second_forget(self, paper_run, group):
        result = paper_run.results["er"]
        row = next(row for row in group[1] if row.method == "er")
        ajsd = (result.forgets[0].across["3"] + sum(result.forgets[1].across.values())) / 2
        assert row.published["ajsd"].value == pytest.approx(ajsd.mean())
        assert row.published["ajsd"].value > row.metrics["ajsd"].value

    def test_a_row_does_not_depend_on_the_other_methods(self, make, group):
        alone = summarise(make(methods=["er"]))[0]
        among = next(row for row in group[1] if row.method == "er")
        # As text, because an estimate may contain NaN, which equals nothing.
        assert repr(alone.metrics) == repr(among.metrics)
        assert repr(alone.published) == repr(among.published)

    def test_forward_transfer_is_measured_against_ind_and_missing_without_it(self, make, group):
        ind = next(row for row in group[1] if row.method == "ind")
        assert ind.forward.value == pytest.approx(0, abs=1e-9)
        assert np.isnan(summarise(make(methods=["er"]))[0].forward.value)

    def test_one_seed_leaves_the_metrics_of_pairs_empty(self, make):
        row = summarise(make(methods=["er"], seeds=1))[0]
        assert row.metrics["acc"].value > 50
        assert np.isnan([row.metrics[k].value for k in ("ijsd", "js_ratio", "irr")]).all()
        assert np.isnan(row.metrics["acc"].spread)

    def test_best_leaves_out_the_upper_bound_and_takes_ties_as_printed(self, make):
        rows = summarise(make(methods=["ind", "er", "clpu-der++"]))
        assert "ind" not in best(rows, "acc", 2)
        assert best(rows, "acc", -3) == {"er", "clpu-der++"}
        assert best(rows, "ijsd", 2) == set()

    def test_best_includes_values_whose_intervals_overlap_that_of_the_best(self, make):
        rows = summarise(make(methods=["ind", "er", "seq", "clpu-der++"]))

        def with_acc(**estimates):
            return [
                replace(row, metrics={**row.metrics, "acc": estimates.get(row.method.replace("-", "_"), Estimate(99))})
                for row in rows
                if row.method != "clpu-der++"
            ]

        apart = with_acc(er=Estimate(95, 1, 94, 96), seq=Estimate(93, 1, 92, 93.9))
        assert best(apart, "acc", 2) == {"er"}
        close = with_acc(er=Estimate(95, 1, 94, 96), seq=Estimate(93, 1, 92, 94))
        assert best(close, "acc", 2) == {"er", "seq"}
        unknown = with_acc(er=Estimate(95), seq=Estimate(94.99))
        assert best(unknown, "acc", 2) == {"er"}


class TestPaper:
    def test_all_36_rows_are_there(self):
        assert len(paper.tables()) == 36
        assert paper.tables()["split-cifar100", "clpu-der++"]["ajsd_std"] == 0.04

    def test_printed_values_above_ln_2_are_not_possible_by_definition(self):
        assert max(row["ajsd"] for row in paper.tables().values()) > np.log(2)


class TestCsv:
    def test_begins_with_the_papers_columns(self):
        text = resources.files("clpu.report").joinpath("paper-tables.csv").read_text()
        printed = text.splitlines()[0].split(",")
        assert tables.csv_columns()[: len(printed)] == printed
        assert len(set(tables.csv_columns())) == len(tables.csv_columns())

    def test_has_one_row_per_method_with_as_published_and_intervals(self, group):
        rows = read_csv([group])
        assert len(rows) == 9
        for row in rows:
            assert float(row["acc_low"]) <= float(row["acc"]) <= float(row["acc_high"])
            assert float(row["ajsd_as_published"]) >= float(row["ajsd"])
            assert row["run"] == "perm"

    def test_agrees_with_the_metrics(self, paper_run, group):
        result = paper_run.results["der++"]
        index = {task: i for i, task in enumerate(result.tasks)}
        acc, fm = metrics.accuracy_and_forgetting(result.accuracy, [[index[t] for t in now] for now in result.alive])
        row = next(row for row in read_csv([group]) if row["method"] == "der++")
        assert float(row["acc"]) == pytest.approx(100 * acc.mean(), rel=1e-5)
        assert float(row["fm_std"]) == pytest.approx(100 * fm.std(ddof=1), rel=1e-5)

    def test_leaves_what_does_not_exist_empty(self, make):
        run = make(methods=["er"], requests="1R 2R")
        row = read_csv([(run, summarise(run))])[0]
        assert row["irr"] == row["chance"] == row["forward_transfer"] == ""


class TestMarkdown:
    def test_every_line_of_a_table_has_the_same_columns(self, group):
        for block in tables.to_markdown([group]).split("\n\n"):
            if block.startswith("|"):
                assert len({line.count("|") for line in block.splitlines()}) == 1

    def test_names_the_papers_value_and_the_difference(self, group):
        row = next(row for row in group[1] if row.method == "der++")
        text = tables.to_markdown([group])
        assert f"{row.metrics['acc'].value:.2f} / 93.88 (" in text

    def test_says_what_is_missing_and_what_differs(self, make):
        run = make(methods=["er", "seq"], without=["seq"], profile="small", requests="1R 2T 2F", seeds=2)
        text = tables.to_markdown([(run, summarise(run))])
        for words in ("Not finished: Seq", "Profile small", "not from these", "steps of 1/4", "too coarse"):
            assert words in text

    def test_a_benchmark_that_the_paper_lacks_has_no_comparison(self, make):
        run = make(methods=["er"], benchmark="rot-digits")
        assert "Comparison with the paper" not in tables.to_markdown([(run, summarise(run))])


class TestClassIncremental:
    """ER has 75.5, 74.5, 73.5 % with three seeds (`fabricate`); requests end with tasks 1, 2 and 4 active."""

    @pytest.fixture
    def split(self, make):
        run = make(benchmark="split-cifar100", methods=["ind", "er", "seq", "my-own"], seeds=3)
        return run, summarise(run)

    def test_every_table_has_the_column(self, split, capsys):
        run, rows = split
        csv_row = next(row for row in read_csv([split]) if row["method"] == "er")
        assert float(csv_row["class_incremental_acc"]) == pytest.approx(74.5)
        assert float(csv_row["class_incremental_acc_std"]) == pytest.approx(1)
        markdown, latex = tables.to_markdown([split]), tables.to_latex([split])
        assert "| Method | ACC ↑ (%) | CI-ACC ↑ (%) | FM ↓ (%) |" in markdown
        assert re.search(r"\| ER \| \S+ ± \S+ \| \**74\.50 ± 1\.00", markdown)
        assert r"Method & ACC $\uparrow$ & CI-ACC $\uparrow$ & FM" in latex
        assert r"74.50}{\tiny$\,\pm$1.00}" in latex
        page = main_table(rows)
        assert page.head[:4] == ["Method", "ACC ↑", "CI-ACC ↑", "FM ↓"]
        assert page.groups[0] == ("learning", 3)
        cell = next(line for line in page.lines if line.name == "ER").cells[1]
        assert (cell.text, cell.spread, cell.label) == ("74.50", "1.00", "CI-ACC ↑")
        assert sum(columns for _, columns in page.groups) == len(page.head) - 1
        compared = comparison_table([split, split])
        assert compared.head[2] == "CI-ACC ↑"
        assert next(line for line in compared.lines if line.name == "ER").cells[1].text == "74.50"
        terminal.show([run])
        assert re.search(r"ER +\S+ ± \S+ +74\.50 ± 1\.00", capsys.readouterr().out)

    def test_the_scenarios_are_named_with_the_tasks_that_it_is_over(self, split, capsys):
        note = (
            "ACC is task-incremental: the task of an image is given; mean over all requests. CI-ACC is "
            "class-incremental: no task is given; measured after the last request, on the 60 classes of the tasks "
            "active then (1, 2, 4)."
        )
        terminal.show([split[0]])
        assert note in " ".join(capsys.readouterr().out.split())
        assert note in tables.to_markdown([split])
        assert note in html.unescape(page([split]))

    def test_it_is_not_shown_where_tasks_have_the_same_labels_nor_where_it_was_not_measured(self, make, group):
        assert "CI-ACC" not in tables.to_markdown([group]) + tables.to_latex([group]) + page([group])
        older = make(benchmark="split-cifar10", methods=["er"])
        rows = [
            replace(row, metrics={**row.metrics, "class_incremental_acc": Estimate(NAN)}) for row in summarise(older)
        ]
        assert "CI-ACC" not in tables.to_markdown([(older, rows)])

    def test_a_method_that_the_paper_lacks_is_not_in_the_comparison(self, split):
        _, comparison = tables.to_markdown([split]).split("Comparison with the paper")
        assert "| ER |" in comparison
        assert "my-own" not in comparison

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
    def test_the_latex_table_fits_the_page(self, make, split, group, tmp_path):
        every = make("all", benchmark="split-cifar10")
        latex_page(tmp_path, [(every, summarise(every)), split, group])


class TestLatex:
    def test_environments_close_and_rows_have_seven_cells(self, group):
        text = tables.to_latex([group, group])
        assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
        rows = [line for line in text.splitlines() if re.match(r"\s+(Ind|Seq|ER|CLPU)", line)]
        assert rows
        assert all(line.count("&") == 6 and line.endswith(r"\\") for line in rows)

    def test_best_values_are_bold_and_the_upper_bound_never(self, group):
        lines = tables.to_latex([group]).splitlines()
        assert not any(r"\textbf" in line for line in lines if "upper bound)" in line)
        assert sum(line.count(r"\textbf") for line in lines) >= 8

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
    def test_compiles_with_booktabs_and_fits_the_page(self, make, group, tmp_path):
        odd = make("50%_{a}&b", methods=["er", "my_own"], seeds=1)
        latex_page(tmp_path, [group, (odd, summarise(odd))])


class TestTerminal:
    def show(self, run, **options):
        console = Console(file=io.StringIO(), **options)
        terminal.show([run], console)
        return console.file.getvalue()

    def test_is_plain_in_a_pipe(self, paper_run):
        text = self.show(paper_run, width=120)
        assert "\x1b" not in text
        assert "CLPU-DER++ (scratch)" in text
        assert "…" not in text

    def test_has_colours_in_a_terminal(self, paper_run):
        assert "\x1b[1;32m" in self.show(paper_run, width=120, force_terminal=True, color_system="standard")

    def test_drops_spreads_before_it_cuts_numbers_off(self, paper_run):
        text = self.show(paper_run, width=80, force_terminal=True, color_system=None)
        assert "±" not in text
        assert "…" not in text

    def test_a_pipe_is_taken_for_wide_enough(self, paper_run, capsys):
        terminal.show([paper_run])
        out = capsys.readouterr().out
        assert "±" in out
        assert "…" not in out


def test_an_estimate_without_spread_is_printed_alone():
    assert tables.with_spread(Estimate(0.5), 2, spread=True) == "0.50"
