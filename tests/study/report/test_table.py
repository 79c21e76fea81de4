"""Numbers of a table, against arithmetic by hand."""

from collections.abc import Callable
from math import isnan

import pytest

from chaosgate.study import Run
from chaosgate.study.plan.loading import load_study
from chaosgate.study.report.build import build_table, select_strengths, strength_tables
from chaosgate.study.report.collect import collect
from chaosgate.study.report.table import Table
from tests.study.made import finish
from tests.study.toy_studies import Write

Plan = Callable[..., list[Run]]
CLEAN = ("clean", 0)


def numbers(top1: float, nll: float = 1.0, ece: float = 0.1, **more: float) -> dict[str, float]:
    return {"top1": top1, "nll": nll, "ece": ece, **more}


@pytest.fixture
def table(plan: Plan, write_study: Write) -> Callable[..., Table]:
    def build(fill: Callable[[Run], None], **keys: object) -> Table:
        runs = plan(**keys)
        for run in runs:
            fill(run)
        return build_table(load_study(write_study(**keys)), runs, collect(runs))

    return build


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


def test_curves_of_an_epoch_that_was_begun_twice_count_once(plan: Plan) -> None:
    run = plan()[0]
    finish(run, {CLEAN: numbers(0.5)}, validation_nll=3.0)
    with open(run.directory / "curves.jsonl", "a") as file:
        file.write('{"epoch": 1, "val/nll": 1.5}\n{"epoch": 1, "val/nll": 1.0}\n{"epoch": 2, "val/nll": 2.0}\n')
    (one,) = collect([run])
    assert [line["val/nll"] for line in one.curves] == [3.0, 1.0, 2.0]
    assert one.validation_nll == 1.0  # the tested checkpoint is the best
