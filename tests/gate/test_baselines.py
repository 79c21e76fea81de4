import math

import pytest
import torch

from chaosgate.field.white import Noise, fold
from chaosgate.gate import (
    CorrelatedGaussian,
    DropBlock,
    Dropout,
    GaussianChaos,
    IIDGaussian,
    IIDLogNormal,
    SignedCorrelated,
)
from chaosgate.gate.dropout import block_coverage, drop_probability

KEY = torch.tensor(fold("baselines"))


def injected(gate, h, repeats):
    """Energy that each of many independent samples of the same features receives, (repeats, batch)."""
    many = h.repeat(repeats, 1, 1, 1)
    return (gate.perturb(many, Noise(KEY)) - many).double().square().sum((1, 2, 3)).view(repeats, -1)


def test_coverage_counts_the_seeds_of_a_plain_loop():
    for height, width, block in ((4, 7, 3), (5, 5, 4), (3, 6, 9), (1, 4, 2)):
        tall, wide = min(block, height), min(block, width)
        count = torch.zeros(height, width, dtype=torch.float64)
        for i in range(height):
            for j in range(width):
                rows = slice(max(0, i - (tall - 1) // 2), i + tall // 2 + 1)
                columns = slice(max(0, j - (wide - 1) // 2), j + wide // 2 + 1)
                count[rows, columns] += 1
        assert torch.equal(block_coverage((height, width), block), count)


@pytest.mark.parametrize("side", [4, 7, 14, 28])
@pytest.mark.parametrize("block", [1, 3, 5, 7])
def test_dropblock_marginal_averages_to_p(side, block):
    for p in (0.05, 0.1, 0.5):
        _, dropped = DropBlock(p, block).marginal((side, side))
        assert float(dropped.mean()) == pytest.approx(p, abs=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize("side", [4, 7])
@pytest.mark.parametrize("block", [1, 3, 4, 7])
def test_dropblock_samples_agree_with_the_marginal(side, block):
    gate = DropBlock(0.1, block)
    count = 20_000
    sampled = (gate.perturb(torch.ones(count, 1, side, side), Noise(KEY)) == 0).double()[:, 0]
    _, dropped = gate.marginal((side, side))
    error = (sampled.mean(0) - dropped).abs() / (dropped * (1 - dropped) / count).sqrt()
    assert float(error.max()) < 4.5  # up to 49 sites at 4.5 standard errors: one false alarm in 3,000 keys
    per_map = sampled.mean((1, 2))
    assert abs(float(per_map.mean()) - 0.1) < 4 * float(per_map.std()) / math.sqrt(count)


def test_dropblock_drops_whole_blocks_and_has_mean_one():
    gate = DropBlock(0.1, 3)
    y = gate.perturb(torch.ones(500, 2, 9, 9), Noise(KEY))
    assert torch.equal(y[:, 0], y[:, 1])
    zero = (y[:, 0] == 0).float()
    # a dropped site is inside a dropped 3x3 block, itself cut only at the border
    eroded = 1 - torch.nn.functional.max_pool2d(1 - torch.nn.functional.pad(zero, (1, 1, 1, 1), value=1.0), 3, stride=1)
    grown = torch.nn.functional.max_pool2d(eroded, 3, stride=1, padding=1)
    assert torch.equal(grown, zero)
    _, dropped = gate.marginal((9, 9))
    kept = y[:, 0].max(0).values.double()
    assert torch.allclose(kept, 1 / (1 - dropped), rtol=1e-6)


def test_dropblock_follows_a_dial():
    gate = DropBlock(0.4, 3)
    gate.dial = torch.tensor(0.5)
    assert float(gate.marginal((6, 6))[1].mean()) == pytest.approx(0.2, abs=1e-6)
    assert float(drop_probability(block_coverage((6, 6), 3), gate.marginal((6, 6))[0]).mean()) == pytest.approx(
        0.2, abs=1e-6
    )


@pytest.mark.statistical
def test_dropout_keeps_with_probability_q_and_has_mean_one():
    y = Dropout(0.3).perturb(torch.ones(200, 10, 10, 10), Noise(KEY))
    assert torch.unique(y).numel() == 2
    share = float((y == 0).double().mean())
    assert abs(share - 0.3) < 4 * math.sqrt(0.21 / y.numel())
    assert float(y.max()) == pytest.approx(1 / 0.7)
    sites = Dropout(0.3, mask="site").perturb(torch.ones(50, 10, 10, 10), Noise(KEY))
    assert torch.equal(sites[:, :1].expand_as(sites), sites)


FEATURES = torch.rand(16, 6, 7, 7, generator=torch.Generator().manual_seed(5)) ** 3


@pytest.mark.statistical
@pytest.mark.parametrize(
    "gate",
    [
        GaussianChaos(log_std=0.6),
        GaussianChaos(log_std=0.6, alpha=0.5, channels="independent"),
        GaussianChaos(log_std=0.6, realization="wick"),
        Dropout(0.2),
        DropBlock(0.2, 3),
        IIDGaussian(0.5),
        CorrelatedGaussian(0.5),
        IIDLogNormal(0.6),
        SignedCorrelated(0.5),
    ],
    ids=lambda gate: type(gate).__name__,
)
def test_expected_energy_is_what_samples_inject(gate):
    count = 600
    energy = injected(gate, FEATURES, count).sum(1)
    expected = float(gate.expected_energy(FEATURES).sum())
    # five standard errors of this sample, plus half a per cent for the estimate of the sample-wise gate
    assert abs(float(energy.mean()) - expected) < 5 * float(energy.std()) / math.sqrt(count) + 5e-3 * expected


@pytest.mark.statistical
@pytest.mark.parametrize(
    "matched", [IIDGaussian, CorrelatedGaussian, IIDLogNormal, SignedCorrelated], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("reference", [GaussianChaos(log_std=0.5), Dropout(0.1)], ids=["chaos", "dropout"])
def test_matched_gates_inject_the_energy_of_their_reference(matched, reference):
    gate = matched(match=reference)
    assert torch.allclose(gate.expected_energy(FEATURES), reference.expected_energy(FEATURES))
    count = 600
    energy = injected(gate, FEATURES, count).sum(1)
    target = float(reference.expected_energy(FEATURES).sum())
    assert float(energy.mean()) == pytest.approx(target, rel=0.01 + 4 * float(energy.std()) / math.sqrt(count) / target)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dropout(1.0), r"\[0, 1\)"),
        (lambda: Dropout(-0.1), r"\[0, 1\)"),
        (lambda: Dropout(float("nan")), r"\[0, 1\)"),
        (lambda: Dropout(0.0), "drops nothing"),
        (lambda: Dropout(0.1, mask="pixel"), "element"),
        (lambda: DropBlock(1.0), r"\[0, 1\)"),
        (lambda: DropBlock(0.1, 0), "block_size"),
        (lambda: DropBlock(0.1, 2.5), "block_size"),
        (lambda: IIDGaussian(), "exactly one of sigma and match"),
        (lambda: IIDGaussian(0.1, match=Dropout(0.1)), "exactly one"),
        (lambda: IIDGaussian(-0.1), "> 0"),
        (lambda: CorrelatedGaussian(float("inf")), "finite"),
        (lambda: IIDLogNormal(0.0), "> 0"),
        (lambda: SignedCorrelated(), "exactly one"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
