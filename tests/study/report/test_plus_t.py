"""Columns +T and the flag of collapsed networks, in every format of a report."""

import csv
import io
import re
from collections.abc import Callable
from math import isnan
from pathlib import Path

import pytest
from rich.console import Console

from chaosgate.study import Run, load_study
from chaosgate.study.report.build import build_table
from chaosgate.study.report.collect import collect
from chaosgate.study.report.figures import axis_figure, energy_figure, temperature_figure
from chaosgate.study.report.latex import latex_contrasts, latex_results, latex_table
from chaosgate.study.report.notes import corrupted_note, footnotes
from chaosgate.study.report.page import html_report
from chaosgate.study.report.paper_table import table_beside_paper
from chaosgate.study.report.table import Table
from chaosgate.study.report.text import csv_table, markdown_table, terminal_tables
from tests.study.made import finish
from tests.study.toy_studies import Write

Plan = Callable[..., list[Run]]
GOOD = {"top1": 0.8, "nll": 0.9, "ece": 0.1, "confidence": 0.9}
LOST = {"top1": 0.11, "nll": 2.4, "ece": 0.01, "confidence": 0.12}


def cells(numbers: dict[str, float], **more: object) -> dict[tuple[str, int], dict[str, object]]:
    whole = {**numbers, **more}
    return {cell: whole for cell in (("clean", 0), ("glass_blur", 1), ("glass_blur", 2))}


def plus_t(nll: float, ece: float, value: float = 2.0, split: str = "validation") -> dict[str, object]:
    return {"nll_T": nll, "ece_T": ece, "temperature": value, "temperature_split": split, "temperature_n": 50}


@pytest.fixture
def build(plan: Plan, write_study: Write) -> Callable[..., Table]:
    def made(of_method: dict[str, dict[tuple[str, int], dict[str, object]]], **keys: object) -> Table:
        runs = plan(**keys)
        for run in runs:
            finish(run, of_method[run.method], energies=[0.5] if run.method != "none" else [])  # type: ignore[arg-type]
        return build_table(load_study(write_study(**keys)), runs, collect(runs))

    return made


@pytest.fixture
def both(build: Callable[..., Table]) -> Table:
    """The reference with +T; the other collapsed, its temperature fitted on the test images."""
    return build({"none": cells(GOOD, **plus_t(0.7, 0.03)), "gch": cells(LOST, **plus_t(2.3, 0.02, 0.5, "test"))})


def printed(table: Table) -> str:
    out = io.StringIO()
    for grid in terminal_tables(table):
        Console(width=80, file=out).print(grid)
    return out.getvalue()


def test_columns_follow_the_metrics_they_belong_to(both: Table) -> None:
    assert [metric for part, metric in both.columns if part == "clean"] == [
        "top1",
        "nll",
        "ece",
        "gap",
        "nll_T",
        "ece_T",
    ]
    none, gch = both.rows
    assert none.entries["clean", "ece_T"].mean == none.entries["corrupted", "ece_T"].mean == 0.03
    assert gch.entries["clean", "nll_T"].difference == pytest.approx(1.6)
    assert (none.temperature.mean, gch.temperature.mean) == (2.0, 0.5)
    assert (none.fitted_on_test, gch.fitted_on_test) == (False, True)


def test_terminal_stays_within_80_columns(both: Table) -> None:
    text = printed(both)
    assert max(map(len, text.splitlines())) <= 80
    assert "clean +T" in text and "corrupted +T" in text and "…" not in text
    assert re.search(r"none .*0.700 .*0.030 .*T 2.00", text)
    assert re.search(r"gch§ ‡.*2.300 \+1.600.*0.020 -.010.*T 0.50†", text)


def test_markdown_marks_and_flags(both: Table) -> None:
    clean, corrupted = (block.splitlines() for block in markdown_table(both).split("\n\n")[:2])
    for part, (head, _, none, gch) in {"clean": clean, "corrupted": corrupted}.items():
        assert head.startswith(f"| {part} | seeds |") and head.endswith("| NLL+T | ECE+T | T | energy |")
        assert "0.030 |" in none and "†" not in none and "| 2.000 |" in none
        assert gch.startswith("| gch§ (collapsed) |") and "0.020† (-.010)" in gch and "| 0.500† |" in gch
        assert head.count("|") == none.count("|") == gch.count("|")


def test_csv_says_what_the_temperature_was_fitted_on_and_who_collapsed(both: Table) -> None:
    rows = list(csv.DictReader(csv_table(both).splitlines()))
    fitted = {row["method"]: (row["part"], row["mean"]) for row in rows if row["metric"] == "temperature"}
    assert fitted == {"none": ("validation", "2.0"), "gch": ("test", "0.5")}
    flags = {(row["method"], row["part"]): row["collapsed"] for row in rows if row["metric"] == "ece"}
    assert flags["none", "clean"] == "" and flags["gch", "clean"] == flags["gch", "corrupted"] == "collapsed"
    assert [row["mean"] for row in rows if row["metric"] == "ece_T" and row["method"] == "none"] == ["0.03", "0.03"]


def test_latex_marks_and_explains(both: Table) -> None:
    latex = latex_results(both)
    assert latex.count(r"NLL$\downarrow$ & ECE$\downarrow$") == latex.count(r"\emph{clean}") == 1
    assert latex.count(r"\emph{clean, +T}") == latex.count(r"\emph{corrupted, +T}") == 1
    assert (
        r"GCh$^\S$$^\ddagger$ &" in latex
        and "selected on the test images" in latex
        and r"0.020$^\dagger$" in latex
        and r"0.030$^\dagger$" not in latex
    )
    assert "not a success" in latex and "fitted on the test images" in latex
    assert latex.count(r"\begin") == latex.count(r"\end") == 2


def test_latex_notes_are_about_what_stands_above_them(
    build: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosgate.study.report.latex.PAGE_LINES", 12)  # a block of metrics, with +T, is a table
    both = [cells({**GOOD, "nll": nll}, **plus_t(0.7, 0.03)) for nll in (0.9, 0.8)]
    for one in both:
        one["clean", 0] = {**one["clean", 0], "brier": 0.3}
    metrics = ["top1", "nll", "ece", "gap", "brier"]
    table = build({"none": both[0], "gch": both[1]}, metrics=metrics, seeds=[0, 1])
    clean, corrupted, brier, rest = latex_results(table).split(r"\end{table}")
    assert not rest.strip() and "Brier" in brier and "(3 of 3)" in brier  # nothing is corrupted there: no empty columns
    assert r"\begin{tabular}{lcccc}" in clean and r"\begin{tabular}{lc}" in brier
    assert "ECE: 15 bins" in clean and "above 0 is over-confident" in clean and "ECE" not in brier
    assert "+T: logits" in clean and "+T: logits" in corrupted and "+T" not in brier
    assert "corrupted: mean over 1 generated corruption" in corrupted and "corrupted" not in clean + brier
    for one in (clean, corrupted, brier):
        assert "net on made (subset): best checkpoint, 2 seeds, 100 test images per cell" in one
        assert "for 11 differences" in one  # Top-1, NLL, ECE, both +T, twice, and Brier: one family
    assert "\nGCh & " in latex_contrasts(table) and "\n$-$ None+T & " in latex_contrasts(table)  # as in the results


def test_footnotes_explain_everything_that_is_marked(both: Table) -> None:
    notes = "\n".join(footnotes(both))
    selected = "§: the tested checkpoint was selected on the test images"
    for words in ("+T:", "†: T was fitted on the test images", "collapsed: accuracy and confidence", selected):
        assert words in notes
    assert "No temperature" not in notes


def test_contrast_with_a_reference_whose_temperature_saw_the_test_images_is_marked_in_every_format(
    build: Callable[..., Table],
) -> None:
    on_test = {"none": cells(GOOD, **plus_t(0.7, 0.03, 2.0, "test")), "gch": cells(GOOD, **plus_t(0.6, 0.02))}
    table = build(on_test)
    (contrast,) = table.contrasts
    assert (contrast.name, contrast.label(1)) == ("gch - none+T", "gch - none+T†")
    assert "| gch - none+T† |" in markdown_table(table) and "gch - none+T†" in html_report([table], [], [], {})
    assert "none+T†" in printed(table)
    latex = latex_contrasts(table)
    assert r"$-$ None+T$^\dagger$ &" in latex and r"$^\dagger$fitted on the test images themselves" in latex
    held_out = latex_contrasts(build({method: cells(GOOD, **plus_t(0.7, 0.03)) for method in on_test}))
    assert "None+T &" in held_out and "dagger" not in held_out


def test_nothing_is_marked_where_there_is_nothing_to_mark(build: Callable[..., Table]) -> None:
    table = build({"none": cells(GOOD, **plus_t(0.7, 0.03)), "gch": cells(GOOD, **plus_t(0.6, 0.02))})
    notes = "\n".join(footnotes(table))
    latex = latex_results(table)
    assert "†" not in notes + printed(table) + markdown_table(table) and "collapsed" not in notes
    assert "‡" not in notes + printed(table)
    assert "dagger" not in latex and "collapsed," not in csv_table(table)


def test_older_rows_are_missing_and_not_zero(build: Callable[..., Table]) -> None:
    table = build({"none": cells(GOOD, **plus_t(0.7, 0.03)), "gch": cells(GOOD)})
    gch = table.rows[1]
    assert isnan(gch.entries["clean", "ece_T"].mean) and isnan(gch.temperature.mean)
    assert "missing" in printed(table) and "missing" in markdown_table(table)
    assert "No temperature for every seed of gch" in "\n".join(footnotes(table))
    assert re.search(r"GCh(?: & (?:[\d.]+|\\textbf{[\d.]+})){4} ", latex_results(table))
    assert r"GCh &  & -- & -- & " in latex_results(table)
    temperature_figure(table)


def test_a_study_without_any_temperature_has_no_such_columns_and_says_so(build: Callable[..., Table]) -> None:
    table = build({"none": cells(GOOD), "gch": cells(GOOD)})
    assert not any(metric.endswith("_T") for _, metric in table.columns)
    assert "+T is missing" in "\n".join(footnotes(table)) and "+T" not in printed(table)


def test_a_temperature_of_some_cells_only_gives_no_aggregate(build: Callable[..., Table]) -> None:
    some = cells(GOOD, **plus_t(0.7, 0.03))
    some["glass_blur", 2] = dict(GOOD)
    table = build({"none": some, "gch": cells(GOOD, **plus_t(0.6, 0.02))})
    none = table.rows[0].entries
    assert none["clean", "ece_T"].mean == 0.03 and isnan(none["corrupted", "ece_T"].mean)


def test_tables_of_the_paper_get_our_plus_t_and_no_paper_column_for_it(plan: Plan, write_study: Write) -> None:
    keys = {"paper": ["imagenetc_overall", "imagenetc_breakdown"]}
    runs = plan(**keys)
    for run in runs:
        numbers = (
            cells(GOOD, **plus_t(0.7, 0.03)) if run.method == "none" else cells(LOST, **plus_t(2.3, 0.02, 0.5, "test"))
        )
        finish(run, numbers)  # type: ignore[arg-type]
    finished = collect(runs)
    table = build_table(load_study(write_study(**keys)), runs, finished)
    overall, breakdown = (table_beside_paper(name, table, finished) for name in keys["paper"])
    lines = [line for line in latex_table(overall).splitlines() if line.endswith(r" \\")]
    assert lines[0].endswith(r"ECE$\downarrow$ & paper & NLL+T$\downarrow$ & ECE+T$\downarrow$ \\")
    assert len({line.count("&") for line in lines}) == 1
    (gch,) = [line for line in lines if line.startswith("GCh")]
    assert gch.startswith(r"GCh$^\ddagger$ &") and gch.endswith(r"& 2.300$^\dagger$ & 0.020$^\dagger$ \\")
    (dropout,) = [line for line in lines if line.startswith("Dropout")]
    assert dropout.endswith(r"& -- & -- \\")
    glass = breakdown.rows["glass_blur"]
    assert (glass["ece_T_none"].mean, glass["ece_T_gch"].mean) == (0.03, 0.02)
    assert r"ECE+T$\downarrow$ (GCh)" in latex_table(breakdown)
    page = html_report([table], [overall, breakdown], finished, {})
    assert '<th class="plus-t">ECE+T</th>' in page and '<span class="flag">collapsed</span>' in page
    beside = page.split("<h2>Beside the paper</h2>")[1]
    assert '<td class="plus-t">0.020†</td>' in beside and '<td class="plus-t">0.030</td>' in beside


def test_page_shows_the_columns_the_picture_and_the_flag(both: Table, tmp_path: Path) -> None:
    page = html_report([both], [], [], {})
    assert (
        page.count('<th class="plus-t">ECE+T</th>') == 1
        and page.count("0.020†") == 2
        and "<b>" not in page  # one row that has not collapsed: nothing to be best among
    )
    assert page.count('<span class="flag">collapsed</span>') == 2 and "†: T was fitted on the test" in page


def texts(figure: object) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]  # type: ignore[attr-defined]


def test_pictures_cross_out_the_small_ece_of_a_collapsed_network(build: Callable[..., Table], both: Table) -> None:
    good = build({"none": cells(GOOD), "gch": cells(GOOD)})
    assert "collapsed" in texts(energy_figure(both)) and "collapsed" not in texts(energy_figure(good))
    sweep = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0], "paper": 1.0}}
    swept = build({"none": cells(GOOD), "gch": cells(LOST)}, strength=sweep)
    along = axis_figure(swept, "strength")
    assert "collapsed" in texts(along) and {axes.get_xlabel() for axes in along.axes} == {"strength (log_std)"}


def test_temperature_picture_draws_the_numbers_of_the_table(both: Table) -> None:
    figure = temperature_figure(both)
    clean_nll = figure.axes[0]
    assert clean_nll.get_xlabel() == "clean NLL"
    assert [label.get_text() for label in clean_nll.get_yticklabels()] == ["gch (collapsed) †", "none"]
    assert any(text.startswith("† fitted on the test images") for text in texts(figure))
    drawn = [tuple(map(float, line.get_xdata())) for line in clean_nll.lines if len(line.get_xdata()) == 2]
    assert (2.4, 2.3) in drawn and (0.9, 0.7) in drawn
    assert "none +T" in texts(figure)


@pytest.mark.parametrize(
    "said, note",
    [("generated", "1 generated corruption of"), ("released", "1 released corruption of"), (None, "1 corruption of")],
)
def test_corruptions_are_called_what_the_rows_say(build: Callable[..., Table], said: str | None, note: str) -> None:
    data = {"name": "images", "corruptions": said}
    assert f"mean over {note}" in corrupted_note(build({m: cells(GOOD, data=data) for m in ("none", "gch")}))
