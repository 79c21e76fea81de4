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
