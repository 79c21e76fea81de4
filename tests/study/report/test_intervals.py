"""Intervals against closed forms and against a resampling written out by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from chaosgate.metrics import calibration_bins, calibration_error
from chaosgate.run.outputs import Samples, load_samples
from chaosgate.study import Run
from chaosgate.study.report.inference import binned, image_intervals, seed_interval
from tests.study.made import keep

CELLS = (("clean", 0), ("fog", 1), ("fog", 5), ("snow", 1))
GROUPS = {"clean": [[CELLS[0]]], "corrupted": [[CELLS[1], CELLS[2]], [CELLS[3]]]}


def draw(seed: int, images: int = 300, cells: tuple[tuple[str, int], ...] = CELLS) -> Samples:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.1, 1.0, (len(cells), images)).astype(np.float32)
    correct = generator.random((len(cells), images)) < confidence - 0.05
    return Samples(cells, confidence, correct, generator.exponential(1.0, confidence.shape).astype(np.float32))


def test_binned_ece_is_that_of_the_metrics() -> None:
    samples = draw(0)
    confidence, correct = samples.confidence[0].astype(np.float64), samples.correct[0].astype(np.float64)
    mine = np.abs(binned(confidence, confidence - correct).sum(0)).sum() / len(correct)
    bins = calibration_bins(torch.from_numpy(confidence), torch.from_numpy(samples.correct[0]), 15)
    assert mine == pytest.approx(float(calibration_error(bins)), abs=1e-12)


def test_images_are_drawn_together_in_all_cells_and_for_both_methods() -> None:
    mine = draw(1)
    shifted = Samples(CELLS, mine.confidence, mine.correct, mine.nll + np.float32(0.25))
    found = image_intervals(mine, shifted, GROUPS, ["nll", "top1"], np.random.default_rng(0))
    for part in GROUPS:  # a constant difference stays constant, however the images are drawn
        assert found[part, "nll"].low == pytest.approx(-0.25, abs=1e-6)
        assert found[part, "nll"].high == pytest.approx(-0.25, abs=1e-6)
        assert (found[part, "top1"].low, found[part, "top1"].high) == (0.0, 0.0)


def test_interval_is_that_of_a_resampling_by_hand() -> None:
    mine, theirs = draw(2, 60), draw(3, 60)
    found = image_intervals(mine, theirs, GROUPS, ["ece", "gap"], np.random.default_rng(5))

    def metric(samples: Samples, row: int, chosen: np.ndarray) -> float:
        confidence, correct = samples.confidence[row][chosen].astype(np.float64), samples.correct[row][chosen]
        total = 0.0
        for k in range(15):
            inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
            total += abs(confidence[inside].sum() - correct[inside].sum())
        return total / len(chosen)

    generator, differences = np.random.default_rng(5), []
    for _ in range(10):
        for weights in generator.multinomial(60, np.full(60, 1 / 60), size=100):
            chosen = np.repeat(np.arange(60), weights)
            cell = [metric(mine, row, chosen) - metric(theirs, row, chosen) for row in range(4)]
            differences.append(((cell[1] + cell[2]) / 2 + cell[3]) / 2)
    low, high = np.quantile(differences, [0.025, 0.975])
    assert found["corrupted", "ece"].low == pytest.approx(low, abs=1e-9)
    assert found["corrupted", "ece"].high == pytest.approx(high, abs=1e-9)


@pytest.mark.statistical
def test_interval_of_a_mean_has_the_width_of_the_central_limit() -> None:
    mine, theirs = draw(4, 4000), draw(5, 4000)
    found = image_intervals(mine, theirs, GROUPS, ["nll"], np.random.default_rng(0))["clean", "nll"]
    expected = 2 * 1.96 * np.std(mine.nll[0] - theirs.nll[0]) / np.sqrt(4000)
    # ends are quantiles of 1,000 draws: relative standard error of the width about 3 %; 4 of them
    assert found.high - found.low == pytest.approx(expected, rel=0.12)


def test_other_number_of_images_is_refused() -> None:
    with pytest.raises(ValueError, match="60 images against 61"):
        image_intervals(draw(0, 60), draw(0, 61), GROUPS, ["nll"], np.random.default_rng(0))


def test_one_seed_has_no_seed_interval() -> None:
    assert seed_interval([0.1]) is None


def test_samples_come_back_in_the_order_of_the_images(plan: Callable[..., list[Run]]) -> None:
    run, samples = plan()[0], draw(6, 20)
    keep(run, list(CELLS), samples.confidence, samples.correct, samples.nll)
    loaded = load_samples(run.directory, *run.test_outputs.values())
    assert loaded is not None and loaded.cells == CELLS
    for name in ("confidence", "correct", "nll"):
        assert np.array_equal(getattr(loaded, name), getattr(samples, name))
    assert load_samples(run.directory, "last") is None
