"""Tables and figures of a study with many methods: which pairs are shown, pages that fit, looks that differ."""

import re
from collections.abc import Callable

import pytest

from chaosgate.study import Run
from chaosgate.study.plan.runs import load_study
from chaosgate.study.report.build import build_table, strength_tables
from chaosgate.study.report.collect import collect
from chaosgate.study.report.figures import corruption_figure, curves_figure, method_styles
from chaosgate.study.report.latex import PAGE_LINES, latex_contrasts, latex_results
from chaosgate.study.report.notes import footnotes
from chaosgate.study.report.table import Table
from tests.study.made import CLEAN, finish, many, numbers
from tests.study.toy_studies import Plan, Write


def test_too_many_pairs_are_left_out_and_a_note_says_so(table: Callable[..., Table]) -> None:
    def fill(run: Run) -> None:
        finish(run, {CLEAN: numbers(0.5, nll=1.0, nll_T=0.9, ece_T=0.05)})

    keys = {"methods": many(*"abcdefgh"), "seeds": [0, 1]}
    built = table(fill, **keys)
    assert [one.name for one in built.contrasts] == [f"{name} - none+T" for name in "abcdefgh"]
    assert "not compared with each other" in "\n".join(footnotes(built))
    assert "not compared with each other" not in "\n".join(footnotes(table(fill, contrast="c", **keys)))


def test_latex_has_the_contrasts_and_no_table_longer_than_a_page(table: Callable[..., Table]) -> None:
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=1.0 + 0.1 * run.seed), ("a", 1): numbers(0.4)}),
        methods=many(*"abcdefghijklmnop"),
        seeds=[0, 1],
        contrast="a",
    )
    assert len(built.pairs) == 15
    parts = latex_results(built).split(r"\end{table}")
    assert len(parts) == 3 and "(1 of 2)" in parts[0] and "(2 of 2)" in parts[1]
    assert all(part.count("Top-1") == 1 and len(lines_of(part)) <= PAGE_LINES for part in parts[:2])
    contrasts = latex_contrasts(built)
    assert contrasts.count("\na & ") == contrasts.count("\n$-$ ") == 15 and "for 60 differences" in contrasts
    assert contrasts.count(r"\begin") == contrasts.count(r"\end") == 2


def lines_of(part: str) -> list[str]:
    return part.split(r"\toprule")[1].split(r"\bottomrule")[0].strip().splitlines()


def test_latex_of_many_methods_with_a_temperature_fits_pages_without_empty_columns(
    table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosgate.study.report.latex.PAGE_LINES", 20)  # eight rows, ten contrasts
    names = [f"m{number}" for number in range(11)]
    scaled = {"nll_T": 0.9, "ece_T": 0.05, "temperature": 1.5}
    built = table(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll=1.0 + 0.1 * run.seed, **scaled)}),
        methods=many(*names),
        seeds=[0, 1],
    )
    parts = latex_results(built).split(r"\end{table}")[:-1]
    assert len(parts) == 4 and all(len(lines_of(part)) <= 20 for part in parts)
    assert [r"\emph{clean, +T}" in part for part in parts] == [False, False, True, True]
    assert r"\begin{tabular}{lcc}" in parts[2] and r"& NLL$\downarrow$ & ECE$\downarrow$ \\" in parts[2]
    for first, second in (parts[:2], parts[2:]):  # every method, once
        assert re.findall(r"\n(m\d+) &", first + second) == names
    contrasts = latex_contrasts(built).split(r"\end{table}")[:-1]
    assert len(contrasts) == 2 and "contrasts (2 of 2)" in contrasts[1]
    assert re.findall(r"\n(m\d+) &", "".join(contrasts)) == names and all("for 22 diff" in one for one in contrasts)


def test_a_method_is_set_against_all_others_each_at_its_selected_strength(table: Callable[..., Table]) -> None:
    methods = {f"m{k}": ["gch.yaml", {"model.width": k}] for k in range(7)}
    keys = {
        "methods": {"none": "none.yaml", "gch": "gch.yaml", **methods},
        "strength": {name: {"key": "strength", "values": [1.0, 2.0], "paper": 1.0} for name in ("gch", "m0")},
        "seeds": [0, 1],
    }

    def fill(run: Run) -> None:  # gch is best at 2, m0 at 1
        strong = run.levels.get("strength") == "2"
        finish(
            run,
            {CLEAN: numbers(0.9, nll=1 + 0.01 * run.seed)},
            validation_nll=1 + strong * (-1) ** (run.method == "gch"),
        )

    def names(built: Table) -> list[list[str]]:
        return [[one.name for one in part.contrasts] for part in strength_tables(built)]

    at_paper, selected, every = names(table(fill, contrast="gch", **keys))
    assert at_paper == ["gch-1 - m0-1", *(f"gch-1 - m{k}" for k in range(1, 7))]
    assert selected == ["gch-2 - m0-1", *(f"gch-2 - m{k}" for k in range(1, 7))]
    assert len(every) == 2 * 8  # each of two strengths against the others, never against each other
    assert names(table(fill, **keys)) == [[], [], []]  # 28 pairs are too many to read


def test_methods_of_a_large_study_have_different_looks() -> None:
    styles = method_styles([f"method{number}" for number in range(60)], "method0")
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == 60


def test_bars_and_curves_of_a_large_study_have_different_looks(plan: Plan, write_study: Write) -> None:
    keys = {"methods": many(*(f"m{number}" for number in range(25)))}
    runs = plan(**keys)
    for run in runs:
        finish(run, {CLEAN: numbers(0.5), ("a", 1): numbers(0.4)}, validation_nll=1.0)
    finished = collect(runs)
    built = build_table(load_study(write_study(**keys)), runs, finished)
    bars = corruption_figure(built, finished, "top1").axes[0].patches
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(bars) == 26
    curves = curves_figure(built, finished).axes[1].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == len(curves) == 26
