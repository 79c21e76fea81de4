"""Numbers of a table, against arithmetic by hand."""

import csv
import io
import re
from collections.abc import Callable
from math import isnan, nan

import numpy as np
import pytest
from rich.console import Console

from chaosgate.run.outputs import Samples
from chaosgate.study import Run
from chaosgate.study.execute.state import write_fitted
from chaosgate.study.report.build import select_strengths, strength_tables
from chaosgate.study.report.collect import EnsembleResult, collect
from chaosgate.study.report.latex import latex_contrasts, latex_results
from chaosgate.study.report.notes import footnotes
from chaosgate.study.report.page import html_report
from chaosgate.study.report.table import Table
from chaosgate.study.report.text import csv_table, markdown_table, terminal_tables
from tests.study.made import CLEAN, finish, keep, many, numbers
from tests.study.toy_studies import Plan


def test_corrupted_is_the_mean_over_corruptions_of_the_mean_over_severities(table: Callable[..., Table]) -> None:
    cells = {
        CLEAN: numbers(0.9),
        ("a", 1): numbers(0.8),
        ("a", 5): numbers(0.6),
        ("b", 1): numbers(0.5),
        ("b", 5): numbers(0.1),
    }
    built = table(lambda run: finish(run, cells))
    entry = built.rows[0].entries
    assert entry["clean", "top1"].mean == 0.9
    assert entry["corrupted", "top1"].mean == pytest.approx(((0.8 + 0.6) / 2 + (0.5 + 0.1) / 2) / 2, abs=1e-15)


def test_std_divides_by_n_minus_one_and_differences_are_paired(table: Callable[..., Table]) -> None:
    top1 = {("none", 0): 0.5, ("none", 1): 0.7, ("gch", 0): 0.6, ("gch", 1): 0.78}
    built = table(lambda run: finish(run, {CLEAN: numbers(top1[run.method, run.seed])}), seeds=[0, 1])
    none, gch = (row.entries["clean", "top1"] for row in built.rows)
    assert none.std == pytest.approx(0.2 / 2**0.5, abs=1e-15)
    assert gch.differences == pytest.approx([0.1, 0.08], abs=1e-15)
    assert gch.interval is not None and gch.interval.over == "seeds"  # no outputs were kept
    # t_1 at 97.5 % is tan(0.475 pi) = 12.706: the half-width is 12.706 * 0.01
    assert gch.interval.high - gch.difference == pytest.approx(12.7062 * 0.01, rel=1e-5)
    assert none.interval is None


def test_errors_of_different_bins_are_not_compared(table: Callable[..., Table]) -> None:
    with pytest.raises(ValueError, match="15 and 20 bins"):
        table(lambda run: finish(run, {CLEAN: numbers(0.5)}, num_bins=15 if run.method == "none" else 20))


def test_only_seeds_that_both_have_are_compared(table: Callable[..., Table]) -> None:
    top1 = {("none", 0): 0.5, ("gch", 0): 0.6, ("gch", 1): 0.9}
    built = table(
        lambda run: (
            finish(run, {CLEAN: numbers(top1[run.method, run.seed])}) if (run.method, run.seed) in top1 else None
        ),
        seeds=[0, 1],
    )
    gch = built.rows[1].entries["clean", "top1"]
    assert gch.mean == 0.75 and gch.differences == pytest.approx([0.1])


def test_rows_and_contrasts_that_rest_on_fewer_seeds_say_so_and_are_never_the_best(
    table: Callable[..., Table],
) -> None:
    nll = {"none": 1.0, "a": 0.9, "b": 0.2}
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll[run.method])}) if run.method != "b" or not run.seed else None,
        methods=many("a", "b"),
        seeds=[0, 1, 2],
    )
    assert built.best == {("clean", "nll"): {"a"}} and "of rows with the most seeds" in footnotes(built)[0]
    assert r"b (1 of 3) & " in latex_results(built) and "\n$-$ a (1 of 3) & " in latex_contrasts(built)
    assert "| b - a (1 of 3) |" in markdown_table(built)
    assert '<td class="name">b - a (1 of 3)</td>' in html_report([built], [], [], {})
    shown = io.StringIO()
    Console(width=80, file=shown).print(*terminal_tables(built))
    assert "b (1 of 3)" in shown.getvalue() and "b - a" in shown.getvalue() and shown.getvalue().count("(1 of 3)") == 2


def test_unfinished_row_is_shown_as_missing(table: Callable[..., Table]) -> None:
    built = table(lambda run: finish(run, {CLEAN: numbers(0.5)}) if run.method == "none" else None)
    row = built.rows[1]
    assert row.variant == "gch" and row.seeds == () and isnan(row.entries["clean", "top1"].mean)
    assert isnan(row.entries["clean", "top1"].difference)


def test_rows_are_compared_at_the_same_level(table: Callable[..., Table]) -> None:
    top1 = {"none-short": 0.1, "none-long": 0.2, "gch-short": 0.4, "gch-long": 0.8}
    grid = {"length": {"short": {"trainer.max_epochs": 3}, "long": {"trainer.max_epochs": 9}}}
    built = table(lambda run: finish(run, {CLEAN: numbers(top1[run.variant])}), grid=grid)
    differences = {row.variant: row.entries["clean", "top1"].difference for row in built.rows if not row.is_reference}
    assert differences == pytest.approx({"gch-short": 0.3, "gch-long": 0.6})


def test_axis_of_some_methods_runs_the_reference_once(table: Callable[..., Table]) -> None:
    top1 = {"none": 0.1, "gch-L3": 0.4, "gch-L4": 0.8}
    levels = [{"noise.stages": ["L3"]}, {"noise.stages": ["L4"]}]
    grid = {"stage": {"methods": ["gch"], "levels": levels}}
    built = table(lambda run: finish(run, {CLEAN: numbers(top1[run.variant])}), grid=grid)
    differences = {row.variant: row.entries["clean", "top1"].difference for row in built.rows if not row.is_reference}
    assert differences == pytest.approx({"gch-L3": 0.3, "gch-L4": 0.7})


def test_collapsed_row_is_flagged_where_it_collapsed(table: Callable[..., Table]) -> None:
    good, lost = numbers(0.8, confidence=0.9), numbers(0.12, confidence=0.11)
    of_method = {"none": {CLEAN: good, ("a", 1): good}, "gch": {CLEAN: good, ("a", 1): lost}}
    built = table(lambda run: finish(run, of_method[run.method]))
    assert [row.collapsed for row in built.rows] == [frozenset(), {"corrupted"}]


def test_ensemble_of_collapsed_networks_is_flagged_and_never_the_best(
    table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, lost = numbers(0.8, confidence=0.9), numbers(0.12, ece=0.01, confidence=0.11)
    samples = Samples(
        (CLEAN,), np.full((1, 4), 0.11, np.float32), np.zeros((1, 4), bool), np.ones((1, 4)), np.arange(4)
    )
    made = EnsembleResult((0, 1), {name: {CLEAN: value} for name, value in lost.items()}, samples, None, nan)
    monkeypatch.setattr("chaosgate.study.report.build.kept_ensembles", lambda *_: [made])
    built = table(
        lambda run: finish(run, {CLEAN: good if run.method == "none" else lost}),
        seeds=[0, 1],
        ensemble={"of": "gch", "size": 2},
    )
    assert [row.collapsed for row in built.rows] == [frozenset(), {"clean"}, {"clean"}]
    assert ("clean", "ece") not in built.best and set(built.rows[2].entries) == set(built.columns)


def test_energy_is_summed_over_sites_and_zero_without_a_gate(table: Callable[..., Table]) -> None:
    built = table(lambda run: finish(run, {CLEAN: numbers(0.5)}, energies=(0.25, 0.5) if run.method == "gch" else ()))
    assert [row.energy.mean for row in built.rows] == [0.0, 0.75]


def test_energy_of_a_gate_that_was_not_measured_is_missing_and_not_zero(table: Callable[..., Table]) -> None:
    built = table(lambda run: finish(run, {CLEAN: numbers(0.5)}))
    assert built.rows[0].energy.mean == 0.0 and isnan(built.rows[1].energy.mean)


SWEEP = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0, 2.0], "paper": 1.0}}


def test_strength_is_selected_by_validation_and_never_by_test(table: Callable[..., Table]) -> None:
    validation = {"none": 1.0, "gch-0.5": 0.7, "gch-1": 0.8, "gch-2": 0.9}
    test = {"none": 1.0, "gch-0.5": 0.9, "gch-1": 0.8, "gch-2": 0.1}  # the test set would choose 2
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=test[run.variant])}, validation_nll=validation[run.variant]),
        strength=SWEEP,
    )
    assert select_strengths(built) == {"gch": "gch-0.5"}
    paper, selected, every = ([row.variant for row in one.rows] for one in strength_tables(built))
    assert paper == ["none", "gch-1"] and selected == ["none", "gch-0.5"] and len(every) == 4


def test_nothing_is_selected_before_every_strength_is_there(table: Callable[..., Table]) -> None:
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5)}) if run.variant != "gch-2" else None,
        strength=SWEEP,
    )
    assert select_strengths(built) == {"gch": None}
    assert [row.variant for row in strength_tables(built)[1].rows] == ["none"]
    assert "gch: no strength is selected before every strength has every seed." in footnotes(built)


def test_every_level_of_a_grid_is_compared_to_the_reference_at_that_level(table: Callable[..., Table]) -> None:
    nll = {"none-short": 1.0, "none-long": 2.0, "gch-short": 1.1, "gch-long": 1.8}
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=nll[run.variant], nll_T=nll[run.variant] - 0.5)}),
        grid={"length": {"short": {"trainer.max_epochs": 2}, "long": {"trainer.max_epochs": 4}}},
    )
    rows = list(csv.DictReader(csv_table(built).splitlines()))
    found = {
        (row["method"], row["compared_to"]): float(row["difference"])
        for row in rows
        if row["metric"] == "nll" and row["difference"]
    }
    assert found == pytest.approx(
        {
            ("gch-short", "none-short"): 0.1,
            ("gch-long", "none-long"): -0.2,
            ("gch-short - none-short+T", "none-short+T"): 0.6,
            ("gch-long - none-long+T", "none-long+T"): 0.3,
        }
    )
    assert "Signed numbers are differences to none at the same length." in "\n".join(footnotes(built))


def test_notes_say_where_rows_come_from_several_commits_or_processors(table: Callable[..., Table]) -> None:
    def origin(run: Run) -> dict[str, str]:
        return {"processor": "B", "commit": "def"} if run.method == "gch" else {}

    mixed = table(lambda run: finish(run, {CLEAN: numbers(0.5)}, about=origin(run)))
    said = "\n".join(footnotes(mixed))
    assert "several commits: abc, def." in said and "several processors (B, not recorded)" in said
    alike = "\n".join(footnotes(table(lambda run: finish(run, {CLEAN: numbers(0.5)}, about={"processor": "B"}))))
    assert "several" not in alike


def test_page_says_how_many_images_and_which_networks_the_settings_have(table: Callable[..., Table]) -> None:
    def made(run: Run) -> None:
        size = run.levels["size"]
        images = {"train": 1000 if size == "few" else 3000, "test": 100}
        finish(
            run,
            {CLEAN: numbers(0.5)},
            about={"backbone": f"net_{size}", "data": {"name": "made", "subset": False, "images": images}},
        )

    built = table(made, grid={"size": {"many": {"trainer.max_epochs": 2}, "few": {"trainer.max_epochs": 4}}})
    page = html_report([built], [], [], {})
    assert "net_many and net_few on made: 1,000 or 3,000 train, 100 test images" in page


def test_a_seed_without_a_number_has_no_interval_and_no_mark(table: Callable[..., Table]) -> None:
    built = table(
        lambda run: finish(run, {CLEAN: numbers(nan if run.method == "gch" and run.seed == 1 else 0.5)}), seeds=[0, 1]
    )
    lost = built.rows[1].entries["clean", "top1"]
    assert isnan(lost.mean) and isnan(lost.std) and lost.interval is None and not built.marks
    assert "missing" in markdown_table(built) and csv_table(built)


def test_notes_and_files_are_about_all_tables_of_a_sweep(table: Callable[..., Table]) -> None:
    sweeps = {"gch": SWEEP["gch"], "drop": {"key": "noise.p", "values": [0.1, 0.3], "paper": 0.1}}
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=1.0 + 0.01 * run.seed)}),
        strength=sweeps,
        methods=many("gch", "drop"),
        seeds=[0, 1],
    )
    tables = strength_tables(built)
    paper, selected, every = ([one.name for one in part.contrasts] for part in tables)
    assert paper == ["drop-0.1 - gch-1"] and selected == ["drop-0.1 - gch-0.5"] and len(every) == 6
    notes = "\n".join(footnotes(built, tables))
    assert "differences of each table (6, 6, 15)" in notes  # Top-1, NLL and ECE of every row but the reference
    assert "p ≤ 0.05 / that number" in notes and "among themselves (2, 2, 12)" in notes  # NLL and ECE
    page = html_report(tables, [], [], {})
    assert "each seed alone would select" in page and "drop-0.1 - gch-0.5" in page
    rows = list(csv.DictReader(csv_table(*tables).splitlines()))
    compared = {row["method"]: row["compared_to"] for row in rows if row["difference"]}
    assert compared["drop-0.1"] == "none" and compared["drop-0.1 - gch-0.5"] == "gch-0.5" and "none" not in compared
    titles = {row["table"] for row in rows if row["method"] == "drop-0.1"}
    assert titles == {part.title for part in tables}


def test_notes_say_what_is_better_how_the_ece_is_binned_and_what_a_mark_takes(table: Callable[..., Table]) -> None:
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=1 + 0.1 * run.seed, brier=0.6)}),
        methods=many("a", "b", "c"),
        seeds=[0, 1, 2],
        metrics=["top1", "nll", "ece", "brier"],
    )
    notes = "\n".join(footnotes(built))
    assert "Better is larger for Top-1; smaller for NLL, ECE, Brier. ECE: 15 bins of equal width." in notes
    # 12 differences, 2 degrees of freedom: t with P(|T| > t) = 0.05 / 12 is a sqrt(2 / (1 - a^2)), a = 1 - 0.05 / 12
    assert "p ≤ 0.05 / 12, with 3 seeds a difference of at least 15 standard errors over seeds" in notes
    assert "the first is better, worse" in notes and "distinguishable or not" in notes


def test_only_the_best_mean_is_bold_and_latex_fits_a_column_with_intervals(table: Callable[..., Table]) -> None:
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=1 - 0.2 * (run.method == "gch") + 0.01 * run.seed)}),
        methods=many("gch"),
        seeds=[0, 1],
    )
    assert built.best == {("clean", "nll"): {"gch"}}  # what is equal has no best
    text, latex = markdown_table(built), latex_results(built)
    assert re.findall(r"\*\*(.*?)\*\*", text) == ["0.805"] and re.findall(r"\\textbf{(.*?)}", latex) == ["0.805"]
    shown = io.StringIO()
    Console(width=80, file=shown, force_terminal=True, color_system="standard").print(*terminal_tables(built))
    assert re.findall(r"\x1b\[1m *(0\.\d+)\x1b", shown.getvalue()) == ["0.805"]
    assert r"\resizebox{\ifdim\width>\linewidth\linewidth" in latex and re.search(r"\[\$-?\.?\d", latex)


def kept_outputs(run: Run, nll: float) -> None:
    """Images whose NLL is that of the run, give or take the image."""
    finish(run, {CLEAN: numbers(0.5, nll=nll, nll_T=0.9 * nll, ece_T=0.05, temperature=1.5)})
    shape = (1, 100)
    keep(run, [CLEAN], np.full(shape, 0.6), np.arange(100)[None] % 2 == 0, nll + 0.1 * np.linspace(-1, 1, 100)[None])


def test_one_seed_earns_no_mark_and_every_format_says_what_its_intervals_are_about(
    table: Callable[..., Table],
) -> None:
    built = table(lambda run: kept_outputs(run, 1.0 if run.method == "none" else 0.2), methods=many("a", "b"))
    entry = built.rows[1].entries["clean", "nll"]
    assert entry.interval is not None and entry.interval.high < -0.7 and not entry.can_be_marked  # clear, for these two
    assert built.contrasts and built.marks == built.contrast_marks == {}
    text, notes = markdown_table(built), "\n".join(footnotes(built))
    assert "about these two networks" in notes and "Holm" not in notes and "Contrasts (" in notes
    for latex in (latex_results(built), latex_contrasts(built)):
        assert "about these two networks on other test images" in latex and "1 seed, 100 test images" in latex
        assert "Holm" not in latex and "$^{+}$" not in latex
    assert not set(text + html_report([built], [], [], {})) & set("✓✗")


def test_better_and_worse_are_marked_in_every_format_with_the_std_beneath_the_mean(
    table: Callable[..., Table],
) -> None:
    nll = {"none": 1.0, "up": 0.2, "down": 1.9}
    built = table(
        lambda run: kept_outputs(run, nll[run.method] + 0.001 * run.seed), methods=many("up", "down"), seeds=[0, 1, 2]
    )
    column = ("clean", "nll")
    assert {key[0]: mark for key, mark in built.marks.items() if key[1] == column} == {"up": "better", "down": "worse"}
    text, latex, page = markdown_table(built), latex_results(built), html_report([built], [], [], {})
    assert "**0.201** ± 0.001 (-.800 ✓, -.800 to -.800)" in text and "1.901 ± 0.001 (+.900 ✗, +.900 to +.900)" in text
    assert latex.count("$^{+}$}") == latex.count("$^{-}$}") == 2  # NLL and NLL+T
    assert "other seeds and other test images; for NLL+T, ECE+T about other seeds on these test images" in latex
    assert "3 seeds, 100 test images" in latex
    assert '<span class="better">-0.800 ✓</span>' in page and '<span class="worse">+0.900 ✗</span>' in page
    shown = io.StringIO()
    Console(width=80, file=shown).print(*terminal_tables(built)[:1])
    lines = shown.getvalue().splitlines()
    (first,) = [k for k, line in enumerate(lines) if "-.800✓" in line]
    assert lines[first].index("0.201") == lines[first + 1].index("±0.001") + 1
    assert "+.900✗" in shown.getvalue()


def test_curves_of_an_epoch_that_was_begun_twice_count_once(plan: Plan) -> None:
    run = plan()[0]
    finish(run, {CLEAN: numbers(0.5)}, validation_nll=3.0)
    with open(run.directory / "curves.jsonl", "a") as file:
        file.write('{"epoch": 1, "val/nll": 1.5}\n{"epoch": 1, "val/nll": 1.0}\n{"epoch": 2, "val/nll": 2.0}\n')
    write_fitted(run.directory, {"seconds": 1.0})
    (one,) = collect([run])
    assert [line["val/nll"] for line in one.curves] == [3.0, 1.0, 2.0]
    assert one.validation_nll == 1.0  # the tested checkpoint is the best
