"""Intervals against closed forms, against a resampling written out by hand, and against refitted
temperatures."""

from dataclasses import replace
from math import isclose, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import digamma, polygamma

from chaosgate.metrics import (
    calibration_bins,
    calibration_error,
    classification_scores,
    fit_temperature,
)
from chaosgate.metrics.aggregate import Cell
from chaosgate.metrics.temperature import fit_derivatives, scaled_scores
from chaosgate.run.outputs import Samples, ScaledSamples
from chaosgate.study.report.inference import (
    RESAMPLES,
    ece_floor,
    interval_of,
    prior,
    resample,
)

CLEAN = Cell("clean", 0)
CELLS = (CLEAN, Cell("fog", 1), Cell("fog", 5), Cell("snow", 1))
GROUPS = {"clean": [[CLEAN]], "corrupted": [[CELLS[1], CELLS[2]], [CELLS[3]]]}


def draw(seed: int, images: int = 300) -> Samples:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.1, 1.0, (4, images)).astype(np.float32)
    correct = generator.random((4, images)) < confidence - 0.05
    nll = generator.exponential(1.0, confidence.shape).astype(np.float32)
    return Samples(CELLS, confidence, correct, nll, np.arange(images, dtype=np.int32))


def test_noise_floor_is_that_of_its_formula() -> None:
    samples, variance = draw(0), np.zeros(15)
    for c in samples.confidence[0].astype(np.float64):
        variance[max(int(np.ceil(c * 15)) - 1, 0)] += c * (1 - c)
    mean, _ = ece_floor(samples.confidence, CELLS, GROUPS["clean"])
    assert mean == pytest.approx(np.sqrt(2 * variance / np.pi).sum() / 300, rel=1e-12)


def test_draws_are_those_of_a_resampling_by_hand() -> None:
    samples = draw(2, 60)

    def metric(row: int, chosen: np.ndarray) -> float:
        confidence = samples.confidence[row][chosen].astype(np.float64)
        correct, total = samples.correct[row][chosen], 0.0
        for k in range(15):
            inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
            total += abs(confidence[inside].sum() - correct[inside].sum())
        return total / len(chosen)

    generator = np.random.default_rng(60)
    pieces = [generator.integers(60, size=(100, 60)) for _ in range(RESAMPLES // 100)]
    by_hand = [
        ((metric(1, one) + metric(2, one)) / 2 + metric(3, one)) / 2
        for one in np.concatenate(pieces)
    ]
    found = resample(samples, GROUPS, ["ece"])["corrupted", "ece"]
    assert np.allclose(found[1:], by_hand, atol=1e-9)


SHARED = 0.03**2 + 0.04**2 * np.eye(3)  # errors that all seeds share, and errors of each
COMMON = 0.01 * np.exp(np.euler_gamma)  # the prior of three variances of 0.01; psi(1) = -gamma


@pytest.mark.parametrize(
    ("differences", "more", "middle", "half", "over"),
    [
        ([0.1, 0.2, 0.3], {}, 0.2, 4.302653 * 0.1 / sqrt(3), "seeds"),
        (
            [0.1, 0.2, 0.3],
            {"covariance": SHARED},
            0.2,
            sqrt((4.302653 * 0.1) ** 2 / 3 + (1.959964 * 0.03) ** 2),
            "seeds and images",
        ),
        (  # one common variance: d0 = 1, so t_3
            [0.1, 0.2, 0.3],
            {"variances": [0.01] * 3},
            0.2,
            3.1824463 * sqrt((COMMON + 2 * 0.01) / 3 / 3),
            "seeds",
        ),
        (  # the bias is taken off, and widens the interval
            [0.010],
            {"covariance": np.array([[1e-6]]), "bias": 0.004},
            0.006,
            1.959964e-3 + 0.004,
            "these two networks",
        ),
    ],
)
def test_interval_is_that_of_the_formula(
    differences: list[float], more: dict[str, Any], middle: float, half: float, over: str
) -> None:
    found = interval_of(differences, **more)
    assert (found["lo"], found["hi"]) == pytest.approx((middle - half, middle + half), rel=1e-6)
    assert found["over"] == over and ("p" in found) == (len(differences) > 1)
    assert interval_of([0.1]) == interval_of([0.1, np.nan]) == {}


@pytest.mark.parametrize("center", [0.02, 0.3, 1.5])
def test_p_value_is_where_the_interval_touches_zero(center: float) -> None:
    differences, covariance = [center + one for one in (-0.02, 0.03, 0.005)], np.eye(3) * 1e-4
    p = interval_of(differences, covariance, 0.005)["p"]
    touching = interval_of(differences, covariance, 0.005, level=1 - p)
    assert touching["lo"] == pytest.approx(0, abs=1e-6) and 0 < p < 1
    within_the_bias = interval_of([0.004, 0.005, 0.006], covariance, 0.003)
    assert isclose(within_the_bias["p"], 1.0)


def test_prior_is_that_of_smyths_moments_and_is_bounded() -> None:
    df, d0, s0 = 4, 3.0, 0.02
    spread = sqrt(polygamma(1, df / 2) + polygamma(1, d0 / 2))  # of the logarithms
    middle = np.log(s0) + digamma(df / 2) - np.log(df / 2) - digamma(d0 / 2) + np.log(d0 / 2)
    variances = np.exp(middle + spread * sqrt(7 / 8) * np.array([-1.0, 1.0] * 4))
    assert prior(list(variances), df) == pytest.approx((d0, s0), rel=1e-9)
    assert prior([0.02, 0.02], df)[0] == pytest.approx(df / 3)
    assert prior([s0 * np.exp(-4), s0 * np.exp(4)], df)[0] < 0.6  # they differ by far: no help
    for few in ([], [0.1], [0.1, 0.0]):  # nothing to learn from; zero has no logarithm
        assert prior(few, df) == (0.0, 0.0)


@pytest.mark.statistical
def test_interval_of_scaled_metrics_includes_the_fit_of_the_temperature() -> None:
    """Draw validation and test images, refit T on logits, compute NLL and ECE anew."""
    generator = torch.Generator().manual_seed(0)

    def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = 3 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
        return logits, torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)

    (val, val_target), (test, target) = images(150), images(1000)
    temperature = fit_temperature(val, val_target)
    per_image = torch.stack(scaled_scores(test, target, temperature)).float().numpy()[:, None]
    fit = (one.float().numpy() for one in fit_derivatives(val, val_target, temperature))
    correct, index = (test.argmax(1) == target).numpy()[None], np.arange(1000, dtype=np.int32)
    scaled = ScaledSamples(per_image, *fit)
    samples = Samples((CLEAN,), per_image[0], correct, per_image[1], index, scaled)
    found = resample(samples, {"clean": [[CLEAN]]}, ["nll_T", "ece_T"])
    drawn, again = np.random.default_rng(1), []
    for _ in range(400):
        i, j = (torch.from_numpy(drawn.integers(n, size=n)) for n in (150, 1000))
        scores = classification_scores(test[j] / fit_temperature(val[i], val_target[i]), target[j])
        ece = calibration_error(calibration_bins(scores.confidence, scores.rank < 1, 15))
        again.append((float(scores.nll.mean()), float(ece)))
    # standard deviations from 400 draws each: 5 % of their ratio; 3 of them, and first order in T
    for metric, expected in zip(("nll_T", "ece_T"), np.std(again, axis=0), strict=True):
        assert found["clean", metric][1:].std() == pytest.approx(expected, rel=0.15)
    fixed = replace(samples, scaled=replace(scaled, slope=np.zeros(150, np.float32)))
    without = resample(fixed, {"clean": [[CLEAN]]}, ["ece_T"])["clean", "ece_T"]
    assert without[1:].std() < 0.9 * found["clean", "ece_T"][1:].std()  # the fit matters here
