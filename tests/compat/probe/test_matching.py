"""Gates at equal energy, and what the paper predicts for a gate."""

import math

import pytest
import torch

from chaosgate.compat import all_pairs, green_metric, log_ratio_deformation, matched_gates
from chaosgate.compat.probe.evidence import chaos_operator, keep_probability, log_ratio_law, pair_variances
from chaosgate.compat.probe.matching import METHODS, power_map
from chaosgate.field import Anisotropic, DirichletLaplacian, Massive, MaxEntLaw, Neumann, Operator
from chaosgate.field.white import Noise
from chaosgate.gate import Dropout, Gate, GaussianChaos, IIDLogNormal, Mechanism, SampleWise


def features(batch: int = 512) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    h = torch.randn(batch, 2, 5, 6, generator=generator).relu()
    return h * torch.linspace(0.2, 3.0, 30).view(5, 6)  # strong in one corner, so that the place of the noise matters


@pytest.mark.statistical
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("energy", [0.05, 0.6])
def test_every_method_injects_the_energy_that_was_asked_for(method: str, energy: float) -> None:
    h = features()
    gate = matched_gates(h, energy, [method])[method]
    draws = [gate.perturb(h, Noise(torch.tensor(i))) for i in range(24)]
    injected = torch.stack([(d - h).double().square().sum() for d in draws]) / h.double().square().sum()
    # The scatter between draws says how far the mean of 24 may be off; half a per cent is the matching's own estimate.
    assert abs(float(injected.mean()) - energy) < 5 * float(injected.std()) / math.sqrt(24) + 0.005 * energy


def test_matching_looks_at_where_the_features_are() -> None:
    inner = torch.zeros(1, 1, 7, 7)
    inner[..., 3, 3] = 1.0
    corner = torch.zeros(1, 1, 7, 7)
    corner[..., 0, 0] = 1.0
    strengths = [matched_gates(h, 0.3, ["gch_wick"])["gch_wick"].nominal((7, 7))["log_std"] for h in (inner, corner)]
    variance = DirichletLaplacian().variance((7, 7))  # the Wick gate injects exp(gamma^2 v) - 1 at a site
    assert strengths[0] / strengths[1] == pytest.approx(math.sqrt(variance[0, 0] / variance[3, 3]), rel=1e-6)


def test_power_map_sums_over_images_and_channels() -> None:
    h = features(3)
    torch.testing.assert_close(power_map(h), h.double().square().sum(0).sum(0))


@pytest.mark.parametrize(
    ("energy", "methods", "message"),
    [
        (0.0, ["dropout"], "positive share"),
        (0.1, ["dropot"], "Did you mean 'dropout'"),
        (0.1, ["gch", "gch"], "once"),
        (1e9, ["gch"], "cannot inject"),
    ],
)
def test_what_cannot_be_matched_is_said(energy: float, methods: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matched_gates(features(2), energy, methods)


def test_features_that_are_all_zero_cannot_be_matched() -> None:
    with pytest.raises(ValueError, match="zero everywhere"):
        matched_gates(torch.zeros(1, 1, 4, 4), 0.1)


@pytest.mark.parametrize("operator", [DirichletLaplacian(), Massive(Neumann(), 0.2), Anisotropic(3.0, 0.5), Neumann()])
def test_pair_variances_are_the_green_metric(operator: Operator) -> None:
    pairs = all_pairs(28)
    torch.testing.assert_close(
        pair_variances(operator, (4, 7), pairs), green_metric(operator.green((4, 7)), pairs), rtol=1e-10, atol=1e-12
    )


def test_pair_variances_on_a_grid_larger_than_one_piece_of_the_basis() -> None:
    pairs = torch.tensor([[0, 1], [0, 899], [450, 451]])
    found = pair_variances(DirichletLaplacian(), (30, 30), pairs)
    torch.testing.assert_close(found, green_metric(DirichletLaplacian().green((30, 30)), pairs))


@pytest.mark.statistical
@pytest.mark.parametrize("realization", ["samplewise", "wick"])
def test_the_law_of_log_ratios_is_that_of_the_gate(realization: str) -> None:
    gate = GaussianChaos(log_std=0.8, realization=realization)  # type: ignore[arg-type]
    pairs = torch.tensor([[0, 12], [7, 8], [12, 24]])
    operator = chaos_operator(gate, (5, 5))
    assert operator is not None
    for dial in (None, torch.tensor(0.5)):
        gate.dial = dial
        law = log_ratio_law(gate, (5, 5), pairs, pair_variances(operator, (5, 5), pairs))
        ones = torch.ones(40_000, 1, 5, 5)
        found = log_ratio_deformation(ones, gate.perturb(ones, Noise(torch.tensor(5))), pairs)[:, 0].double()
        z = (found.mean(0) - law.mean) / (law.variance / len(ones)).sqrt()
        assert float(z.abs().max()) < 4.5
        torch.testing.assert_close(found.var(0), law.variance, rtol=4.5 * math.sqrt(2 / len(ones)), atol=0)


@pytest.mark.parametrize(
    "gate",
    [
        Dropout(0.2),
        GaussianChaos(log_std=1.0, alpha=0.5),
        GaussianChaos(log_std=1.0, base_size=[3, 3]),
        IIDLogNormal(match=Dropout(0.2)),
    ],
    ids=lambda gate: type(gate).__name__,
)
def test_no_law_is_claimed_where_the_theorem_does_not_apply(gate: Gate) -> None:
    assert chaos_operator(gate, (5, 5)) is None
    with pytest.raises(ValueError, match="no law of log-ratios"):
        log_ratio_law(gate, (5, 5), all_pairs(25), torch.zeros(300))


def test_a_mechanism_made_by_hand_has_the_law_of_its_operator() -> None:
    law = MaxEntLaw(Massive(DirichletLaplacian(), 1.0), (3, 3), beta=2.0)
    assert chaos_operator(Mechanism(law, SampleWise(0.4)), (3, 3)) is law.operator


def test_keep_probability_follows_the_schedule() -> None:
    gate = Dropout(0.4)
    assert keep_probability(gate) == pytest.approx(0.6)
    gate.dial = torch.tensor(0.25)
    assert keep_probability(gate) == pytest.approx(0.9)
    assert keep_probability(GaussianChaos(log_std=1.0)) is None
