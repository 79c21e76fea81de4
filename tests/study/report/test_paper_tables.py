"""The paper's own tables, set by the renderer that sets ours."""

import re
from collections.abc import Callable

import pytest

from chaosgate.study import Run, load_study
from chaosgate.study.plan.study import paper_data
from chaosgate.study.report.build import build_table
from chaosgate.study.report.collect import collect
from chaosgate.study.report.latex import latex_results, latex_table
from chaosgate.study.report.paper_table import Number, paper_table, table_beside_paper
from tests.study.made import finish
from tests.study.toy_studies import Write

Plan = Callable[..., list[Run]]

# As printed in the paper, digit for digit (table 1 without its bold face).
MAIN = r"""
Method & $g$ & Top-1$\uparrow$ & NLL$\downarrow$ & ECE$\downarrow$ \\
None & 0 & 0.765$\pm$0.001 & 0.931$\pm$0.004 & 0.030$\pm$0.001 \\
Dropout & 0.1 & 0.764$\pm$0.001 & 0.942$\pm$0.005 & 0.033$\pm$0.001 \\
DropBlock & 0.1 & 0.765$\pm$0.000 & 0.930$\pm$0.002 & 0.032$\pm$0.000 \\
IID Gaussian & 0.1 & 0.765$\pm$0.001 & 0.930$\pm$0.005 & 0.032$\pm$0.002 \\
Corr. Gaussian & 0.1 & 0.765$\pm$0.000 & 0.944$\pm$0.002 & 0.037$\pm$0.001 \\
GCh & 0.1 & 0.764$\pm$0.001 & 0.934$\pm$0.004 & 0.020$\pm$0.001 \\
"""
SINGLE_RUNS = {  # name: first and last row as printed, row names aside
    "swin_t": ("80.03 & 0.9213 & 0.0762", "80.11 & 0.9131 & 0.0738"),
    "imagenet_clean_best": ("76.41 & 0.96 & 0.082", "76.23 & 0.95 & 0.076"),
    "imagenet_clean_latest": ("76.35 & 0.97 & 0.084", "76.18 & 0.96 & 0.078"),
}
SEVERAL_SEEDS = {
    "imagenet_depth": "L3 & 0.765$\\pm$0.001 & 0.925$\\pm$0.006 & 0.029$\\pm$0.002",
    "imagenet_gamma_sweep": "0.1 & 0.764$\\pm$0.001 & 0.934$\\pm$0.004 & 0.020$\\pm$0.001",
    "imagenetc_overall": "GCh & 0.1 & 0.383$\\pm$0.005 & 3.287$\\pm$0.064 & 0.056$\\pm$0.005",
    "imagenetc_stage": "L2 & 0.390$\\pm$0.002 & 3.314$\\pm$0.018 & 0.096$\\pm$0.003",
    "imagenetc_gamma_sweep": "0.35 & 0.050$\\pm$0.003 & 6.187$\\pm$0.030 & 0.043$\\pm$0.004",
    "imagenetc_breakdown": "glass\\_blur & 0.273$\\pm$0.002 & 0.263$\\pm$0.004 & 0.122$\\pm$0.003 & 0.075$\\pm$0.002",
    "pets_main": "Dropout & 0.1 & 0.8957$\\pm$0.0007 & 0.4246$\\pm$0.0131 & 0.0503$\\pm$0.0007",
    "pets_gamma_sweep": "0.5 & 0.8989$\\pm$0.0031 & 0.3660$\\pm$0.0038 & 0.0314$\\pm$0.0053",
}


def body(latex: str) -> list[str]:
    return [line.removesuffix(r" \\") for line in latex.splitlines() if line.endswith(r" \\")]


def test_there_are_twelve_tables_and_all_are_checked_here() -> None:
    assert set(paper_data()) == {"imagenet_clean_main", *SINGLE_RUNS, *SEVERAL_SEEDS}
    assert len(paper_data()) == 12


def test_main_table_is_set_as_printed() -> None:
    assert body(latex_table(paper_table("imagenet_clean_main"))) == body(MAIN)


@pytest.mark.parametrize("name", SINGLE_RUNS)
def test_single_run_tables_are_set_as_printed(name: str) -> None:
    rows = [line.split(" & ", 1)[1] for line in body(latex_table(paper_table(name)))[1:]]
    assert (rows[0], rows[-1]) == SINGLE_RUNS[name]


@pytest.mark.parametrize("name", SEVERAL_SEEDS)
def test_tables_over_seeds_are_set_as_printed(name: str) -> None:
    lines = body(latex_table(paper_table(name)))
    assert SEVERAL_SEEDS[name] in lines
    assert len(lines) == 1 + len(paper_data()[name]["rows"])
    assert len({line.count("&") for line in lines}) == 1


def test_sheet_carries_the_label_and_whole_environment() -> None:
    latex = latex_table(paper_table("pets_main"))
    assert latex.count(r"\begin") == latex.count(r"\end") == 2
    assert r"\label{tab:pets_main_aligned}" in latex and r"\toprule" in latex


def test_our_numbers_stand_beside_the_papers(plan: Plan, write_study: Write) -> None:
    keys = {"paper": "imagenet_clean_main", "seeds": [0, 1]}
    runs = plan(**keys)
    for run in runs:
        shift = 0.01 * run.seed + (0.1 if run.method == "gch" else 0.0)
        finish(run, {("clean", 0): {"top1": 0.5 + shift, "nll": 1.0 + shift, "ece": 0.2 + shift}})
    study = load_study(write_study(**keys))
    finished = collect(runs)
    printed = table_beside_paper("imagenet_clean_main", build_table(study, runs, finished), finished)
    lines = {line.split(" & ")[0]: line.split(" & ")[1:] for line in body(latex_table(printed))}
    assert lines["Method"][1:] == [
        r"Top-1$\uparrow$",
        "paper",
        r"NLL$\downarrow$",
        "paper",
        r"ECE$\downarrow$",
        "paper",
    ]
    assert lines["GCh"][1:3] == [r"0.605$\pm$0.007", r"0.764$\pm$0.001"]
    assert lines["Dropout"][1:3] == ["--", r"0.764$\pm$0.001"]  # not in our study: missing, not zero


def test_breakdown_takes_each_corruption_from_its_own_cells(plan: Plan, write_study: Write) -> None:
    runs = plan()
    for run in runs:
        base = 0.2 if run.method == "gch" else 0.1
        cells = {("clean", 0): {"top1": 1.0, "nll": 0.0, "ece": 0.0}}
        cells |= {("pixelate", s): {"top1": base * s, "nll": 1.0, "ece": base} for s in (1, 2)}
        cells |= {("glass_blur", s): {"top1": 0.0, "nll": 1.0, "ece": 3 * base} for s in (1, 2)}
        finish(run, cells)
    finished = collect(runs)
    printed = table_beside_paper(
        "imagenetc_breakdown", build_table(load_study(write_study()), runs, finished), finished
    )
    assert printed.rows["pixelate"]["top1_gch"].mean == pytest.approx(0.3, abs=1e-15)
    assert printed.rows["pixelate"]["top1_none"].mean == pytest.approx(0.15, abs=1e-15)
    assert printed.rows["glass_blur"]["ece_gch"].mean == pytest.approx(0.6, abs=1e-15)
    assert printed.rows["shot_noise"]["ece_gch"] == pytest.approx(Number(), nan_ok=True)


def test_strength_table_finds_our_strengths(plan: Plan, write_study: Write) -> None:
    keys = {"strength": {"gch": {"key": "noise.gate.init_args.gamma", "values": [0.07, 0.1], "paper": 0.1}}}
    runs = plan(**keys)
    for run in runs:
        finish(run, {("clean", 0): {"top1": float(run.levels.get("strength", 0)), "nll": 1.0, "ece": 0.1}})
    finished = collect(runs)
    table = build_table(load_study(write_study(**keys)), runs, finished)
    printed = table_beside_paper("imagenet_gamma_sweep", table, finished)
    assert [printed.rows[g]["top1"].mean for g in ("0.07", "0.1")] == [0.07, 0.1]
    assert re.search(r"0.03 & -- & 0.766", latex_table(printed))


def test_names_are_escaped(plan: Plan, write_study: Write) -> None:
    methods = {"none": "none.yaml", "gch_100": "gch.yaml"}
    runs = plan(methods=methods)
    for run in runs:
        finish(run, {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}})
    table = build_table(load_study(write_study(methods=methods)), runs, collect(runs))
    assert r"gch\_100 & 0.500" in latex_results(table)
