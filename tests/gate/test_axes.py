"""Gates on sequences (B, C, L), planes (B, C, H, W) and volumes (B, C, D, H, W)."""

import pytest
import torch

import chaosgate as cg
from chaosgate.field.white import Noise, fold
from chaosgate.gate import IIDLogNormal, SignedCorrelated

GRIDS = [(9,), (4, 5), (3, 4, 2)]
GATES = [
    lambda: cg.GaussianChaos(log_std=0.7),
    lambda: cg.GaussianChaos(log_std=0.7, realization="wick", channels="independent", alpha=0.5),
    lambda: cg.Dropout(0.3),
    lambda: cg.Dropout(0.3, mask="site"),
    lambda: cg.DropBlock(0.3, block_size=2),
    lambda: cg.IIDGaussian(0.4),
    lambda: cg.CorrelatedGaussian(0.4),
    lambda: IIDLogNormal(0.5),
    lambda: SignedCorrelated(0.5),
    lambda: cg.CorrelatedGaussian(match=cg.GaussianChaos(log_std=0.7)),
    lambda: cg.IIDGaussian(match=cg.DropBlock(0.3)),
    lambda: SignedCorrelated(match=cg.Dropout(0.3)),
]


def features(grid, batch=2, channels=3):
    return torch.randn(batch, channels, *grid, generator=torch.Generator().manual_seed(0)).abs()


def injected(gate, h, draws=2000):
    """Energy that the gate really injects per sample, with its standard error."""
    many = h.repeat(draws, *[1] * (h.ndim - 1))  # samples draw independently
    moved = gate.perturb(many, Noise(torch.tensor(fold("measured")))) - many
    found = moved.square().flatten(1).sum(1).view(draws, len(h))
    return found.mean(0), found.std(0) / draws**0.5


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("make", GATES)
def test_gates_keep_shape_and_are_the_identity_in_evaluation(make, grid):
    gate, h = make(), features(grid)
    gate.check(grid)
    out = gate(h)
    assert out.shape == h.shape and out.dtype == h.dtype and not torch.equal(out, h)
    assert gate.eval()(h) is h
    assert gate.expected_energy(h).shape == (2,)
    assert gate.train()(h[:0]).shape == (0, 3, *grid)  # an empty batch is a batch


@pytest.mark.statistical
@pytest.mark.parametrize("factor", [None, 0.5])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("make", GATES)
def test_expected_energy_is_what_is_injected_whatever_the_factor(make, grid, factor):
    gate, h = make(), features(grid)
    gate.factor = None if factor is None else torch.tensor(factor)
    measured, error = injected(gate, h)
    # five standard errors, and one per cent for the estimated second moments of sample-wise gates
    assert ((gate.expected_energy(h) - measured).abs() < 5 * error + 0.01 * measured).all()


def test_a_matched_gate_follows_the_factor_of_its_partner():
    h, partner = features((4, 5)), cg.GaussianChaos(log_std=1.0)
    gate = cg.IIDGaussian(match=cg.GaussianChaos(log_std=1.0))
    for factor in (torch.tensor(0.25), torch.tensor(1.0), None):
        gate.factor = partner.factor = factor
        torch.testing.assert_close(gate.expected_energy(h), partner.expected_energy(h))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("log_std", [0.5, 3.0])
def test_energy_at_a_factor_is_that_of_the_weaker_gate(grid, log_std):
    """The same fixed draws, so what differs is the interpolation between Chebyshev nodes alone."""
    gate = cg.GaussianChaos(log_std=log_std)
    for factor in (1e-3, 0.1, 0.37, 0.9, 1.0):
        gate.factor = torch.tensor(factor)
        weaker = cg.GaussianChaos(log_std=log_std * factor).site_energy(grid)
        # at 1e-3 the energy itself, 1e-6, is a difference of float32 numbers near one
        torch.testing.assert_close(gate.site_energy(grid), weaker, rtol=1e-3, atol=0)


def test_other_layouts_and_integer_features_are_refused():
    for gate in (cg.GaussianChaos(log_std=1.0), cg.Dropout(0.1), cg.DropBlock(0.1)):
        for h in (torch.ones(4, 8), torch.ones(2, 3, 4, 4, dtype=torch.uint8)):
            with pytest.raises(ValueError, match="real maps .batch, channel"):
                gate(h)
