r"""The design step: from what one wants of the noise to the mechanism that this forces (paper sec. 3 and 5.1 to 5.4).

.. math:: D \longmapsto \mathfrak N(D) \ni N^\star = (\mathcal F, K, \mathcal T)

Every part of the mechanism is decided by a desideratum through a statement of the paper, or it stays free; the result
says which. Desiderata that exclude each other, or leave a part undecided, are refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from chaosgate.field import Grid, Kernel, Law, MaxEntLaw, Operator
from chaosgate.field.arguments import as_grid
from chaosgate.gate.desiderata import (
    Family,
    KernelLike,
    choose_family,
    choose_realization,
    require_coherence,
    require_gauge,
    require_injection,
    require_strength,
)
from chaosgate.gate.mechanism import Mechanism
from chaosgate.gate.realization import (
    Additive,
    Injection,
    Multiplicative,
    Plain,
    Realization,
    SampleWise,
    Signed,
    Wick,
)


@dataclass(frozen=True)
class Step:
    """One decision: which part of the mechanism, what it is, which desiderata fixed it, by which statement."""

    part: str
    choice: str
    because: str
    statement: str


@dataclass(frozen=True)
class Design:
    """A mechanism with its derivation.

    Attributes:
        gate: The mechanism, ready to be attached.
        steps: The decisions in the order of the paper.
        numbers: ``n``, ``rank``, ``beta``, ``epsilon``, ``gamma``, ``tau``, ``log_std``, ``entropy`` on the grid, and
            ``entropy_gap`` to the largest entropy at this energy where another family was asked for.
        free: What the desiderata leave open, and what was taken.
    """

    gate: Mechanism
    grid: Grid
    steps: tuple[Step, ...]
    numbers: dict[str, float]
    free: tuple[str, ...]

    def card(self) -> str:
        """The derivation as plain text."""
        width = max(len(step.part) for step in self.steps)
        lines = [f"From the desiderata to a mechanism on {'x'.join(map(str, self.grid))}", ""]
        for step in self.steps:
            lines += [
                f"{step.part:<{width}}  {step.choice}",
                f"{'':<{width}}    {step.because} ({step.statement})",
            ]
        numbers = ", ".join(f"{name} {value:.5g}" for name, value in self.numbers.items())
        return "\n".join(
            [
                *lines,
                "",
                f"numbers: {numbers}",
                "still free:",
                *(f"  - {text}" for text in self.free),
            ]
        )

    def __str__(self) -> str:
        return self.card()


def design(
    grid: Sequence[int],
    least_information: bool = True,
    positive: bool = True,
    no_drift: Literal["site", "sample"] | None = None,
    coherence: Operator | None = None,
    budget: float | None = None,
    gauge: Literal["boundary", "zero mean", "pinned"] | None = None,
    gamma: float | None = None,
    log_std: float | None = None,
    injection: Literal["multiplicative", "additive"] | None = None,
    alpha: float = 1.0,
    channels: Literal["shared", "independent"] = "shared",
    kernel: KernelLike | None = None,
    family: Family | None = None,
    pin: Sequence[int] | None = None,
) -> Design:
    r"""The mechanism that the desiderata force, with its derivation.

    Args:
        grid: Where it is deployed: height and width of the feature map.
        least_information: D1: of all laws that meet the rest, the one of largest entropy.
        positive: D2: the gate changes no sign and deletes nothing.
        no_drift: D3: the gate has mean one at every ``"site"`` (in expectation), or in every ``"sample"`` (over sites).
        coherence: D4: the operator :math:`Q` whose energy :math:`\tfrac12\langle\psi, Q\psi\rangle` is limited.
        budget: D4: the mean energy :math:`\varepsilon`; without it :math:`\beta = 1`.
        gauge: D5: what makes the operator invertible. An operator with a ``"boundary"`` or a mass is; one that charges
            constants nothing needs ``"zero mean"`` fields, or fields ``"pinned"`` to zero at one site.
        gamma: Strength of the exponential, or of the field where the gate is signed.
        log_std: Strength as standard deviation of the log-gate, instead of ``gamma`` and ``budget``.
        injection: How the perturbation meets the features; positivity forces the product.
        alpha: Weight of the gate in the residual form.
        channels: One gate for all channels of a sample, or one each.
        kernel: D4 by the covariance instead of ``coherence``: a matrix (n, n), a function of the distance, or a
            :class:`~chaosgate.field.Kernel`. Each is the inverse of exactly one operator.
        family: The law family where D1 is not asked for: ``StudentT``, a ``partial`` of it, or a class of one's own.
        pin: The site that ``gauge="pinned"`` holds at zero; None is the first one.

    >>> from chaosgate.field import DirichletLaplacian
    >>> found = design((7, 7), no_drift="site", coherence=DirichletLaplacian(), budget=24.5, gamma=0.5)
    >>> print(found.steps[0].choice)
    Gaussian, N(0, (beta Q)^-1) with beta = n / 2 eps
    >>> design((7, 7), no_drift="site", coherence=DirichletLaplacian(), gamma=0.5, injection="additive")
    Traceback (most recent call last):
        ...
    chaosgate.gate.desiderata.DesignError: D2 and an additive injection exclude each other: ...
    """
    place = as_grid(grid)
    operator = require_coherence(coherence, kernel)
    laws = choose_family(least_information, family)
    operator, found = require_gauge(operator, place, gauge, pin)
    strength = require_strength(gamma, log_std, budget)
    deployed = require_injection(positive, injection, alpha)
    law = (
        partial(laws, operator, epsilon=budget)
        if log_std is None
        else partial(_unit_variance_law, laws, operator)
    )
    on_grid = law(place)
    realization = choose_realization(on_grid, positive, no_drift, deployed, strength)
    gate = Mechanism(law, realization, deployed, channels)
    numbers = {
        "n": float(on_grid.n),
        "rank": float(on_grid.rank),
        "beta": on_grid.beta,
        "epsilon": on_grid.epsilon,
        "gamma": strength,
        "tau": on_grid.tau(strength),
        "log_std": on_grid.log_std(strength),
        "entropy": on_grid.entropy(),
    }
    if laws is not MaxEntLaw:
        numbers["entropy_gap"] = (
            MaxEntLaw(operator, place, beta=on_grid.beta).entropy() - numbers["entropy"]
        )
    steps = (
        *_law_steps(on_grid, found, budget, log_std),
        *_gate_steps(realization, deployed, positive),
    )
    return Design(gate, place, steps, numbers, _free(positive, deployed, log_std, budget, channels))


def _unit_variance_law(family: Family, operator: Operator, grid: Grid) -> Law:
    """The law whose site variance averages to one, so that the strength is the log_std."""
    return family(operator, grid, beta=operator.mean_variance(grid))


def _law_steps(
    law: Law, gauge: str, budget: float | None, log_std: float | None
) -> tuple[Step, ...]:
    means = {
        "boundary": "Q is positive definite: a boundary or a mass holds the field",
        "pinned": "one site is held at zero; Q is inverted on the others",
        "zero mean": "fields of spatial mean zero; Q is inverted on them (rank n - 1)",
    }[gauge]
    size = "n" if gauge == "boundary" else "rank"
    scale = f"beta = {size} / 2 eps" if budget is not None else "beta = 1"
    if log_std is not None:
        scale = "beta = mean_x Q^-1(x, x), so that gamma is log_std"
    named = ("Gaussian, N(0, (beta Q)^-1)", "D1 with D4: the largest entropy at this energy")
    if type(law) is not MaxEntLaw:  # a subclass is a family of its own
        named = (
            law.family,
            "as asked: without D1 the family is free, and has less entropy at this energy",
        )
    forced = (
        f"Q^-1 / beta with Q = {law.operator}",
        "D4: the operator of the budget forces its inverse",
    )
    if isinstance(law.operator, Kernel):
        forced = (
            f"K / beta with K = {law.operator}",
            "D4: the kernel as given, which one operator forces",
        )
    return (
        Step("law F", f"{named[0]} with {scale}", named[1], "prop. maxent_logfield"),
        Step("kernel K", *forced, "cor. operator_substitution"),
        Step("gauge", means, "D5: without it the inverse does not exist", "sec. dgff"),
    )


def _gate_steps(realization: Realization, injection: Injection, positive: bool) -> tuple[Step, ...]:
    how = {
        Wick: (
            "exp(gamma psi - gamma^2 v / 2)",
            "D2: an exponential; D3 per site: expectation one",
            "thm. maxent-gff-chaos",
        ),
        SampleWise: (
            "exp(gamma psi) over its spatial mean",
            "D2: an exponential; D3 per sample: mean one over the sites",
            "eq. samplewise_meanone",
        ),
        Signed: (
            "1 + gamma psi",
            "without D2: the first-order proxy; a centred field has D3 per site",
            "prop. small_gamma",
        ),
        Plain: (
            "gamma psi",
            "without D2: the field itself; a centred field has D3 per site",
            "prop. small_gamma",
        ),
    }[type(realization)]
    product = (
        "D2: a positive gate scales amplitudes"
        if positive
        else "as asked: without D2 the injection is free"
    )
    act = "h + rms(h) psi" if isinstance(injection, Additive) else "h times the gate"
    if isinstance(injection, Multiplicative) and injection.alpha != 1:
        act = f"h (1 + {injection.alpha:g} (gate - 1))"
    return (Step("realisation", *how), Step("injection T", act, product, "eq. mul_injection"))


def _free(
    positive: bool, injection: Injection, log_std: float | None, budget: float | None, channels: str
) -> tuple[str, ...]:
    lines = []
    if log_std is None and budget is None:
        lines.append(
            "the budget eps: beta = 1 was taken; only tau = gamma^2 / beta matters (prop. effective_tau)"
        )
    lines.append(
        f"the strength, here {'log_std' if log_std is not None else 'gamma'}; the sign of gamma changes no law"
    )
    lines.append(f"the channels of a sample: {channels} was taken")
    if isinstance(injection, Multiplicative):
        lines.append(
            f"alpha of the residual form (eq. residual_mul): {injection.alpha:g} was taken"
        )
    if not positive:
        lines.append("log-geometry: the compatibility theorems do not apply to signed gates")
    return (
        *lines,
        "where in the network: see chaosgate.sites and the paper's late-stage prediction",
    )
