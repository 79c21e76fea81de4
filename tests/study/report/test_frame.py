"""The data frame of a study, against arithmetic by hand."""

from collections.abc import Callable
from math import isnan, nan

import numpy as np
import pytest
from scipy.stats import t

from chaosgate.study import Run, load_study
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import COLUMNS, Results
from tests.study.made import CLEAN, finish, keep, many, numbers
from tests.study.toy_studies import Plan, Write

Build = Callable[..., Results]
SWEEP = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0, 2.0], "paper": 1.0}}


def one(
    results: Results, variant: str, metric: str = "top1", part: str = "clean", kind: str = "mean"
) -> dict:
    (line,) = results.lines(kind, [variant], part=part, metric=metric).to_dict("records")
    return line


def test_means_are_over_severities_then_over_corruptions(build: Build) -> None:
    shares = {CLEAN: 0.9, ("a", 1): 0.8, ("a", 5): 0.6, ("b", 1): 0.5, ("b", 5): 0.1}
    results = build(
        lambda run: finish(run, {cell: numbers(value) for cell, value in shares.items()})
    )
    parts = {
        "clean": 0.9,
        "corrupted": 0.5,
        "a": 0.7,
        "b": 0.3,
        "severity 1": 0.65,
        "severity 5": 0.35,
    }
    for part, value in parts.items():
        assert one(results, "none", part=part)["value"] == pytest.approx(value, abs=1e-15), part
    assert set(COLUMNS) <= set(results.frame) and (results.frame.study == "small").all()


def test_sd_divides_by_n_minus_one_and_differences_are_paired(build: Build) -> None:
    top1 = {("none", 0): 0.5, ("none", 1): 0.7, ("gch", 0): 0.6, ("gch", 1): 0.78}
    results = build(
        lambda run: finish(run, {CLEAN: numbers(top1[run.method, run.seed])}), seeds=[0, 1]
    )
    none, gch = one(results, "none"), one(results, "gch")
    assert none["sd"] == pytest.approx(0.2 / 2**0.5, abs=1e-15) and isnan(none["difference"])
    assert gch["difference"] == pytest.approx(0.09, abs=1e-15) and gch["over"] == "seeds"
    # t_1 at 97.5 % is tan(0.475 pi) = 12.706: the half-width is 12.706 * 0.01; one method has
    # nobody to borrow from
    assert gch["hi"] - gch["difference"] == pytest.approx(12.7062 * 0.01, rel=1e-5)
    seeds = results.lines("seed", ["gch"], part="clean", metric="top1")
    assert dict(zip(seeds.seed, seeds.value, strict=True)) == {0: 0.6, 1: 0.78}


def test_variance_borrows_from_the_other_methods(build: Build) -> None:
    """Two methods with the same spread, which count as a third of a seed."""
    shift = {"none": (0.0, 0.0), "a": (0.1, 0.12), "b": (0.2, 0.22)}
    results = build(
        lambda run: finish(run, {CLEAN: numbers(0.5 + shift[run.method][run.seed])}),
        methods=many("a", "b"),
        seeds=[0, 1],
    )
    line = one(results, "a")
    # both variances are .0002: s0^2 = .0002 / exp(psi(1/2) + log 2), d = 1, d0 = 1/3
    s0 = 0.0002 * np.exp(1.2703628454614782)
    expected = t.ppf(0.975, 4 / 3) * ((s0 / 3 + 0.0002) / (4 / 3) / 2) ** 0.5
    assert line["hi"] - line["difference"] == pytest.approx(expected, rel=1e-6)


def test_only_seeds_that_both_have_are_compared_and_missing_is_not_zero(build: Build) -> None:
    top1 = {("none", 0): 0.5, ("gch", 0): 0.6, ("gch", 1): 0.9}
    fill = lambda run: finish(run, {CLEAN: numbers(top1[run.method, run.seed])})  # noqa: E731
    results = build(lambda run: (run.method, run.seed) in top1 and fill(run), seeds=[0, 1])
    line = one(results, "gch")
    assert line["value"] == 0.75 and line["difference"] == pytest.approx(0.1)
    results = build(
        lambda run: finish(run, {CLEAN: numbers(0.5)}) if run.method == "none" else None, seeds=[0]
    )
    # the runs of above are still there
    assert one(results, "none")["seeds"] == 1


def test_a_seed_without_a_number_has_no_interval_and_no_mark(build: Build) -> None:
    results = build(
        lambda run: finish(
            run, {CLEAN: numbers(nan if run.method == "gch" and run.seed == 1 else 0.5)}
        ),
        seeds=[0, 1],
    )
    line = one(results, "gch")
    assert (
        isnan(line["value"])
        and isnan(line["sd"])
        and isnan(line["lo"])
        and not any(results.frame.mark)
    )


@pytest.mark.parametrize(
    "grid, expected",
    [
        (
            {"length": {"short": {"trainer.max_epochs": 3}, "long": {"trainer.max_epochs": 9}}},
            {"gch-short": ("none-short", 0.3), "gch-long": ("none-long", 0.6)},
        ),
        (
            {
                "length": {
                    "methods": ["gch"],
                    "levels": {
                        "short": {"noise.gate.init_args.log_std": 3},
                        "long": {"noise.gate.init_args.log_std": 9},
                    },
                }
            },
            {"gch-short": ("none", 0.35), "gch-long": ("none", 0.75)},
        ),
    ],
)
def test_rows_are_compared_to_the_reference_at_the_same_level(
    build: Build, grid: dict, expected: dict
) -> None:
    top1 = {"none": 0.05, "none-short": 0.1, "none-long": 0.2, "gch-short": 0.4, "gch-long": 0.8}
    results = build(lambda run: finish(run, {CLEAN: numbers(top1[run.variant])}), grid=grid)
    for variant, (reference, difference) in expected.items():
        line = one(results, variant)
        assert line["compared_to"] == reference and line["difference"] == pytest.approx(difference)
        assert line["length"] == variant.split("-")[1]


def test_errors_of_different_bins_are_not_compared(build: Build) -> None:
    with pytest.raises(ValueError, match="15 and 20 bins.*overrides"):
        build(
            lambda run: finish(
                run, {CLEAN: numbers(0.5)}, num_bins=15 if run.method == "none" else 20
            )
        )


def test_collapsed_row_is_flagged_where_it_collapsed(build: Build) -> None:
    good, lost = numbers(0.8, confidence=0.9), numbers(0.12, confidence=0.11)
    of_method = {"none": {CLEAN: good, ("a", 1): good}, "gch": {CLEAN: good, ("a", 1): lost}}
    results = build(lambda run: finish(run, of_method[run.method]))
    assert {part for variant, part in results.collapsed if variant == "gch"} == {
        "corrupted",
        "a",
        "severity 1",
    }
    assert (
        not one(results, "gch")["collapsed"] and one(results, "gch", part="corrupted")["collapsed"]
    )


# -- strengths -------------------------------------------------------------------------------------


def test_strength_is_selected_by_validation_and_never_by_test(build: Build) -> None:
    validation = {"none": 1.0, "gch-0.5": 0.7, "gch-1": 0.8, "gch-2": 0.9}
    test = {"none": 1.0, "gch-0.5": 0.9, "gch-1": 0.8, "gch-2": 0.1}  # the test set would choose 2
    results = build(
        lambda run: finish(
            run,
            {CLEAN: numbers(0.5, nll=test[run.variant])},
            validation_nll=validation[run.variant],
        ),
        strength=SWEEP,
    )
    assert results.selected == {"gch": "gch-0.5"}
    assert list(results.tables.values()) == [
        ["none", "gch-1"],
        ["none", "gch-0.5"],
        ["none", "gch-0.5", "gch-1", "gch-2"],
    ]
    assert one(results, "gch-0.5")["selected"] and one(results, "gch-1")["at_paper"]


def test_nothing_is_selected_before_every_strength_is_there(build: Build) -> None:
    results = build(
        lambda run: run.variant != "gch-2" and finish(run, {CLEAN: numbers(0.5)}), strength=SWEEP
    )
    assert results.selected == {"gch": None} and list(results.tables.values())[1] == ["none"]


# -- contrasts and marks ---------------------------------------------------------------------------


def test_every_ece_contrast_has_the_top1_and_the_nll_of_the_same_rows(build: Build) -> None:
    shift = {"none": 0.0, "a": 0.1, "b": 0.3}
    results = build(
        lambda run: finish(
            run,
            {
                CLEAN: numbers(
                    0.5 + shift[run.method],
                    1 + shift[run.method],
                    0.2,
                    nll_T=0.9,
                    ece_T=0.05,
                    temperature=2.0,
                )
            },
        ),
        methods=many("a", "b"),
        metrics=["ece"],
    )
    lines = results.lines("contrast")
    found = {(line.variant, line.metric): line.difference for line in lines.itertuples()}
    pairs = {
        ("b - a", "top1"): 0.2,
        ("b - a", "nll"): 0.2,
        ("b - a", "nll_T"): 0.0,
        ("b - a", "ece"): 0.0,
    }
    pairs |= {("a - none+T", "top1"): 0.1, ("a - none+T", "nll"): 0.2, ("a - none+T", "ece"): 0.15}
    pairs |= {("b - none+T", "top1"): 0.3, ("b - none+T", "nll"): 0.4, ("b - none+T", "ece"): 0.15}
    assert found == pytest.approx(pairs)
    assert results.metrics[:2] == ["top1", "nll_T"]  # the primary metric comes first


def outputs(run: Run, nll: float) -> None:
    """Images whose NLL is that of the run, give or take the image."""
    finish(run, {CLEAN: numbers(0.5, nll=nll)})
    spread = nll + 0.1 * np.linspace(-1, 1, 100)[None]
    keep(run, [CLEAN], np.full((1, 100), 0.6), np.arange(100)[None] % 2 == 0, spread)


def test_one_seed_earns_no_mark(build: Build) -> None:
    results = build(
        lambda run: outputs(run, 1.0 if run.method == "none" else 0.2), methods=many("a", "b")
    )
    line = one(results, "a", "nll")
    assert line["hi"] < -0.7 and line["over"] == "these two networks" and isnan(line["p"])
    assert not any(results.frame.mark)


def test_better_and_worse_are_marked(build: Build) -> None:
    nll = {"none": 1.0, "up": 0.2, "down": 1.9}
    results = build(
        lambda run: outputs(run, nll[run.method] + 0.001 * run.seed),
        methods=many("up", "down"),
        seeds=[0, 1, 2],
    )
    assert [one(results, name, "nll")["mark"] for name in ("up", "down")] == ["better", "worse"]
    assert one(results, "down - up", "nll", kind="contrast")["mark"] == "worse"


def test_networks_tested_on_other_images_are_not_paired(plan: Plan, write_study: Write) -> None:
    for run, images in zip(runs := plan(), (60, 61), strict=True):
        finish(run, {CLEAN: numbers(0.5)})
        scores = np.full((1, images), 0.5)
        keep(run, [CLEAN], scores, scores > 0, scores)
    with pytest.raises(ValueError, match="different images .60 and 61 of them"):
        collect(load_study(write_study()), runs)
