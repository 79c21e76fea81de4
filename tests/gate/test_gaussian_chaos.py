"""Gates of a mechanism: precision, layout, gradient, wrong arguments, extreme values."""

import pytest
import torch

from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw
from chaosgate.field.white import Noise, fold
from chaosgate.gate import (
    CorrelatedGaussian,
    DropBlock,
    Dropout,
    GaussianChaos,
    IIDGaussian,
    Mechanism,
    Multiplicative,
    SampleWise,
    Wick,
    samplewise,
)


def noise():
    return Noise(torch.tensor(fold("h")))


def test_wick_gate_is_legitimate_on_one_site_and_samplewise_is_not():
    GaussianChaos(log_std=1.0, realization="wick").check((1, 1))
    with pytest.raises(ValueError, match="constant one"):
        GaussianChaos(log_std=1.0).check((1, 1))


def test_samplewise_has_mean_one_and_does_not_overflow():
    psi = 1e4 * torch.randn(4, 1, 7, 7, generator=torch.Generator().manual_seed(1))
    gate = samplewise(psi, 1.0)
    assert torch.isfinite(gate).all()
    assert torch.allclose(gate.mean((-2, -1)), torch.ones(4, 1), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_features_get_a_float32_field(dtype):
    gate = GaussianChaos(log_std=1.0)
    exact = gate.perturb(torch.ones(2, 1, 7, 7), noise())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = gate.perturb(torch.ones(2, 1, 7, 7, dtype=dtype), noise())
    assert coarse.dtype == dtype
    assert torch.equal(coarse, exact.to(dtype))


def test_channels_last_stays_and_backward_multiplies_by_the_gate():
    h = torch.rand(2, 8, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    for gate in (GaussianChaos(log_std=1.0), DropBlock(0.1)):
        out = gate(h)
        assert out.is_contiguous(memory_format=torch.channels_last)
        (gradient,) = torch.autograd.grad(out.sum(), h)
        assert torch.allclose(gradient, (out / h).detach(), rtol=1e-5)


def test_a_user_can_assemble_another_mechanism():
    gate = Mechanism(
        lambda grid: MaxEntLaw(Massive(DirichletLaplacian(), 0.5), grid, beta=1.0),
        Wick(0.4),
        Multiplicative(0.5),
    )
    assert gate(torch.ones(2, 3, 4, 5)).shape == (2, 3, 4, 5)
    assert "Wick(gamma=0.4)" in repr(gate)
    fixed = Mechanism(MaxEntLaw(DirichletLaplacian(), (7, 7), beta=1.0), SampleWise(1.0))
    with pytest.raises(ValueError, match="grid 7x7, the features on 4x4"):
        fixed(torch.ones(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianChaos(), "exactly one of gamma and log_std"),
        (lambda: GaussianChaos(gamma=float("nan")), "finite"),
        (lambda: GaussianChaos(log_std=0.0), "positive"),
        (lambda: GaussianChaos(log_std=1.0, beta=2.0), "drop beta"),
        (lambda: GaussianChaos(gamma=0.1, base_size=[0, 3]), "a grid is"),
        (lambda: Dropout(1.0), r"\(0, 1\)"),
        (lambda: Dropout(0.0), "gate to null"),
        (lambda: IIDGaussian(), "exactly one of sigma and match"),
        (lambda: CorrelatedGaussian(float("inf")), "finite"),
    ],
)
def test_bad_arguments_are_refused_at_construction(build, message):
    with pytest.raises(ValueError, match=message):
        build()
