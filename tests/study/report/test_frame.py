"""The data frame of a study, against arithmetic by hand."""

from collections.abc import Callable
from math import isnan
from typing import Any

import numpy as np
import pytest

from chaosgate.study import Run
from chaosgate.study.report.frame import COLUMNS, Results
from tests.study.made import CLEAN, finish, keep, many, numbers

Build = Callable[..., Results]
SWEEP = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0, 2.0], "paper": 1.0}}


def one(results: Results, variant: str, metric: str = "top1", **where: str) -> dict[str, Any]:
    where = {"kind": "mean", "part": "clean", "metric": metric, **where}
    (line,) = results.lines(variants=[variant], **where).to_dict("records")
    return line


def clean(run: Run, *values: float, **more: Any) -> None:
    finish(run, {CLEAN: numbers(*values, **more)})


def test_means_are_over_severities_then_over_corruptions(build: Build) -> None:
    shares = {CLEAN: 0.9, ("a", 1): 0.8, ("a", 5): 0.6, ("b", 1): 0.5, ("b", 5): 0.1}
    results = build(lambda run: finish(run, {cell: numbers(v) for cell, v in shares.items()}))
    parts = {"clean": 0.9, "corrupted": 0.5, "a": 0.7, "b": 0.3}
    for part, value in {**parts, "severity 1": 0.65, "severity 5": 0.35}.items():
        assert one(results, "none", part=part)["value"] == pytest.approx(value, abs=1e-15), part
    assert set(COLUMNS) <= set(results.frame) and (results.frame.study == "small").all()


def test_sd_divides_by_n_minus_one_and_differences_are_paired(build: Build) -> None:
    top1 = {("none", 0): 0.5, ("none", 1): 0.7, ("gch", 0): 0.6, ("gch", 1): 0.78}
    results = build(lambda run: clean(run, top1[run.method, run.seed]), seeds=[0, 1])
    none, gch = one(results, "none"), one(results, "gch")
    assert none["sd"] == pytest.approx(0.2 / 2**0.5, abs=1e-15) and isnan(none["difference"])
    assert gch["difference"] == pytest.approx(0.09, abs=1e-15) and gch["over"] == "seeds"
    # one method has no other to borrow from: t_1 at 97.5 % is 12.706
    assert gch["hi"] - gch["difference"] == pytest.approx(12.7062 * 0.01, rel=1e-5)
    seeds = results.lines("seed", ["gch"], part="clean", metric="top1")
    assert dict(zip(seeds.seed, seeds.value, strict=True)) == {0: 0.6, 1: 0.78}


def test_only_seeds_of_both_are_compared_and_missing_is_not_zero(build: Build) -> None:
    top1 = {("none", 0): 0.5, ("gch", 0): 0.6, ("gch", 1): 0.9}

    def fill(run: Run) -> None:
        if (run.method, run.seed) in top1:
            clean(run, top1[run.method, run.seed])

    line = one(build(fill, seeds=[0, 1]), "gch")
    assert line["value"] == 0.75 and line["difference"] == pytest.approx(0.1)
    top1 = {("none", 0): 0.5}
    results = build(fill, name="other", project="elsewhere")
    line = one(results, "gch")
    assert all(isnan(line[key]) for key in ("value", "sd", "lo")) and not any(results.frame.mark)


@pytest.mark.parametrize("reference", ["none", "none-long"])  # with the axis, or without
def test_rows_are_compared_to_the_reference_at_the_same_level(build: Build, reference: str) -> None:
    top1 = {"none": 0.05, "none-short": 0.1, "none-long": 0.2, "gch-short": 0.4, "gch-long": 0.8}
    levels = {"short": {"trainer.max_epochs": 4}, "long": {"trainer.max_epochs": 9}}
    grid = levels if "-" in reference else {"methods": ["gch"], "levels": levels}
    line = one(build(lambda run: clean(run, top1[run.variant]), grid={"length": grid}), "gch-long")
    assert (line["length"], line["compared_to"]) == ("long", reference)
    assert line["difference"] == pytest.approx(0.8 - top1[reference])


def test_strength_is_selected_by_validation_and_never_by_test(build: Build) -> None:
    validation = {"none": 1.0, "gch-0.5": 0.7, "gch-1": 0.8, "gch-2": 0.9}
    test = {"none": 1.0, "gch-0.5": 0.9, "gch-1": 0.8, "gch-2": 0.1}  # the test set would choose 2

    def fill(run: Run) -> None:
        cells = {CLEAN: numbers(0.5, test[run.variant])}
        finish(run, cells, validation_nll=validation[run.variant])

    results = build(fill, strength=SWEEP)
    assert results.selected == {"gch": "gch-0.5"}
    assert [*results.tables.values()] == [["none", "gch-1"], ["none", "gch-0.5"], [*validation]]
    assert one(results, "gch-0.5")["selected"] and one(results, "gch-1")["at_paper"]
    results = build(lambda run: run.variant != "gch-2" and fill(run), strength=SWEEP, project="b")
    assert results.selected == {"gch": None}  # one strength is missing


def test_every_ece_contrast_has_the_top1_and_the_nll_of_the_same_rows(build: Build) -> None:
    shift = {"none": 0.0, "a": 0.1, "b": 0.3}

    def fill(run: Run) -> None:
        s = shift[run.method]
        clean(run, 0.5 + s, 1 + s, 0.2, nll_T=0.9, ece_T=0.05, temperature=2.0)

    results = build(fill, methods=many("a", "b"), metrics=["ece"])
    lines = results.lines("contrast")
    found = {(line.variant, line.metric): line.difference for line in lines.itertuples()}
    pairs = {("b - a", metric): 0.2 for metric in ("top1", "nll")}
    pairs |= {("b - a", metric): 0.0 for metric in ("nll_T", "ece")}
    for pair, s in (("a - none+T", 0.1), ("b - none+T", 0.3)):
        pairs |= {(pair, "top1"): s, (pair, "nll"): s + 0.1, (pair, "ece"): 0.15}
    assert found == pytest.approx(pairs)
    assert results.metrics[:2] == ["top1", "nll_T"]  # the primary metric comes first


def outputs(run: Run, nll: float, images: int = 100) -> None:
    """Images whose NLL is that of the run, give or take the image."""
    clean(run, 0.5, nll)
    spread, correct = nll + 0.1 * np.linspace(-1, 1, images), np.arange(images) % 2 == 0
    keep(run, [CLEAN], np.full((1, images), 0.6), correct[None], spread[None])


@pytest.mark.parametrize(
    ("seeds", "marks", "over"),
    [
        (1, ["", "", ""], "these two networks"),
        (3, ["better", "worse", "worse"], "seeds and images"),
    ],
)
def test_better_and_worse_are_marked_but_not_for_one_seed(
    build: Build, seeds: int, marks: list[str], over: str
) -> None:
    nll = {"none": 1.0, "up": 0.2, "down": 1.9}
    keys = {"methods": many("up", "down"), "seeds": [*range(seeds)]}
    results = build(lambda run: outputs(run, nll[run.method] + 0.001 * run.seed), **keys)
    lines = [one(results, name, "nll") for name in ("up", "down")]
    lines.append(one(results, "down - up", "nll", kind="contrast"))
    assert [line["mark"] for line in lines] == marks
    assert [line["over"] for line in lines] == [over] * 3 and lines[0]["hi"] < -0.7


def test_networks_tested_on_other_images_are_not_paired(build: Build) -> None:
    with pytest.raises(ValueError, match="tested on different images"):
        build(lambda run: outputs(run, 1.0, 60 + (run.method == "gch")))
