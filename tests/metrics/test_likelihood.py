import math

import pytest
import torch
from torch.nn import functional as F

from chaosgate.metrics import NegativeLogLikelihood


def test_it_is_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(200, 30, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 30, (200,), generator=generator)
    metric = NegativeLogLikelihood()
    for rows in torch.arange(200).split(33):
        metric.update(logits[rows], target[rows])
    torch.testing.assert_close(metric.compute(), F.cross_entropy(logits, target), rtol=0, atol=1e-13)


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
