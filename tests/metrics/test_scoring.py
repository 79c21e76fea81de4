import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from chaosgate.metrics import BrierScore, NegativeLogLikelihood


def test_it_is_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(200, 30, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 30, (200,), generator=generator)
    metric = NegativeLogLikelihood()
    for rows in torch.arange(200).split(33):
        metric.update(logits[rows], target[rows])
    torch.testing.assert_close(
        metric.compute(), F.cross_entropy(logits, target), rtol=0, atol=1e-13
    )


def test_a_confident_mistake_has_a_finite_nll():
    # log(softmax) gives minus infinity here, in float32 from a margin of about 104 on.
    metric = NegativeLogLikelihood()
    metric.update(torch.tensor([[0.0, 1e4]]), torch.tensor([0]))
    assert float(metric.compute()) == 1e4


@pytest.mark.parametrize(
    "row, seen", [([math.nan, 0], math.nan), ([math.inf, 0], math.nan), ([-math.inf, 0], math.inf)]
)
def test_non_finite_logits_are_visible(row, seen):
    metric = NegativeLogLikelihood()
    metric.update(torch.tensor([row, [1.0, 2.0]]), torch.tensor([0, 0]))
    assert float(metric.compute()) == pytest.approx(seen, nan_ok=True)


def test_targets_out_of_range_are_refused():
    with pytest.raises(ValueError, match="sample 0 has target 2"):
        NegativeLogLikelihood().update(torch.zeros(1, 2), torch.tensor([2]))


def sample(seed: int, n: int = 300, classes: int = 4, scale: float = 2.0):
    generator = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.multinomial(probs.sqrt(), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("scale", [0.0, 0.1, 2.0, 50.0])
@pytest.mark.parametrize("num_bins", [1, 2, 15, 100])
def test_the_five_terms_add_up_to_the_score(scale, num_bins):
    metric = BrierScore(4, num_bins)
    metric.update(*sample(0, scale=scale))
    d = metric.decomposition()
    total = d.reliability - d.resolution + d.uncertainty + d.within_variance - d.within_covariance
    torch.testing.assert_close(total, d.score, rtol=0, atol=1e-13)
    assert torch.equal(d.score, metric.compute())


def test_terms_agree_with_their_definition_sample_by_sample():
    probs, target = sample(1)
    metric = BrierScore(4, num_bins=10)
    metric.update(probs, target)
    p, y = probs.numpy(), np.eye(4)[target.numpy()]
    n = len(p)
    expected = dict.fromkeys(
        ("reliability", "resolution", "uncertainty", "within_variance", "within_covariance"), 0.0
    )
    for k in range(4):
        rate = y[:, k].mean()
        expected["uncertainty"] += rate * (1 - rate)
        for m in range(10):
            inside = (p[:, k] > m / 10) & (p[:, k] <= (m + 1) / 10)
            if not inside.any():
                continue
            pm, ym = p[inside, k], y[inside, k]
            expected["reliability"] += len(pm) / n * (pm.mean() - ym.mean()) ** 2
            expected["resolution"] += len(pm) / n * (ym.mean() - rate) ** 2
            expected["within_variance"] += ((pm - pm.mean()) ** 2).sum() / n
            expected["within_covariance"] += 2 * ((pm - pm.mean()) * (ym - ym.mean())).sum() / n
    ours = metric.decomposition()._asdict()
    assert float(ours.pop("score")) == pytest.approx(((p - y) ** 2).sum(1).mean(), abs=1e-13)
    for name, value in expected.items():
        assert float(ours[name]) == pytest.approx(value, abs=1e-13), name


def test_equal_forecasts_need_only_murphys_three_terms():
    probs = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64).repeat(50, 1)
    target = torch.randint(0, 2, (100,), generator=torch.Generator().manual_seed(0))
    metric = BrierScore(2)
    metric.update(probs, target)
    d = metric.decomposition()
    assert abs(d.within_variance) < 1e-14 and abs(d.within_covariance) < 1e-14
    torch.testing.assert_close(
        d.reliability - d.resolution + d.uncertainty, d.score, rtol=0, atol=1e-14
    )


def test_batch_split_changes_no_bit():
    probs, target = sample(2)
    whole, parts = BrierScore(4), BrierScore(4)
    whole.update(probs, target)
    for rows in torch.randperm(300, generator=torch.Generator().manual_seed(1)).split(7):
        parts.update(probs[rows], target[rows])
    for ours, expected in zip(parts.decomposition(), whole.decomposition(), strict=True):
        assert torch.equal(ours, expected)


def test_another_number_of_classes_is_refused():
    with pytest.raises(ValueError, match="probs have 4 classes; the metric was made for 3"):
        BrierScore(3).update(*sample(0))
