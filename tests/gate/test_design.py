"""The design step: the paper's desiderata give its gate, other sets give others or are refused by
name.
"""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch

import chaosgate as cg
from chaosgate.field import (
    Anisotropic,
    CovarianceMatrix,
    DirichletLaplacian,
    Graph,
    Identity,
    Massive,
    Matern,
    MaxEntLaw,
    Neumann,
    Operator,
    Periodic,
    Pinned,
    StudentT,
)
from chaosgate.field.white import Noise
from chaosgate.gate import (
    Additive,
    DesignError,
    Gate,
    GaussianChaos,
    Plain,
    SampleWise,
    Signed,
    Wick,
    design,
)

GRID = (7, 7)
D = DirichletLaplacian()


def output(gate: Gate, grid: tuple[int, int] = GRID) -> torch.Tensor:
    h = torch.linspace(-1, 2, 2 * 3 * math.prod(grid)).view(2, 3, *grid)
    return gate.perturb(h, Noise(torch.tensor(5)))


@pytest.mark.parametrize("no_drift", ["site", "sample"])
@pytest.mark.parametrize(
    "strength",
    [{"gamma": 0.5, "epsilon": 24.5}, {"gamma": -0.3}, {"log_std": 1.0}],
    ids=["budget", "gamma", "log_std"],
)
def test_the_paper_s_desiderata_give_its_gate_bit_for_bit(
    no_drift: Any, strength: dict[str, float]
) -> None:
    given = {"budget" if name == "epsilon" else name: value for name, value in strength.items()}
    found = cg.design(GRID, no_drift=no_drift, coherence=DirichletLaplacian(), **given)
    shortcut = GaussianChaos(realization="wick" if no_drift == "site" else "samplewise", **strength)
    assert torch.equal(output(found.gate), output(shortcut))
    nominal = shortcut.nominal(GRID)
    assert {name: found.numbers[name] for name in nominal} == pytest.approx(nominal)


def test_the_derivation_names_what_fixed_every_part_and_the_numbers() -> None:
    found = design(GRID, no_drift="site", coherence=DirichletLaplacian(), budget=24.5, gamma=0.5)
    assert [step.part for step in found.steps] == [
        "law F",
        "kernel K",
        "gauge",
        "realisation",
        "injection T",
    ]
    reasons = [step.because for step in found.steps]
    assert [d for reason in reasons for d in ("D1", "D2", "D3", "D4", "D5") if d in reason] == [
        *("D1", "D4", "D4", "D5"),
        *("D2", "D3", "D2"),
    ]
    q = DirichletLaplacian().matrix(GRID)
    assert (
        found.numbers["beta"] == 1.0 and found.numbers["tau"] == 0.25
    )  # n / 2 eps, gamma^2 / beta
    entropy = 0.5 * (49 * math.log(2 * math.pi * math.e) - float(torch.logdet(q)))
    assert found.numbers["entropy"] == pytest.approx(entropy)
    assert found.numbers["log_std"] == pytest.approx(
        0.5 * math.sqrt(float(torch.linalg.inv(q).diagonal().mean()))
    )
    card = str(found)
    assert (
        all(step.choice in card and step.statement in card for step in found.steps)
        and "still free:" in card
    )


@pytest.mark.parametrize(
    ("operator", "gauge"),
    [
        (Massive(Neumann(), 0.3), None),
        (Anisotropic(2.0, 0.5), "boundary"),
        (Neumann(), "zero mean"),
        (Periodic(), "zero mean"),
        (Identity(), None),
        (Graph([[x, x + 1] for x in range(48)], pinned=4), None),
    ],
    ids=repr,
)
def test_other_operators_and_gauges_give_their_own_gates(operator: Operator, gauge: Any) -> None:
    found = design(GRID, no_drift="sample", coherence=operator, log_std=0.7, gauge=gauge)
    assert torch.equal(output(found.gate), output(GaussianChaos(log_std=0.7, operator=operator)))
    assert found.numbers["rank"] == operator.rank(GRID)


@pytest.mark.parametrize("operator", [Neumann(), Periodic()], ids=repr)
@pytest.mark.parametrize("pin", [None, [3, -1]])
def test_a_pinned_site_is_a_gauge(operator: Operator, pin: Any) -> None:
    found = design(GRID, no_drift="site", coherence=operator, gamma=0.5, gauge="pinned", pin=pin)
    expected = GaussianChaos(
        gamma=0.5, realization="wick", operator=Pinned(operator, pin or [0, 0])
    )
    assert torch.equal(output(found.gate), output(expected))
    assert found.numbers["rank"] == 48 and "held at zero" in found.steps[2].choice
    again = design(
        GRID, no_drift="site", coherence=Pinned(operator, pin or [0, 0]), gamma=0.5
    )  # it brings its gauge
    assert again.steps[2] == found.steps[2]


def test_a_kernel_is_given_by_a_class_a_function_or_a_matrix() -> None:
    matern = Matern(2.0)
    matrix = matern.covariance(GRID)
    for kernel in (matern, lambda distance: torch.exp(-distance / 2), matrix, matrix.tolist()):
        found = design(GRID, no_drift="sample", kernel=kernel, gamma=0.5)
        torch.testing.assert_close(
            output(found.gate), output(GaussianChaos(gamma=0.5, operator=matern))
        )
        assert found.steps[1].choice.startswith("K / beta with K = ")
    as_budget = design(GRID, no_drift="sample", coherence=CovarianceMatrix(matrix), gamma=0.5)
    assert as_budget.numbers == pytest.approx(found.numbers)


@pytest.mark.parametrize("degrees", [5, 30])
def test_another_family_admits_the_samplewise_gate_alone(degrees: int) -> None:
    family = partial(StudentT, degrees=degrees)
    asked: dict[str, Any] = {
        "least_information": False,
        "family": family,
        "coherence": D,
        "gamma": 0.5,
    }
    found = design(GRID, no_drift="sample", **asked)
    law = StudentT(DirichletLaplacian(), GRID, degrees=degrees)
    assert torch.equal(output(found.gate), output(cg.Mechanism(law, SampleWise(0.5))))
    gap = MaxEntLaw(DirichletLaplacian(), GRID).entropy() - law.entropy()
    assert found.numbers["entropy_gap"] == pytest.approx(gap) and gap > 0
    assert (
        found.steps[0].choice.startswith(f"Student-t, {degrees} degrees")
        and "without D1" in found.steps[0].because
    )
    with pytest.raises(DesignError, match="infinite at any strength.*no_drift='sample'") as refused:
        design(GRID, no_drift="site", **asked)
    assert refused.value.desiderata == ("D3", "family")
    signed = design(
        GRID, positive=False, injection="additive", **asked
    )  # a field of mean zero needs no normalisation
    assert signed.gate.realization == Plain(0.5)


def test_a_family_of_ones_own_is_asked_whether_it_has_an_exponential_moment() -> None:
    class Shuffled(MaxEntLaw):
        family = "Gaussian, of one's own"

    found = design(
        GRID,
        least_information=False,
        family=Shuffled,
        no_drift="site",
        coherence=Identity(),
        log_std=1.0,
    )
    assert found.numbers["entropy_gap"] == 0 and isinstance(found.gate.law(GRID), Shuffled)  # type: ignore[operator]


def test_without_positivity_the_signed_gate_or_the_sum_follows() -> None:
    signed = design(
        GRID, positive=False, injection="multiplicative", coherence=DirichletLaplacian(), gamma=0.5
    )
    added = design(
        GRID, positive=False, injection="additive", coherence=DirichletLaplacian(), gamma=0.5
    )
    assert signed.gate.realization == Signed(0.5)
    assert added.gate.realization == Plain(0.5) and added.gate.injection == Additive()
    assert any("signed" in text for text in signed.free)


def test_the_designed_gate_serves_other_grids_and_can_be_copied() -> None:
    found = design(
        GRID,
        no_drift="sample",
        coherence=DirichletLaplacian(),
        log_std=1.0,
        channels="independent",
        alpha=0.5,
    )
    copied = copy.deepcopy(found.gate)
    expected = GaussianChaos(log_std=1.0, channels="independent", alpha=0.5)
    assert torch.equal(output(copied, (5, 9)), output(expected, (5, 9)))
    assert found.gate.realization == SampleWise(1.0)


@pytest.mark.parametrize(
    ("asked", "desiderata", "message"),
    [
        ({"no_drift": "site", "gamma": 1.0}, ("D4",), "no maximum"),
        (
            {"coherence": D, "least_information": False, "no_drift": "site", "gamma": 1.0},
            ("D1",),
            "every centred law",
        ),
        ({"coherence": D, "gamma": 1.0}, ("D3",), "mean above one"),
        (
            {"coherence": Neumann(), "no_drift": "site", "gamma": 1.0},
            ("D5",),
            "does not charge constants",
        ),
        ({"coherence": D, "no_drift": "site"}, ("strength",), "strength is missing"),
        ({"coherence": D, "positive": False, "gamma": 1.0}, ("injection",), "may multiply or add"),
        (
            {"coherence": D, "no_drift": "site", "gamma": 1.0, "injection": "additive"},
            ("D2", "injection"),
            "changes signs",
        ),
        (
            {
                "coherence": D,
                "no_drift": "sample",
                "gamma": 1.0,
                "positive": False,
                "injection": "multiplicative",
            },
            ("D3", "D2"),
            "close to zero",
        ),
        (
            {"coherence": D, "no_drift": "site", "gamma": 1.0, "gauge": "zero mean"},
            ("D5", "D4"),
            "invertible as it is",
        ),
        (
            {"coherence": Periodic(), "no_drift": "site", "gamma": 1.0, "gauge": "boundary"},
            ("D5", "D4"),
            "not tied to zero",
        ),
        (
            {"coherence": D, "no_drift": "site", "log_std": 1.0, "budget": 3.0},
            ("log_std", "D4"),
            "budget cancels",
        ),
        (
            {"coherence": D, "no_drift": "site", "log_std": 1.0, "gamma": 1.0},
            ("gamma", "log_std"),
            "each fixes tau",
        ),
        (
            {"coherence": D, "no_drift": "sample", "gamma": 1.0, "grid": (1, 1)},
            ("D3", "grid"),
            "one site",
        ),
        ({"coherence": D, "no_drift": "site", "gamma": 0.0}, ("strength",), "no noise at all"),
        (
            {"coherence": D, "no_drift": "sample", "gamma": 1.0, "family": StudentT},
            ("D1", "family"),
            "Gaussian law alone",
        ),
        (
            {"coherence": D, "kernel": Matern(1.0), "no_drift": "site", "gamma": 1.0},
            ("D4", "kernel"),
            "Give one",
        ),
        (
            {"coherence": D, "no_drift": "site", "gamma": 1.0, "gauge": "pinned"},
            ("D5", "D4"),
            "invertible as it is",
        ),
        (
            {
                "coherence": Pinned(Neumann(), [0, 0]),
                "no_drift": "site",
                "gamma": 1.0,
                "gauge": "zero mean",
            },
            ("D5", "D4"),
            "holds a site at zero already",
        ),
        (
            {
                "coherence": Neumann(),
                "no_drift": "site",
                "gamma": 1.0,
                "gauge": "zero mean",
                "pin": [0, 0],
            },
            ("pin", "D5"),
            "has none",
        ),
    ],
)
def test_contradictory_and_incomplete_desiderata_are_refused_by_name(
    asked: dict[str, Any], desiderata: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DesignError, match=message) as refused:
        design(**{"grid": GRID, **asked})
    assert refused.value.desiderata == desiderata


@pytest.mark.parametrize(
    "asked", [{"no_drift": "global"}, {"gauge": "none"}, {"injection": "subtractive"}]
)
def test_unknown_words_are_refused_with_the_known_ones(asked: dict[str, Any]) -> None:
    settings = {"no_drift": "site", "coherence": D, "gamma": 1.0, **asked}
    with pytest.raises(ValueError, match="or None; got"):
        design(GRID, **settings)


def test_remedies_that_the_refusals_name_work() -> None:
    for settings in (
        {"coherence": Neumann(), "gauge": "zero mean"},
        {"coherence": Neumann(), "gauge": "pinned"},
        {"coherence": Massive(Neumann(), 0.1)},
        {"coherence": Identity()},
    ):
        assert isinstance(
            design(GRID, no_drift="site", gamma=1.0, **settings).gate.realization, Wick
        )  # type: ignore[arg-type]


def test_a_subclass_of_the_gaussian_law_is_shown_as_the_family_it_says_it_is() -> None:
    class Clipped(MaxEntLaw):
        family = "Gaussian, clipped"

    found = design(
        GRID, least_information=False, family=Clipped, no_drift="sample", coherence=D, gamma=1.0
    )
    assert "Gaussian, clipped with" in str(found) and "as asked" in str(found)


def test_the_admissible_class_tests_laws_and_samples() -> None:
    grid = (3, 4)
    admissible = design(grid, no_drift="site", coherence=D, budget=6.0, gamma=0.5).admissible
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
    freer = design(
        grid, least_information=False, family=StudentT, no_drift="sample", coherence=D, budget=6.0,
        gamma=0.5,
    ).admissible  # fmt: skip
    assert heavy in freer and fields in freer and MaxEntLaw(D, grid, epsilon=5) not in freer


def test_the_class_lists_the_shipped_mechanisms_and_what_is_fixed() -> None:
    one = design(GRID, no_drift="site", coherence=D, gamma=0.5).admissible
    assert [type(gate.realization) for gate in one] == [Wick]
    assert "Gaussian" in one.fixed["D1"] and "Q^-1" in one.fixed["D4"] and one.free
    many = design(
        GRID, least_information=False, family=StudentT, positive=False, injection="additive",
        coherence=D, gamma=0.5,
    ).admissible  # fmt: skip
    found = [type(gate.realization) for gate in many]
    assert found == [SampleWise, Wick, Signed, Plain, SampleWise, Signed, Plain]
    assert all(torch.isfinite(output(gate)).all() for gate in many)
