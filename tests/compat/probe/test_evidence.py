"""Log-geometry behind a gate, measured and predicted, on maps whose shape makes every term of the prediction count."""

import math

import pytest
import torch

from chaosgate.compat import all_pairs, grid_graph
from chaosgate.compat.probe.evidence import MOST_EDGES, Evidence, chaos_operator, log_ratio_law, ratio_metric
from chaosgate.field.white import Noise
from chaosgate.gate import GaussianChaos

GRID = (5, 4)


def bump(batch: int) -> torch.Tensor:
    """Strong in the middle, where the field is strong too: the Wick correction then works against the evidence."""
    rows, columns = (torch.linspace(-1, 1, side) for side in GRID)
    return (-2 * (rows[:, None] ** 2 + columns**2)).exp().expand(batch, 1, *GRID).contiguous()


@pytest.mark.statistical
@pytest.mark.parametrize("realization", ["samplewise", "wick"])
def test_predictions_agree_with_measurements(realization: str) -> None:
    gate = GaussianChaos(log_std=0.9, realization=realization)  # type: ignore[arg-type]
    h = bump(20_000)
    evidence = Evidence(h, all_pairs(20), grid_graph(GRID))
    operator = chaos_operator(gate, GRID)
    assert operator is not None
    metric = ratio_metric(operator, GRID, evidence.pairs, evidence.edges)
    laws = [log_ratio_law(gate, GRID, *part) for part in (metric.pairs, metric.edges)]
    predicted = evidence.under_law(*laws)
    measured = evidence.measured([gate.perturb(h, Noise(torch.tensor(3)))])
    # 20,000 independent gates: the numbers of a single gate scatter by less than their own size, their mean by 0.7 %.
    assert measured["deformation"] == pytest.approx(predicted["deformation_predicted"], rel=0.015)
    assert measured["ranking"] == pytest.approx(predicted["ranking_predicted"], abs=0.005)
    assert measured["added_roughness"] == pytest.approx(predicted["added_roughness_predicted"], rel=0.03)
    assert measured["finite"] == predicted["finite_predicted"] == 1.0


def test_the_wick_correction_costs_evidence_that_the_samplewise_gate_leaves_alone() -> None:
    rankings = []
    for realization in ("samplewise", "wick"):
        gate = GaussianChaos(log_std=1.5, realization=realization)  # type: ignore[arg-type]
        evidence = Evidence(bump(1), all_pairs(20), grid_graph(GRID))
        operator = chaos_operator(gate, GRID)
        assert operator is not None
        metric = ratio_metric(operator, GRID, evidence.pairs, evidence.edges)
        laws = [log_ratio_law(gate, GRID, *part) for part in (metric.pairs, metric.edges)]
        rankings.append(evidence.under_law(*laws)["ranking_predicted"])
    assert rankings[1] < rankings[0]


def test_maps_without_two_positive_sites_have_no_log_geometry() -> None:
    h = torch.zeros(2, 1, *GRID)
    h[0, 0, 0, 0] = 1.0
    evidence = Evidence(h, all_pairs(20), grid_graph(GRID))
    assert all(math.isnan(value) for value in evidence.margins())
    assert all(math.isnan(value) for value in evidence.measured([h]).values())


def test_ties_are_no_orderings() -> None:
    evidence = Evidence(torch.ones(1, 1, *GRID), all_pairs(20), grid_graph(GRID))
    measured = evidence.measured([bump(1)])
    assert math.isnan(measured["ranking"]) and measured["finite"] == 1.0


def test_roughness_is_read_at_no_more_edges_than_needed() -> None:
    evidence = Evidence(torch.ones(1, 1, 40, 40), torch.tensor([[0, 1]]), grid_graph((40, 40)))
    assert MOST_EDGES / 2 < len(evidence.edges) <= MOST_EDGES
    kinds = (evidence.edges[:, 1] - evidence.edges[:, 0]).unique().tolist()
    assert kinds == [1, 40]  # edges along both axes


def test_signed_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Evidence(-bump(1), all_pairs(20), grid_graph(GRID))
