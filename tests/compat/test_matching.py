"""Gates at equal energy."""

import math

import pytest
import torch

from chaosgate.compat.matching import METHODS, matched_gates, power_map
from chaosgate.field import DirichletLaplacian


def features(*grid, batch=8):
    """Strong in one corner, so that the place of the noise matters."""
    h = torch.randn(batch, 2, *grid, generator=torch.Generator().manual_seed(2)).relu()
    return h * torch.linspace(0.2, 3.0, math.prod(grid)).view(grid)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grid", [(30,), (5, 6), (3, 2, 5)])
def test_every_method_reports_the_energy_that_was_asked_for(method, grid):
    h = features(*grid).double()
    for energy in (0.05, 0.6):
        gate = matched_gates(h, energy, [method])[method]
        found = float(gate.expected_energy(h).sum() / h.square().sum())
        # The sample-wise gate has no closed form: two estimates agree to one percent.
        assert found == pytest.approx(energy, rel=0.01 if method == "gch" else 1e-6)


def test_matching_takes_into_account_where_the_features_are():
    maps = torch.eye(49).view(49, 1, 1, 7, 7)[[0, 24]]
    gates = [matched_gates(h, 0.3, ["gch_wick"])["gch_wick"] for h in maps]
    corner, middle = (gate.nominal((7, 7))["log_std"] for gate in gates)
    variance = DirichletLaplacian().variance((7, 7))  # exp(gamma^2 v) - 1 is injected at a site
    expected = math.sqrt(variance[0, 0] / variance[3, 3])
    assert middle / corner == pytest.approx(expected, rel=1e-6)
    h = features(5, 6)
    torch.testing.assert_close(power_map(h), h.double().square().sum(0).sum(0))


def test_what_cannot_be_matched_is_refused():
    for h, energy, method, message in (
        (features(5, 6), 0.0, "dropout", "must be positive"),
        (features(5, 6), 0.1, "dropot", "no method 'dropot'. Available: dropout"),
        (features(5, 6), 1e9, "gch", "cannot inject"),
        (torch.zeros(1, 1, 4, 4), 0.1, "gch", "zero everywhere"),
    ):
        with pytest.raises(ValueError, match=message):
            matched_gates(h, energy, [method])
