import pytest
import torch

from chaosgate.field import spectral
from chaosgate.field.spectral import Cosine, Hartley, Sine

from .oracle import close

KINDS = [Sine, Cosine, Hartley]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 31, 32, 113])
def test_bases_are_orthonormal_and_transforms_apply_them(kind, n, monkeypatch):
    basis = kind(n).basis()
    close(basis @ basis.T, torch.eye(n, dtype=torch.float64))
    coefficients = torch.randn(
        2, n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    for matmul_up_to, halved_from in [(10**9, 10**9), (10**9, 0), (0, 0)]:
        monkeypatch.setattr(kind, "matmul_up_to", matmul_up_to)
        monkeypatch.setattr(spectral, "HALVED_FROM", halved_from)
        line = kind(n)
        ordered = coefficients[:, line.order()]
        close(line.synthesize(ordered, line.constant()), basis @ coefficients)
        rows = ordered.mT.reshape(6, n, 1)  # as the last axis of a grid
        close(line.synthesize(rows, line.constant()).view(2, 3, n), (basis @ coefficients).mT)


def test_long_axes_are_as_exact_as_short_ones():
    # 1031 is long for every kind; one frequency is enough to see a phase that drifts.
    for kind in KINDS:
        line = kind(1031)
        assert not line.short
        one = torch.zeros(1, 1031, 1, dtype=torch.float64)
        one[:, 1000] = 1.0
        close(line.synthesize(one, line.constant())[0, :, 0], line.basis()[:, 1000])
