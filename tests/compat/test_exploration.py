"""The explorer's numbers, computed once more from their definitions."""

import math

import torch

from chaosgate.compat.exploration import explore
from chaosgate.field import DirichletLaplacian

N = 6


def test_every_shown_number_follows_from_its_definition():
    feature = torch.rand(N, N, generator=torch.Generator().manual_seed(3)) + 0.1
    found = explore({N: feature}, {"dirichlet": DirichletLaplacian()}, [0.5])
    operator = found["operators"]["dirichlet"][str(N)]
    green = torch.linalg.inv(DirichletLaplacian().matrix((N, N)))
    green /= green.diagonal().mean()
    middle = green[N // 2 * N + N // 2].view(N, N).float()
    assert torch.allclose(operator["kernel"], middle, atol=1e-6)
    spectrum = torch.linalg.eigvalsh(green).flip(0)
    assert torch.allclose(torch.tensor(operator["spectrum"]).double(), spectrum, rtol=1e-6)

    kinds = found["settings"]["dirichlet"][str(N)]["0.5"]
    psi = 0.5 * operator["field"]
    assert torch.allclose(kinds["samplewise"]["gch"]["gate"], psi.exp() / psi.exp().mean())
    variance = 0.25 * green.diagonal().view(N, N)
    assert torch.allclose(kinds["wick"]["gch"]["gate"], (psi - variance.float() / 2).exp())
    power = feature.double().square()
    closed = float((torch.expm1(variance) * power).sum() / power.sum())
    assert math.isclose(kinds["wick"]["gch"]["expected_energy"], closed, rel_tol=1e-6)
