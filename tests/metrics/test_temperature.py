import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from chaosgate.metrics import fit_temperature, temperature_scaling
from chaosgate.metrics.temperature import fit_derivatives, scaled_scores


def validation_set(seed, n, classes, scale):
    """Logits whose calibrated temperature is about ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return scale * logits, target


@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.5, 1e4])
def test_scipy_finds_the_same_temperature(scale):
    n = 400
    logits, target = validation_set(0, n, 10, scale)
    fit = temperature_scaling(logits, target)

    def nll(log_t):
        z = logits.numpy() / math.exp(log_t)
        return float((logsumexp(z, axis=1) - z[range(n), target.numpy()]).mean())

    middle = math.log(scale)
    found = minimize_scalar(nll, bracket=(middle - 1, middle + 1), options={"xtol": 1e-11})
    # Near the minimum the NLL is flat, and scipy sees values, not slopes: good to the root of 1e-16
    assert math.log(fit.temperature) == pytest.approx(found.x, abs=1e-6)
    assert fit.nll_after == pytest.approx(found.fun, abs=1e-13)
    assert fit.nll_before == pytest.approx(nll(0.0), rel=1e-12)


def test_many_classes_and_margins_of_all_sizes_find_the_change_of_sign():
    # One class ahead of hundreds of equal ones: the slope is first convex, then concave, and plain
    # Newton steps leave the bracket from either side.
    random = np.random.default_rng(0)
    for _ in range(60):
        n, classes = int(random.integers(2, 6)), int(10 ** random.uniform(0.5, 3.3))
        logits, target = np.zeros((n, classes)), np.zeros(n, dtype=np.int64)
        logits[:, 0], target[0] = 10 ** random.uniform(-1, 3, n), 1

        def slope(b, z=logits, t=target):
            return float((softmax(b * z, axis=1) * z).sum(1).mean() - z[range(len(z)), t].mean())

        if slope(0.0) < 0:  # there is a best temperature
            inverse = 1 / fit_temperature(torch.from_numpy(logits), torch.from_numpy(target))
            assert slope(inverse * (1 - 1e-9)) < 0 < slope(inverse * (1 + 1e-9))


def test_data_without_a_best_temperature_are_refused():
    logits = torch.eye(3).repeat(2, 1)
    right = logits.argmax(1)
    for z, target, message in (
        (logits, right, "all 6 samples are classified correctly"),
        (logits, right.roll(1), "no higher logits than the average class"),
        (logits[:0], right[:0], "no sample to fit"),
        (logits, right + 3, "sample 0 has target 3"),
        *(
            (logits.masked_fill(logits == 1, bad), right, "sample 0 are not finite")
            for bad in (math.nan, math.inf, -math.inf)
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fit_temperature(z, target)


def test_derivatives_by_the_log_temperature_are_those_of_differences():
    logits, target = validation_set(6, 40, 5, 1.5)
    step, t = 1e-5, 1.7
    scores = scaled_scores(logits, target, t)
    up, down = (scaled_scores(logits, target, t * math.exp(sign * step)) for sign in (1, -1))
    probs = (logits / t).softmax(1)
    torch.testing.assert_close(scores.confidence, probs.amax(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(scores.nll, -probs[range(40), target].log(), rtol=1e-9, atol=1e-12)
    for name in ("confidence", "nll"):
        difference = (getattr(up, name) - getattr(down, name)) / (2 * step)
        slope = getattr(scores, f"{name}_slope")
        torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-8)
    slope, curvature = fit_derivatives(logits, target, t)
    # f'(b) is the derivative by b = 1/T: -T d/dlogT; the ratio of sums is a step of log T.
    torch.testing.assert_close(slope, -t * scores.nll_slope, rtol=1e-9, atol=1e-12)
    higher, _ = fit_derivatives(logits, target, t * math.exp(-step))
    lower, _ = fit_derivatives(logits, target, t * math.exp(step))
    torch.testing.assert_close(curvature, (higher - lower) / (2 * step), rtol=1e-6, atol=1e-8)
