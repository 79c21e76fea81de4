"""Intervals against closed forms, against a resampling written out by hand, and against refitted
temperatures."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch

from chaosgate.metrics import (
    calibration_bins,
    calibration_error,
)
from chaosgate.run.outputs import Samples, ScaledSamples
from chaosgate.study.report.inference import (
    RESAMPLES,
    Interval,
    ece_floor,
    holm,
    interval_of,
    prior,
    resample,
)

CELLS = (("clean", 0), ("fog", 1), ("fog", 5), ("snow", 1))
GROUPS = {"clean": [[CELLS[0]]], "corrupted": [[CELLS[1], CELLS[2]], [CELLS[3]]]}


def draw(seed: int, images: int = 300, cells: tuple[tuple[str, int], ...] = CELLS) -> Samples:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.1, 1.0, (len(cells), images)).astype(np.float32)
    correct = generator.random((len(cells), images)) < confidence - 0.05
    nll = generator.exponential(1.0, confidence.shape).astype(np.float32)
    return Samples(cells, confidence, correct, nll, np.arange(images, dtype=np.int32))


def interval(stars: list[np.ndarray], biased: bool = False) -> Interval | None:
    """From the difference of every seed as measured, then for every resampling."""
    drawn = np.stack(stars)
    bias = float(drawn[:, 1:].mean() - drawn[:, 0].mean()) if biased else 0.0
    return interval_of(list(drawn[:, 0]), np.atleast_2d(np.cov(drawn[:, 1:])), bias)


@pytest.mark.parametrize("bins", [5, 15, 40])
def test_intervals_and_floor_have_the_bins_of_the_study(bins: int) -> None:
    samples = draw(0)
    confidence, correct = (
        torch.from_numpy(values[0]) for values in (samples.confidence, samples.correct)
    )
    expected = float(calibration_error(calibration_bins(confidence.double(), correct, bins)))
    assert resample(samples, GROUPS, ["ece"], bins)["clean", "ece"][0] == pytest.approx(
        expected, abs=1e-12
    )
    variance = np.zeros(bins)
    for c in samples.confidence[0].astype(np.float64):
        variance[max(int(np.ceil(c * bins)) - 1, 0)] += c * (1 - c)
    mean, _ = ece_floor(samples.confidence, CELLS, GROUPS["clean"], bins)
    assert mean == pytest.approx(np.sqrt(2 * variance / np.pi).sum() / 300, rel=1e-12)


def test_images_are_drawn_together_in_all_cells_and_for_both_methods() -> None:
    mine = draw(1)
    shifted = replace(mine, nll=mine.nll + np.float32(0.25))
    a, b = (resample(one, GROUPS, ["nll", "top1"]) for one in (mine, shifted))
    for part in GROUPS:  # a constant difference stays constant, however the images are drawn
        assert np.allclose(a[part, "nll"] - b[part, "nll"], -0.25, atol=1e-6)
        assert np.array_equal(a[part, "top1"], b[part, "top1"])


def test_draws_are_those_of_a_resampling_by_hand() -> None:
    samples = draw(2, 60)
    found = resample(samples, GROUPS, ["ece"])["corrupted", "ece"]

    def metric(row: int, chosen: np.ndarray) -> float:
        confidence, correct = (
            samples.confidence[row][chosen].astype(np.float64),
            samples.correct[row][chosen],
        )
        total = 0.0
        for k in range(15):
            inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
            total += abs(confidence[inside].sum() - correct[inside].sum())
        return total / len(chosen)

    generator = np.random.default_rng(60)
    chosen = np.concatenate(
        [generator.integers(60, size=(100, 60)) for _ in range(RESAMPLES // 100)]
    )
    by_hand = [((metric(1, one) + metric(2, one)) / 2 + metric(3, one)) / 2 for one in chosen]
    assert np.allclose(found[1:], by_hand, atol=1e-9)


def test_images_common_to_all_seeds_add_to_the_spread_over_seeds() -> None:
    generator = np.random.default_rng(0)
    shared, own = generator.normal(0, 0.03, 401), generator.normal(0, 0.04, (3, 401))
    own[:, 0] = np.array([0.1, 0.2, 0.3]) - shared[0]
    found = interval([shared + one for one in own])
    assert found is not None and found.over == "seeds and images"
    covariances = np.cov(shared[1:] + own[:, 1:])
    pairs = covariances[
        np.triu_indices(3, 1)
    ].mean()  # what all seeds share, and nothing of what is a seed's own
    assert found.image_error == pytest.approx(sqrt(pairs), rel=1e-9)
    half = sqrt((4.302653 * 0.1 / sqrt(3)) ** 2 + (1.959964 * found.image_error) ** 2)
    assert found.half_width() == pytest.approx(half, rel=1e-6)
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-6)


def test_bias_is_taken_off_and_widens_the_interval() -> None:
    stars = np.concatenate(([0.010], 0.014 + np.random.default_rng(0).normal(0, 1e-3, 400)))
    found = interval([stars], biased=True)
    bias = stars[1:].mean() - 0.010
    assert found is not None and found.center == pytest.approx(0.010 - bias)
    assert found.half_width() == pytest.approx(1.959964 * stars[1:].std(ddof=1) + bias, rel=1e-6)


@pytest.mark.parametrize("center", [0.02, 0.3, 1.5])
def test_p_value_is_where_the_interval_touches_zero(center: float) -> None:
    found = Interval(center, 0.02, 0.01, 0.005, 3, "seeds and images", 4.0)
    assert found.half_width(1 - found.p_value) == pytest.approx(center, rel=1e-6)
    assert (
        Interval(0.004, 0.02, 0.01, 0.005, 3, "seeds and images", 4.0).p_value == 1.0
    )  # within the bias


def test_moderated_interval_is_that_of_the_formula() -> None:
    """One common variance: d0 has its bound, and the scale is the geometric mean without its
    bias."""
    differences, variances = [0.1, 0.2, 0.3], [0.01, 0.01, 0.01]
    d0, scale = prior(variances, 2)  # psi(1) = -gamma
    assert d0 == 2 * (3 - 1) / (3 + 1) and scale == pytest.approx(
        0.01 * np.exp(np.euler_gamma), rel=1e-12
    )
    found = interval_of(differences, variances=variances)
    expected = 3.1824463 * sqrt((0.01 * np.exp(np.euler_gamma) + 2 * 0.01) / 3 / 3)  # t_3
    assert (
        found is not None
        and found.df == 3
        and found.half_width() == pytest.approx(expected, rel=1e-6)
    )


def test_prior_is_that_of_smyths_moments_and_is_bounded() -> None:
    from scipy.special import digamma, polygamma

    df, d0, s0 = 4, 3.0, 0.02
    spread = sqrt(
        polygamma(1, df / 2) + polygamma(1, d0 / 2)
    )  # of the logarithms, by Smyth's equation
    middle = np.log(s0) + digamma(df / 2) - np.log(df / 2) - digamma(d0 / 2) + np.log(d0 / 2)
    variances = np.exp(middle + spread * sqrt(7 / 8) * np.array([-1.0, 1.0] * 4))
    assert prior(list(variances), df) == pytest.approx((d0, s0), rel=1e-9)
    assert prior([0.02, 0.02], df)[0] == pytest.approx(df / 3)
    wide = np.exp(np.log(s0) + np.array([-4.0, 4.0]))  # variances that differ by far are no help
    assert prior(list(wide), df)[0] < 0.6
    for few in (
        [],
        [0.1],
        [0.1, 0.0],
    ):  # nothing to learn from; a variance of zero has no logarithm
        assert prior(few, df) == (0.0, 0.0)


def test_holm_is_the_step_down_of_its_definition() -> None:
    assert holm({"a": 0.001, "b": 0.02, "c": 0.03, "d": 0.2}) == {"a"}
    assert holm({"a": 0.001, "b": 0.016, "c": 0.024, "d": 0.04}) == {"a", "b", "c", "d"}
    assert holm({}) == set()


@pytest.mark.statistical
def test_interval_of_scaled_metrics_includes_the_fit_of_the_temperature() -> None:
    """Against the real thing: draw validation and test images, refit T on logits, compute NLL and
    ECE anew."""
    from chaosgate.metrics import classification_scores, fit_temperature

    generator = torch.Generator().manual_seed(0)

    def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = 3 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
        return logits, torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)

    (val, val_target), (test, target) = images(150), images(1000)
    temperature = fit_temperature(val, val_target)
    samples = scaled_samples(test, target, val, val_target, temperature)
    found = resample(samples, {"clean": [[("clean", 0)]]}, ["nll_T", "ece_T"])
    numpy_generator, nlls, eces = np.random.default_rng(1), [], []
    for _ in range(400):
        i = torch.from_numpy(numpy_generator.integers(150, size=150))
        j = torch.from_numpy(numpy_generator.integers(1000, size=1000))
        scores = classification_scores(test[j] / fit_temperature(val[i], val_target[i]), target[j])
        nlls.append(float(scores.nll.mean()))
        eces.append(
            float(calibration_error(calibration_bins(scores.confidence, scores.rank < 1, 15)))
        )
    # two standard deviations from 400 draws each: 5 % of their ratio; 3 of them, and the first
    # order in T
    assert found["clean", "nll_T"][1:].std() == pytest.approx(np.std(nlls), rel=0.15)
    assert found["clean", "ece_T"][1:].std() == pytest.approx(np.std(eces), rel=0.15)
    fixed = replace(samples.scaled, slope=np.zeros(150, np.float32))
    without = resample(replace(samples, scaled=fixed), {"clean": [[("clean", 0)]]}, ["ece_T"])[
        "clean", "ece_T"
    ]
    assert (
        without[1:].std() < 0.9 * found["clean", "ece_T"][1:].std()
    )  # the fit matters in this example


def scaled_samples(
    test: torch.Tensor,
    target: torch.Tensor,
    val: torch.Tensor,
    val_target: torch.Tensor,
    temperature: float,
) -> Samples:
    """Scores and slopes by automatic differentiation, one cell."""
    log_t = torch.full(
        (len(test),), float(np.log(temperature)), dtype=torch.float64, requires_grad=True
    )
    probabilities = (test / log_t.exp()[:, None]).softmax(1)
    top, nll = probabilities.amax(1), -probabilities.gather(1, target[:, None]).squeeze(1).log()
    slopes = [torch.autograd.grad(one.sum(), log_t, retain_graph=True)[0] for one in (top, nll)]
    inverse = torch.full((len(val),), 1 / temperature, dtype=torch.float64, requires_grad=True)
    fitted = torch.nn.functional.cross_entropy(val * inverse[:, None], val_target, reduction="none")
    (slope,) = torch.autograd.grad(fitted.sum(), inverse, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), inverse)
    per_image = np.stack(
        [one.detach().numpy().astype(np.float32)[None] for one in (top, nll, *slopes)]
    )
    scaled = ScaledSamples(per_image, slope.detach().numpy(), second.numpy() / temperature)
    plain = test.softmax(1)
    correct = (plain.argmax(1) == target).numpy()[None]
    index = np.arange(len(test), dtype=np.int32)
    return Samples(
        (("clean", 0),), plain.amax(1).numpy()[None], correct, per_image[1], index, scaled
    )


def test_one_seed_without_outputs_has_no_interval() -> None:
    assert interval_of([0.1]) is None
