"""All statements of the paper in its order, and the run that checks them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaosgate.compat.verify import laws, masks, smooth, topological, wick
from chaosgate.compat.verify.finding import Finding
from chaosgate.compat.verify.subject import Subject


@dataclass(frozen=True)
class Statement:
    """A statement of the paper: its label, what it says in a line, and the function that checks it."""

    label: str
    says: str
    check: Callable[[Subject], list[Finding]]


STATEMENTS: tuple[Statement, ...] = (
    Statement("prop:maxent_logfield", "largest entropy: Gaussian, covariance (2 eps/n) Q^-1", laws.maxent_logfield),
    Statement("cor:green_forcing", "the Dirichlet energy forces the Green kernel", laws.green_forcing),
    Statement("thm:maxent-gff-chaos", "the Wick gate is positive, mean one, with these moments", wick.maxent_gff_chaos),
    Statement("prop:effective_tau", "only tau = gamma^2/beta matters", wick.effective_tau),
    Statement("prop:small_gamma", "second-order expansion, remainder of order three", wick.small_gamma),
    Statement("eq:samplewise_meanone", "the sample-wise gate has spatial mean one", smooth.samplewise_meanone),
    Statement("eq:residual_mul", "injection: product, residual form, energies, baselines", wick.injection),
    Statement("thm:samplewise_logratio", "log-ratios deform by N(0, tau R_G)", smooth.samplewise_logratio),
    Statement("cor:ranking_stability", "orderings survive with probability Phi", smooth.ranking_stability),
    Statement("cor:samplewise_intrinsic", "the gate adds roughness gamma^2 eps_int", smooth.samplewise_intrinsic),
    Statement("cor:scale_compatibility", "rescaling a map changes nothing", smooth.scale_compatibility),
    Statement("cor:gch_perfect_coherence", "a constant map gets the budget, no more", smooth.perfect_coherence),
    Statement("thm:binary_mask_singularity", "masks make log-ratios singular", masks.mask_singularity),
    Statement("cor:dropout_margin_blind", "dropout keeps orderings with probability q", masks.margin_blind),
    Statement("prop:dropout_energy", "dropout adds roughness in proportion to mass", masks.mask_energy),
    Statement("cor:coherence_factor", "by the factor 1 + kappa (1-q)/q", masks.coherence_factor),
    Statement("cor:dropout_perfect_coherence", "a constant map is roughened at once", masks.mask_perfect_coherence),
    Statement("cor:coherence_mismatch", "relative distortion diverges with coherence", masks.coherence_mismatch),
    Statement("cor:margin_growth_regime", "the gate strengthens, dropout saturates", masks.margin_growth),
    Statement(
        "cor:compatibility_dichotomy", "finite and budgeted, or singular and amplified", masks.compatibility_dichotomy
    ),
    Statement("cor:operator_substitution", "another operator, its inverse as kernel", laws.operator_substitution),
    Statement("prop:superlevel_sandwich", "superlevel sets move inside a band", topological.superlevel_sandwich),
    Statement("prop:gch_random_sandwich", "the band is at most |gamma| osc(psi)", topological.gch_random_sandwich),
    Statement("thm:cycle_fracture", "dropout breaks an n-cycle with probability 1 - q^n", topological.fractured_cycle),
    Statement("rem:dropblock_arc", "a block that takes an arc out of a loop destroys it", topological.block_arcs),
)


@dataclass(frozen=True)
class Outcome:
    """What came out for one statement on one subject."""

    statement: Statement
    subject: Subject
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Verification:
    """A whole run. The threshold of every sampled finding depends on how many there are."""

    outcomes: tuple[Outcome, ...]

    @property
    def sampled(self) -> int:
        return sum(finding.sampled for outcome in self.outcomes for finding in outcome.findings)

    def passed(self, outcome: Outcome) -> bool:
        """Whether every finding of an outcome passes."""
        return all(finding.passed(self.sampled) for finding in outcome.findings)

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not self.passed(outcome)]

    def headline(self, outcome: Outcome) -> Finding:
        """The finding that represents an outcome: the worst one that fails, else its first."""
        failing = [finding for finding in outcome.findings if not finding.passed(self.sampled)]
        return max(failing, key=_badness) if failing else outcome.findings[0]


def _badness(finding: Finding) -> float:
    return finding.error if finding.error is not None else (finding.z or 0.0)


def verify(subjects: Sequence[Subject], done: Callable[[Outcome], object] = lambda outcome: None) -> Verification:
    """Check every statement on every subject; ``done`` is called after each.

    A check that raises an error fails with its message: a gate that cannot even be run agrees with nothing.
    """
    outcomes = []
    for subject in subjects:
        for statement in STATEMENTS:
            try:
                findings = tuple(statement.check(subject))
            except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError) as error:
                findings = (
                    Finding(f"{type(error).__name__}: {error}", float("nan"), float("nan"), error=float("inf")),
                )
            outcomes.append(Outcome(statement, subject, findings))
            done(outcomes[-1])
    return Verification(tuple(outcomes))
