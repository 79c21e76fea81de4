"""The design step: the paper's desiderata give its gate, other sets give others or an error."""

import copy
import math
from functools import partial

import pytest
import torch

import chaosgate as cg
from chaosgate.field import (
    CovarianceMatrix,
    DirichletLaplacian,
    Identity,
    Massive,
    Matern,
    MaxEntLaw,
    Neumann,
    Periodic,
    Pinned,
    StudentT,
)
from chaosgate.field.white import Noise
from chaosgate.gate import (
    Additive,
    DesignError,
    GaussianChaos,
    Plain,
    SampleWise,
    Signed,
    Wick,
    design,
)

GRID = (7, 7)
D = DirichletLaplacian()
SITE = {"no_drift": "site", "coherence": D, "gamma": 0.5}
SIGNED = {"positive": False, "coherence": D, "gamma": 0.5}
HEAVY = {
    "least_information": False,
    "family": StudentT,
    "coherence": D,
    "gamma": 0.5,
}


def output(gate, grid=GRID):
    h = torch.linspace(-1, 2, 2 * 3 * math.prod(grid)).view(2, 3, *grid)
    return gate.perturb(h, Noise(torch.tensor(5)))


@pytest.mark.parametrize("no_drift", ["site", "sample"])
@pytest.mark.parametrize(
    "strength", [{"gamma": 0.5, "epsilon": 24.5}, {"gamma": -0.3}, {"log_std": 1.0}]
)
def test_the_paper_s_desiderata_give_its_gate_bit_for_bit(no_drift, strength):
    given = {"budget" if name == "epsilon" else name: value for name, value in strength.items()}
    found = cg.design(GRID, no_drift=no_drift, coherence=D, **given)
    shortcut = GaussianChaos(realization="wick" if no_drift == "site" else "samplewise", **strength)
    assert torch.equal(output(found.gate), output(shortcut))
    nominal = shortcut.nominal(GRID)
    assert {name: found.numbers[name] for name in nominal} == pytest.approx(nominal)


def test_the_derivation_says_what_fixed_every_part_and_the_numbers():
    found = design(GRID, budget=24.5, **SITE)
    assert set(found.admissible.fixed) == {"D1", "D2", "D3", "D4", "D5"}
    q = D.matrix(GRID)
    assert found.numbers["beta"] == 1.0 and found.numbers["tau"] == 0.25  # n / 2 eps, gamma^2/beta
    entropy = 0.5 * (49 * math.log(2 * math.pi * math.e) - float(torch.logdet(q)))
    assert found.numbers["entropy"] == pytest.approx(entropy)
    log_std = 0.5 * math.sqrt(float(torch.linalg.inv(q).diagonal().mean()))
    assert found.numbers["log_std"] == pytest.approx(log_std)
    card = str(found)
    assert all(step.choice in card and step.statement in card for step in found.steps)


@pytest.mark.parametrize(
    ("operator", "gauge", "gauged"),
    [
        (Massive(Neumann(), 0.3), None, None),
        (Neumann(), "zero mean", None),
        (Periodic(), "zero mean", None),
        (Periodic(), "pinned", Pinned(Periodic(), [0, 0])),
        (CovarianceMatrix(Matern(2.0).covariance(GRID)), None, None),
    ],
    ids=repr,
)
def test_other_operators_kernels_and_gauges_give_their_own_gates(operator, gauge, gauged):
    found = design(GRID, no_drift="sample", coherence=operator, log_std=0.7, gauge=gauge)
    expected = GaussianChaos(log_std=0.7, operator=gauged or operator)
    assert torch.equal(output(found.gate), output(expected))
    assert found.numbers["rank"] == (gauged or operator).rank(GRID)


@pytest.mark.parametrize("degrees", [5, 30])
def test_another_family_admits_the_samplewise_gate_alone(degrees):
    asked = {**HEAVY, "family": partial(StudentT, degrees=degrees)}
    found = design(GRID, no_drift="sample", **asked)
    law = StudentT(D, GRID, degrees=degrees)
    assert torch.equal(output(found.gate), output(cg.Mechanism(law, SampleWise(0.5))))
    gap = MaxEntLaw(D, GRID).entropy() - law.entropy()
    assert found.numbers["entropy_gap"] == pytest.approx(gap) and gap > 0
    with pytest.raises(ValueError, match="infinite. Use SampleWise"):
        design(GRID, no_drift="site", **asked)


def test_without_positivity_the_signed_gate_or_the_sum_follows():
    assert design(GRID, injection="multiplicative", **SIGNED).gate.realization == Signed(0.5)
    added = design(GRID, injection="additive", **SIGNED).gate
    assert (added.realization, added.injection) == (Plain(0.5), Additive())


def test_the_designed_gate_serves_other_grids_and_can_be_copied():
    more = {"log_std": 1.0, "channels": "independent", "alpha": 0.5}
    copied = copy.deepcopy(design(GRID, no_drift="sample", coherence=D, **more).gate)
    assert torch.equal(output(copied, (5, 9)), output(GaussianChaos(**more), (5, 9)))
    with pytest.raises(ValueError, match="constant one"):
        design((1, 1), no_drift="sample", coherence=D, gamma=1.0)


@pytest.mark.parametrize(
    ("asked", "desiderata"),
    [
        ({"no_drift": "site", "gamma": 1.0}, "D4"),
        ({**SITE, "least_information": False}, "D1"),
        ({"coherence": D, "gamma": 1.0}, "D3"),
        ({**SITE, "coherence": Neumann()}, "D5"),
        ({"coherence": D, "no_drift": "site"}, "strength"),
        (SIGNED, "injection"),
        ({**SITE, "injection": "additive"}, "D2 injection"),
        ({**SIGNED, "injection": "multiplicative", "no_drift": "sample"}, "D3 D2"),
        ({**SITE, "coherence": Periodic(), "gauge": "boundary"}, "D5 D4"),
        ({**SITE, "coherence": Pinned(Neumann(), [0, 0]), "gauge": "zero mean"}, "D5 D4"),
        ({"coherence": D, "no_drift": "site", "log_std": 1.0, "budget": 3.0}, "log_std budget"),
        ({**SITE, "family": StudentT}, "D1 family"),
    ],
)
def test_contradictory_and_incomplete_desiderata_are_named(asked, desiderata):
    with pytest.raises(DesignError, match="^" + " and ".join(desiderata.split()) + " (is|excl)"):
        design(GRID, **asked)


def test_the_admissible_class_tests_laws_and_samples():
    grid = (3, 4)
    admissible = design(grid, budget=6.0, **SITE).admissible
    best = MaxEntLaw(D, grid, epsilon=6.0)
    assert best in admissible and MaxEntLaw(D, grid, epsilon=5.9) not in admissible
    heavy = StudentT(D, grid, epsilon=6.0)
    found = admissible.membership(heavy)
    assert not found.member and found.energy == pytest.approx(1)
    assert found.entropy_gap == pytest.approx(best.entropy() - heavy.entropy())
    samples = best.sample(40_000, torch.Generator().manual_seed(0))
    assert samples in admissible
    assert 1.03 * samples not in admissible and samples + 0.1 not in admissible
    white = MaxEntLaw(Identity(), grid, epsilon=6.0)
    scale = 6.0 / float(0.5 * (D.matrix(grid) * white.covariance).sum())
    fields = white.sample(40_000, torch.Generator().manual_seed(0)) * math.sqrt(scale)
    found = admissible.membership(fields)
    gap = best.entropy() - white.entropy() - 6 * math.log(scale)
    assert not found.member and found.entropy_gap == pytest.approx(gap, rel=0.02)
    freer = design(grid, no_drift="sample", budget=6.0, **HEAVY).admissible
    assert heavy in freer and fields in freer and MaxEntLaw(D, grid, epsilon=5) not in freer
    assert [type(gate.realization) for gate in admissible] == [Wick]  # the shipped members
    assert all(torch.isfinite(output(gate, grid)).all() for gate in freer)
