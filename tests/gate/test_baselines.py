"""Baselines: sampled masks and wrong arguments; their formulas are in tests/paper."""

import math

import pytest
import torch

from chaosgate.field.white import Noise, fold
from chaosgate.gate import (
    CorrelatedGaussian,
    DropBlock,
    Dropout,
    IIDGaussian,
    IIDLogNormal,
    SignedCorrelated,
)

KEY = torch.tensor(fold("baselines"))


@pytest.mark.statistical
@pytest.mark.parametrize("side", [4, 7])
@pytest.mark.parametrize("block", [1, 3, 4, 7])
def test_dropblock_samples_agree_with_the_marginal(side, block):
    gate = DropBlock(0.1, block)
    count = 20_000
    sampled = (gate.perturb(torch.ones(count, 1, side, side), Noise(KEY)) == 0).double()[:, 0]
    _, dropped = gate.marginal((side, side))
    error = (sampled.mean(0) - dropped).abs() / (dropped * (1 - dropped) / count).sqrt()
    assert (
        float(error.max()) < 4.5
    )  # up to 49 sites at 4.5 standard errors: one false alarm in 3,000 keys
    per_map = sampled.mean((1, 2))
    assert abs(float(per_map.mean()) - 0.1) < 4 * float(per_map.std()) / math.sqrt(count)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dropout(1.0), r"\(0, 1\)"),
        (lambda: Dropout(float("nan")), r"\(0, 1\)"),
        (lambda: Dropout(0.0), "gate to null"),
        (lambda: Dropout(0.1, mask="pixel"), "element"),
        (lambda: DropBlock(1.0), r"\(0, 1\)"),
        (lambda: DropBlock(0.1, 0), "block_size"),
        (lambda: DropBlock(0.1, 2.5), "block_size"),
        (lambda: IIDGaussian(), "exactly one of sigma and match"),
        (lambda: IIDGaussian(0.1, match=Dropout(0.1)), "exactly one"),
        (lambda: IIDGaussian(-0.1), "positive"),
        (lambda: CorrelatedGaussian(float("inf")), "finite"),
        (lambda: IIDLogNormal(0.0), "positive"),
        (lambda: SignedCorrelated(), "exactly one"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
