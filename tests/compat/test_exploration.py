"""The explorer's numbers, computed once more: those with a closed form, and those that the shown
draw implies.
"""

import math
from functools import cache
from typing import Any

import torch

from chaosgate.compat import random_pairs
from chaosgate.compat.exploration import explore
from chaosgate.compat.observables import pair_differences
from chaosgate.field import DirichletLaplacian, Identity
from chaosgate.field.white import Noise, advance, fold

N = 6


def feature() -> torch.Tensor:
    return torch.rand(N, N, generator=torch.Generator().manual_seed(3)) + 0.1


@cache
def found() -> dict[str, Any]:
    return explore(
        {N: feature()}, {"dirichlet": DirichletLaplacian(), "identity": Identity()}, [0.5]
    )


def test_every_shown_number_follows_from_its_definition():
    data = found()
    operator = data["operators"]["dirichlet"][str(N)]
    green = torch.linalg.inv(DirichletLaplacian().matrix((N, N)))
    mean_variance = float(green.diagonal().mean())
    middle = N // 2 * N + N // 2
    assert torch.allclose(
        operator["kernel"].double(), green[middle].view(N, N) / mean_variance, atol=1e-6
    )
    spectrum = torch.linalg.eigvalsh(green / mean_variance).flip(0)
    assert torch.allclose(torch.tensor(operator["spectrum"]).double(), spectrum, rtol=1e-6)

    samplewise, wick = (
        data["settings"]["dirichlet"][str(N)]["0.5"][kind] for kind in ("samplewise", "wick")
    )
    psi = 0.5 * operator["field"]
    assert torch.allclose(samplewise["gch"]["gate"], psi.exp() / psi.exp().mean(), rtol=1e-5)
    variance = 0.25 * green.diagonal().view(N, N).float() / mean_variance
    assert torch.allclose(wick["gch"]["gate"], (psi - variance / 2).exp(), rtol=1e-5)
    power = feature().double().square()
    closed = float((torch.expm1(variance.double()) * power).sum() / power.sum())
    assert math.isclose(wick["gch"]["expected_energy"], closed, rel_tol=1e-6)


def test_masks_have_the_energy_of_the_gate():
    for kind, methods in found()["settings"]["dirichlet"][str(N)]["0.5"].items():
        energy = methods["gch"]["expected_energy"]
        p = methods["dropout"]["strength"]["p"]
        assert math.isclose(p / (1 - p), energy, rel_tol=1e-9), kind
        for (
            name,
            reading,
        ) in (
            methods.items()
        ):  # measured on about 3,600 draws: 10 % is more than five standard errors
            assert math.isclose(reading["energy"], energy, rel_tol=0.1), (kind, name)


def test_predicted_orderings_are_those_of_the_paper():
    """Phi(delta / sqrt(tau R_G)) for the sample-wise gate, 1 - p for dropout, averaged over the
    same pairs.
    """
    methods = found()["settings"]["identity"][str(N)]["0.5"]["samplewise"]
    pairs = random_pairs(N * N, 256, Noise(advance(torch.tensor(fold(0, N)), 0)))
    margin = pair_differences(feature().log(), pairs).abs().double()
    expected = float(
        torch.special.ndtr(margin / math.sqrt(2 * 0.25)).mean()
    )  # identity: R_G = 2, tau = log_std^2
    assert math.isclose(methods["gch"]["ranking_predicted"], expected, rel_tol=1e-6)
    assert math.isclose(methods["gch"]["ranking"], expected, abs_tol=0.01)
    assert methods["dropout"]["ranking_predicted"] == 1 - methods["dropout"]["strength"]["p"]
    assert methods["dropblock"]["ranking_predicted"] is None and methods["gch"]["finite"] == 1
