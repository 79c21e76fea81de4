"""Realizations at extreme values; their formulas are in tests/paper/test_gate.py."""

import torch

from chaosgate.gate import samplewise, signed


def test_samplewise_has_mean_one_and_does_not_overflow():
    psi = 1e4 * torch.randn(4, 1, 7, 7, generator=torch.Generator().manual_seed(1))
    gate = samplewise(psi, 1.0)
    assert torch.isfinite(gate).all()
    assert torch.allclose(gate.mean((-2, -1)), torch.ones(4, 1), atol=1e-5)


def test_signed_gate_is_the_first_order_proxy():
    psi = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.equal(signed(psi, 0.3), 1 + 0.3 * psi)
