"""The explorer's numbers, computed once more from their definitions."""

import math
from functools import cache

import torch

from chaosgate.compat import random_pairs
from chaosgate.compat.exploration import explore
from chaosgate.compat.observables import pair_differences
from chaosgate.field import DirichletLaplacian, Identity
from chaosgate.field.white import Noise, advance, fold

N = 6
FEATURE = torch.rand(N, N, generator=torch.Generator().manual_seed(3)) + 0.1


@cache
def found():
    operators = {"dirichlet": DirichletLaplacian(), "identity": Identity()}
    return explore({N: FEATURE}, operators, [0.5])


def test_every_shown_number_follows_from_its_definition():
    operator = found()["operators"]["dirichlet"][str(N)]
    green = torch.linalg.inv(DirichletLaplacian().matrix((N, N)))
    green /= green.diagonal().mean()
    middle = green[N // 2 * N + N // 2].view(N, N).float()
    assert torch.allclose(operator["kernel"], middle, atol=1e-6)
    spectrum = torch.linalg.eigvalsh(green).flip(0)
    assert torch.allclose(torch.tensor(operator["spectrum"]).double(), spectrum, rtol=1e-6)

    kinds = found()["settings"]["dirichlet"][str(N)]["0.5"]
    psi = 0.5 * operator["field"]
    assert torch.allclose(kinds["samplewise"]["gch"]["gate"], psi.exp() / psi.exp().mean())
    variance = 0.25 * green.diagonal().view(N, N)
    assert torch.allclose(kinds["wick"]["gch"]["gate"], (psi - variance.float() / 2).exp())
    power = FEATURE.double().square()
    closed = float((torch.expm1(variance) * power).sum() / power.sum())
    assert math.isclose(kinds["wick"]["gch"]["expected_energy"], closed, rel_tol=1e-6)


def test_predicted_orderings_are_those_of_the_paper():
    methods = found()["settings"]["identity"][str(N)]["0.5"]["samplewise"]
    pairs = random_pairs(N * N, 256, Noise(advance(torch.tensor(fold(0, N)), 0)))
    margin = pair_differences(FEATURE.log(), pairs).abs().double()
    # Phi(delta / sqrt(tau R_G)); the identity has R_G = 2, and tau is log_std^2
    expected = float(torch.special.ndtr(margin / math.sqrt(2 * 0.25)).mean())
    assert math.isclose(methods["gch"]["ranking_predicted"], expected, rel_tol=1e-6)
    assert math.isclose(methods["gch"]["ranking"], expected, abs_tol=0.01)
    assert methods["dropout"]["ranking_predicted"] == 1 - methods["dropout"]["strength"]["p"]
    assert methods["dropblock"]["ranking_predicted"] is None and methods["gch"]["finite"] == 1
