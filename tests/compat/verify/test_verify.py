"""The verifier passes the shipped gates, fails wrong ones, and knows how often chance would fool it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, norm
from torch import Tensor

from chaosgate.compat import intrinsic_energy
from chaosgate.compat.verify import FALSE_ALARM, STATEMENTS, Makers, Subject, Verification, verify
from chaosgate.compat.verify.finding import Finding, exact, frequencies, means, never, vanishes, variances
from chaosgate.compat.verify.laws import green_forcing, maxent_logfield
from chaosgate.compat.verify.masks import expected_mask_energy
from chaosgate.compat.verify.smooth import samplewise_logratio
from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw, Neumann, Operator, Periodic, Pinned
from chaosgate.gate import Dropout, Gate, GaussianChaos, Mechanism, SampleWise, Wick

LABELS = """prop:maxent_logfield cor:green_forcing thm:maxent-gff-chaos prop:effective_tau prop:small_gamma
eq:samplewise_meanone eq:residual_mul
thm:samplewise_logratio cor:ranking_stability cor:samplewise_intrinsic cor:scale_compatibility cor:gch_perfect_coherence
thm:binary_mask_singularity cor:dropout_margin_blind prop:dropout_energy cor:coherence_factor
cor:dropout_perfect_coherence cor:coherence_mismatch cor:margin_growth_regime cor:compatibility_dichotomy
cor:operator_substitution prop:superlevel_sandwich prop:gch_random_sandwich thm:cycle_fracture
rem:dropblock_arc""".split()


def subject(**changes: Any) -> Subject:
    return replace(Subject(grid=(3, 5), gamma=0.9, draws=1 << 13), **changes)


def failed(run: Verification) -> set[str]:
    return {outcome.statement.label for outcome in run.failures}


def test_all_statements_of_the_paper_are_there_in_its_order() -> None:
    labels = [statement.label for statement in STATEMENTS]
    assert len(labels) == len(LABELS) == 25 and set(labels) == set(LABELS)


@pytest.mark.statistical
@pytest.mark.parametrize("grid", [(7, 7), (3, 5), (6, 2)])
@pytest.mark.parametrize("operator", [DirichletLaplacian(), Massive(DirichletLaplacian(), 0.5)], ids=repr)
def test_the_shipped_gates_satisfy_every_statement(grid: tuple[int, int], operator: Operator) -> None:
    run = verify([subject(grid=grid, operator=operator)])
    assert not run.failures and len(run.outcomes) == 25


@pytest.mark.statistical
@pytest.mark.parametrize("operator", [Neumann(), Periodic(), Pinned(Periodic(), [1, 2])], ids=repr)
def test_operators_under_a_gauge_pass_too(operator: Operator) -> None:
    assert not verify([subject(operator=operator)]).failures


@pytest.mark.statistical
@pytest.mark.parametrize("gamma", [-0.4, 0.03, 4.0])
def test_any_strength_passes_strong_weak_or_negative(gamma: float) -> None:
    assert not verify([subject(gamma=gamma)]).failures


# -- gates that are wrong, each in one way -----------------------------------------------------------------------------


@dataclass(frozen=True)
class MissingWick(Wick):
    """Forgets the correction."""

    def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        return torch.exp(self.gamma * psi)


class Unnormalised(DirichletLaplacian):
    """Synthesises with plain sines, which are not of norm one."""

    def color(self, white: Tensor, axes: int = 2) -> Tensor:
        height, width = white.shape[-2:]
        return super().color(white) * math.sqrt((height + 1) * (width + 1)) / 2


class Swapped(DirichletLaplacian):
    """Takes the rows for columns: right on squares only."""

    def color(self, white: Tensor, axes: int = 2) -> Tensor:
        height, width = white.shape[-2:]
        return super().color(white.reshape(*white.shape[:-2], width, height)).reshape(white.shape)


def chaos_with(operator: Operator | None = None, wick: type[Wick] = Wick) -> Makers:
    """Gaussian chaos and mechanisms with another operator's sampler, or another realisation."""

    def chaos(realization: str, **settings: Any) -> Gate:
        asked = settings.pop("operator")
        settings["operator"] = operator if operator is not None and isinstance(asked, DirichletLaplacian) else asked
        gate = GaussianChaos(realization=realization, **settings)  # type: ignore[arg-type]
        if isinstance(gate.realization, Wick):
            gate.realization = wick(gate.realization.gamma)
        return gate

    def mechanism(law: MaxEntLaw, realization: Any) -> Gate:
        if operator is not None and type(law.operator) is DirichletLaplacian:
            law = MaxEntLaw(operator, law.grid, epsilon=law.epsilon)
        return Mechanism(law, wick(realization.gamma))

    return Makers(chaos=chaos, mechanism=mechanism)


@pytest.mark.statistical
def test_the_stand_ins_pass_where_they_change_nothing() -> None:
    assert not verify([subject(makers=chaos_with(DirichletLaplacian()))]).failures


def test_a_missing_wick_term_fails_all_statements_about_the_canonical_gate() -> None:
    found = failed(verify([subject(makers=chaos_with(wick=MissingWick))]))
    assert found >= {"thm:maxent-gff-chaos", "prop:small_gamma", "prop:effective_tau", "cor:operator_substitution"}
    assert "thm:samplewise_logratio" not in found  # the correction is divided out there


@pytest.mark.parametrize("grid", [(7, 7), (3, 5)])
def test_an_unnormalised_basis_fails_the_law_and_everything_downstream(grid: tuple[int, int]) -> None:
    found = failed(verify([subject(grid=grid, makers=chaos_with(Unnormalised()))]))
    assert found >= {
        "prop:maxent_logfield",
        "cor:green_forcing",
        "thm:maxent-gff-chaos",
        "thm:samplewise_logratio",
        "cor:ranking_stability",
        "cor:samplewise_intrinsic",
        "cor:gch_perfect_coherence",
        "cor:operator_substitution",
        "prop:gch_random_sandwich",
    }


@pytest.mark.statistical
def test_swapped_axes_fail_on_an_oblong_grid_and_only_there() -> None:
    makers = chaos_with(Swapped())
    found = failed(verify([subject(makers=makers)]))
    assert found >= {"prop:maxent_logfield", "cor:green_forcing", "thm:maxent-gff-chaos", "thm:samplewise_logratio"}
    assert not verify([subject(grid=(4, 4), makers=makers)]).failures


@pytest.mark.parametrize("factor", [20.0, 1.5, 0.999])
def test_a_gate_that_is_not_divided_by_its_mean_still_keeps_log_ratios_but_not_its_mean_and_band(factor: float) -> None:
    @dataclass(frozen=True)
    class Louder(SampleWise):
        def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
            return factor * super().__call__(psi, variance, dial)

    def chaos(realization: str, **settings: Any) -> Gate:
        gate = GaussianChaos(realization=realization, **settings)  # type: ignore[arg-type]
        if isinstance(gate.realization, SampleWise):
            gate.realization = Louder(gate.realization.gamma)
        return gate

    found = failed(verify([subject(makers=Makers(chaos=chaos))]))
    assert found >= {"eq:samplewise_meanone", "prop:gch_random_sandwich"} and "thm:samplewise_logratio" not in found


def test_dropout_that_forgets_to_rescale_fails() -> None:
    class Plain(Dropout):
        def perturb(self, h: Tensor, noise: Any) -> Tensor:
            return super().perturb(h, noise) * (1 - self.p)

    found = failed(verify([subject(makers=Makers(dropout=Plain))]))
    assert found >= {"thm:binary_mask_singularity", "prop:dropout_energy", "cor:coherence_factor"}
    assert "cor:dropout_margin_blind" not in found  # orderings do not see the scale


def test_dropout_at_another_rate_fails_in_the_samples() -> None:
    def off(p: float, mask: str) -> Gate:
        gate = Dropout(p=p, mask=mask)  # type: ignore[arg-type]

        class Off(Dropout):
            def perturb(self, h: Tensor, noise: Any) -> Tensor:
                dropped = Dropout(p=1.5 * p, mask=mask).perturb(h, noise)  # type: ignore[arg-type]
                return dropped * (1 - 1.5 * p) / (1 - p)

        return Off(p=gate.p, mask=gate.mask)  # type: ignore[arg-type]

    found = failed(verify([subject(makers=Makers(dropout=off))]))
    assert found >= {"thm:binary_mask_singularity", "cor:dropout_margin_blind", "thm:cycle_fracture"}


def test_a_gate_that_cannot_be_run_fails_with_its_message() -> None:
    def broken(**settings: Any) -> Gate:
        raise ValueError("no such gate")

    run = verify([subject(makers=Makers(chaos=broken))])
    assert "thm:maxent-gff-chaos" in failed(run) and "thm:cycle_fracture" not in failed(run)
    assert "no such gate" in run.headline(run.failures[0]).what


# -- what the numbers are worth ----------------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_three_per_cent_in_a_variance_are_caught_by_samples_alone(factor: float) -> None:
    def slightly_off(gamma: float, **settings: Any) -> Gate:
        return GaussianChaos(gamma=gamma * math.sqrt(factor), **settings)

    def slightly_off_law(gamma: float, epsilon: float, **settings: Any) -> Gate:
        return GaussianChaos(gamma=gamma, epsilon=epsilon * factor, **settings)

    s = Subject(grid=(5, 5), gamma=0.9, makers=Makers(chaos=slightly_off))  # the default number of draws
    off = [f for f in samplewise_logratio(s) if f.sampled and "variance" in f.what]
    s = replace(s, makers=Makers(chaos=slightly_off_law))
    off += [f for check in (maxent_logfield, green_forcing) for f in check(s) if f.sampled]
    off = [f for f in off if "law.sample" not in f.what]  # drawn from the law itself, which is right
    assert len(off) == 3
    for finding in off:
        assert not finding.passed(sampled_findings=200)
        detects = finding.detects(sampled_findings=200)
        assert detects is not None and detects < 0.03


@pytest.mark.statistical
def test_p_values_of_correct_gates_are_not_smaller_than_chance_makes_them() -> None:
    subjects = [subject(grid=(2, 3), draws=1 << 11, seed=seed) for seed in range(12)]
    first = verify(subjects[:1]).outcomes
    sampled = [o.statement for o in first if any(f.sampled for f in o.findings)]  # what is exact has no p-value
    findings = [f for o in first for f in o.findings]
    findings += [f for other in subjects[1:] for statement in sampled for f in statement.check(other)]
    p = np.array([f.p_value for f in findings if f.p_value is not None])
    assert len(p) > 250
    for level in (0.01, 0.1):  # corrected p-values are conservative, so only an excess is an error; four deviations
        assert (p < level).mean() < level + 4 * math.sqrt(level * (1 - level) / len(p))


def test_thresholds_add_up_to_the_false_alarm_rate() -> None:
    limit = FALSE_ALARM / 50
    assert Finding("x", 1.0, 1.0, 10, p_value=1.01 * limit).passed(50)
    assert not Finding("x", 1.0, 1.0, 10, p_value=0.99 * limit).passed(50)


def test_variance_findings_use_chi_square_tails() -> None:
    finding = variances("v", torch.tensor([1.0, 2.0]), torch.tensor([1.1, 2.0]), 400)
    assert finding.p_value == pytest.approx(2 * 2 * chi2.sf(440, 400), rel=1e-6)
    assert (finding.predicted, finding.comparisons) == (1.0, 2) and finding.measured == pytest.approx(1.1)


def test_frequency_findings_use_binomial_tails() -> None:
    finding = frequencies("f", 0.3, 350, 1000)
    assert finding.p_value == pytest.approx(2 * binom.sf(349, 1000, 0.3), rel=1e-6)
    low = frequencies("f", 0.3, 250, 1000)
    assert low.p_value == pytest.approx(2 * binom.cdf(250, 1000, 0.3), rel=1e-6)


def test_mean_findings_use_normal_tails_and_a_skewness_widens_the_side_it_leans_to() -> None:
    plain = means("m", 1.0, 1.3, 2.0, 400)
    assert plain.p_value == pytest.approx(2 * norm.sf(3.0), rel=1e-6)
    leaning = means("m", 1.0, 1.3, 2.0, 400, skewness=3.0)
    assert leaning.p_value is not None and plain.p_value is not None and leaning.p_value > plain.p_value


def test_power_is_what_the_normal_approximation_says() -> None:
    finding = variances("v", 1.0, 1.0, 20_000)
    detects = finding.detects(100)
    assert detects is not None
    shifted = (1 + detects) * torch.ones(1)
    z_limit = norm.isf(FALSE_ALARM / 200)
    z_there = detects / math.sqrt(2 / 20_000)
    assert norm.cdf(z_there - z_limit) == pytest.approx(0.999, abs=1e-3)
    assert not variances("v", 1.0, shifted, 20_000).passed(100)


@pytest.mark.parametrize("measured", [1.0 + 2e-9, math.nan, math.inf])
def test_exact_findings_fail_beyond_rounding_and_on_what_is_no_number(measured: float) -> None:
    assert exact("x", 1.0, 1.0 + 1e-12).passed(1)
    assert not exact("x", torch.tensor([1.0, 1.0]), torch.tensor([1.0, measured], dtype=torch.float64)).passed(1)
    assert not vanishes("x", measured).passed(1)


def test_one_violation_fails_a_statement_that_allows_none() -> None:
    assert never("x", 0, 100).passed(1) and not never("x", 1, 100).passed(1)


@pytest.mark.parametrize(("grid", "operator"), [((2, 3), DirichletLaplacian()), ((3, 3), Periodic())])
def test_masks_by_colour_give_the_expectation_over_all_masks(grid: tuple[int, int], operator: Operator) -> None:
    s = subject(grid=grid, operator=operator)  # an odd torus needs three colours
    maps = s.maps("masks by colour", 2)
    noise = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * s.sites).view(-1, 1, *grid)
    masked = s.apply(s.dropout(), maps.expand(len(noise), *maps.shape), noise)
    kept = noise.sum((1, 2, 3))
    weight = s.q**kept * (1 - s.q) ** (s.sites - kept)
    expected = (weight[:, None] * intrinsic_energy(masked, s.graph)).sum(0)
    found = expected_mask_energy(s, maps)
    assert found is not None
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"gamma": 0.0}, "needs a strength"), ({"q": 1.0}, "keep probability"), ({"grid": (1, 3)}, "Give four or more")],
)
def test_subjects_that_prove_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        subject(**changes)
