r"""The design step: from what one wants of the noise to the mechanism that this forces (paper sec.
3 and 5.1 to 5.4).

.. math:: D \longmapsto \mathfrak N(D) \ni N^\star = (\mathcal F, K, \mathcal T)

Every part of the mechanism is decided by a desideratum through a statement of the paper, or it
stays free. Desiderata that exclude each other, or leave a part undecided, raise an error that names
them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from chaosgate.field.law import Law, MaxEntLaw, StudentT
from chaosgate.field.matrices import CovarianceFunction, CovarianceMatrix, Kernel
from chaosgate.field.operator import Grid, Operator, as_grid
from chaosgate.field.pinned import Pinned
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

DESIDERATA = {
    "D1": "least additional information",
    "D2": "positivity",
    "D3": "no scale drift",
    "D4": "spatial coherence by a quadratic budget",
    "D5": "gauge fixing",
}

Family = Callable[..., Law]
"""A family of laws: a class, or anything else called as ``family(operator, grid, beta=...,
epsilon=...)``.
"""

KernelLike = Kernel | Tensor | Sequence[Sequence[float]] | Callable[[Tensor], Tensor]
"""A covariance: a class, a matrix (n, n), or a function of the distances between sites."""

GAUGES = {
    "boundary": "Q is positive definite: a boundary or a mass holds the field",
    "pinned": "one site is held at zero; Q is inverted on the others",
    "zero mean": "fields of spatial mean zero; Q is inverted on them (rank n - 1)",
}
REALIZATIONS: dict[type[Realization], tuple[str, str, str]] = {
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
}


class DesignError(ValueError):
    """Desiderata from which no mechanism follows.

    Attributes:
        desiderata: The pair that clashes, or the one that is missing.
    """

    def __init__(self, message: str, *desiderata: str) -> None:
        super().__init__(message)
        self.desiderata = desiderata


def _refuse_if(wrong: bool, names: str, message: str) -> None:
    if wrong:
        raise DesignError(message, *names.split())


@dataclass(frozen=True)
class Step:
    """One decision: which part of the mechanism, what it is, which desiderata fixed it, by which
    statement.
    """

    part: str
    choice: str
    because: str
    statement: str


@dataclass(frozen=True)
class Membership:
    """Whether a law is in the admissible class, and its distance from the distinguished one.

    Attributes:
        member: Mean zero and the energy of the budget; with D1 also without an entropy gap.
        mean: Largest mean of a site, in standard deviations of the distinguished law.
        energy: Mean energy, as a multiple of the budget.
        entropy_gap: Entropy below that of the distinguished law at the same budget, in nats. From
            samples it is that of the Gaussian law of the same covariance, a lower bound.
    """

    member: bool
    mean: float
    energy: float
    entropy_gap: float


@dataclass(frozen=True)
class AdmissibleClass:
    r"""The laws and mechanisms that meet the desiderata: :math:`\mathfrak N(D)` (eq.
    admissible_class).

    .. math:: \mathcal A(Q, \varepsilon) = \{p : E\psi = 0,\ E\tfrac12\langle\psi, Q\psi\rangle
        = \varepsilon\}

    Iterating yields the shipped mechanisms in it.

    Attributes:
        law: The distinguished law; the only one in the class if D1 is asked for.
        fixed: What each desideratum fixes.
        free: What the desiderata leave open, and what was taken.
        least_information: Whether D1 is asked for.
        positive: Whether D2 is asked for.
        no_drift: The kind of D3, or None.
        strength: The factor on the field.
    """

    law: MaxEntLaw
    fixed: dict[str, str]
    free: tuple[str, ...]
    least_information: bool
    positive: bool
    no_drift: str | None
    strength: float

    def membership(self, law: Law | Tensor) -> Membership:
        r"""Test a law with a density, or samples (N, \*grid) of any law.

        A law is tested by its covariance and its entropy, up to rounding; samples up to five
        standard errors.
        """
        best, n = self.law, self.law.n
        if isinstance(law, Law):
            energy = 0.5 * float((best.operator.matrix(best.grid) * law.covariance).sum())
            gap, mean, slack, gap_slack = best.entropy() - law.entropy(), 0.0, 1e-9, 1e-9 * n
        else:
            flat = law.double().reshape(-1, n)
            energies = best.operator.energy(law.double(), len(best.grid))
            energy = float(energies.mean())
            slack = 5 * float(energies.std()) / math.sqrt(len(flat)) / best.epsilon
            scale = best.variance.flatten().clamp_min(1e-300).sqrt()
            mean = float((flat.mean(0) / scale).abs().max())
            gap = best.entropy() - self._gaussian_entropy(flat)
            gap_slack = 5 * math.sqrt(n / 2 / len(flat)) + n * (n + 1) / 2 / len(flat)
            if mean > 5 * float((flat / scale).std(0).max()) / math.sqrt(len(flat)):
                slack = -math.inf  # not centred
        ratio = energy / best.epsilon
        member = abs(ratio - 1) <= slack and (not self.least_information or gap <= gap_slack)
        return Membership(member, mean, ratio, gap)

    def _gaussian_entropy(self, samples: Tensor) -> float:
        """Of the Gaussian law with the covariance of the samples, on the directions of the law."""
        centred = samples - samples.mean(0)
        basis = torch.linalg.eigh(self.law.operator.matrix(self.law.grid))[1]
        inner = centred @ basis[:, -self.law.rank :]
        logdet = float(torch.logdet(inner.T @ inner / (len(inner) - 1)))
        return 0.5 * (self.law.rank * math.log(2 * math.pi * math.e) + logdet)

    def __contains__(self, law: Law | Tensor) -> bool:
        return self.membership(law).member

    def __iter__(self) -> Iterator[Mechanism]:
        operator, grid, beta = self.law.operator, self.law.grid, self.law.beta
        laws: list[Law] = [self.law]
        if not self.least_information:
            laws.append(StudentT(operator, grid, beta))
        for law in laws:
            if self.no_drift in (None, "sample") and law.n > 1:
                yield Mechanism(law, SampleWise(self.strength))
            if self.no_drift in (None, "site"):
                if law.has_exponential_moment:
                    yield Mechanism(law, Wick(self.strength))
                if not self.positive:
                    yield Mechanism(law, Signed(self.strength))
                    yield Mechanism(law, Plain(self.strength), Additive())


@dataclass(frozen=True)
class Design:
    """A mechanism with its derivation.

    Attributes:
        gate: The distinguished mechanism, ready to be attached.
        grid: The grid of the derivation.
        steps: The decisions in the order of the paper.
        numbers: ``n``, ``rank``, ``beta``, ``epsilon``, ``gamma``, ``tau``, ``log_std``,
            ``entropy`` on the grid, and ``entropy_gap`` to the largest entropy at this energy where
            another family was asked for.
        admissible: The class of laws and mechanisms that it was taken from.
    """

    gate: Mechanism
    grid: Grid
    steps: tuple[Step, ...]
    numbers: dict[str, float]
    admissible: AdmissibleClass

    @property
    def free(self) -> tuple[str, ...]:
        """What the desiderata leave open, and what was taken."""
        return self.admissible.free

    def card(self) -> str:
        """The derivation as plain text."""
        width = max(len(step.part) for step in self.steps)
        lines = [f"From the desiderata to a mechanism on {'x'.join(map(str, self.grid))}", ""]
        for step in self.steps:
            lines.append(f"{step.part:<{width}}  {step.choice}")
            lines.append(f"{'':<{width}}    {step.because} ({step.statement})")
        numbers = ", ".join(f"{name} {value:.5g}" for name, value in self.numbers.items())
        free = (f"  - {text}" for text in self.free)
        return "\n".join([*lines, "", f"numbers: {numbers}", "still free:", *free])

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
    r"""The mechanism that the desiderata force, with its derivation and the admissible class.

    Args:
        grid: Where it is deployed: height and width of the feature map.
        least_information: D1: of all laws that meet the rest, the one of largest entropy.
        positive: D2: the gate changes no sign and deletes nothing.
        no_drift: D3: the gate has mean one at every ``"site"`` (in expectation), or in every
            ``"sample"`` (over sites).
        coherence: D4: the operator :math:`Q` whose energy :math:`\tfrac12\langle\psi,
            Q\psi\rangle` is limited.
        budget: D4: the mean energy :math:`\varepsilon`; without it :math:`\beta = 1`.
        gauge: D5: what makes the operator invertible. An operator with a ``"boundary"`` or a mass
            is; one that charges constants nothing needs ``"zero mean"`` fields, or fields
            ``"pinned"`` to zero at one site.
        gamma: Strength of the exponential, or of the field where the gate is signed.
        log_std: Strength as standard deviation of the log-gate, instead of ``gamma`` and
            ``budget``.
        injection: How the perturbation meets the features; positivity forces the product.
        alpha: Weight of the gate in the residual form.
        channels: One gate for all channels of a sample, or one each.
        kernel: D4 by the covariance instead of ``coherence``: a matrix (n, n), a function of the
            distance, or a :class:`~chaosgate.field.Kernel`. Each is the inverse of one operator.
        family: The law family where D1 is not asked for: ``StudentT``, a ``partial`` of it, or a
            custom class.
        pin: The site that ``gauge="pinned"`` holds at zero; None is the first one.

    >>> from chaosgate.field import DirichletLaplacian
    >>> Q = DirichletLaplacian()
    >>> found = design((7, 7), no_drift="site", coherence=Q, budget=24.5, gamma=0.5)
    >>> print(found.steps[0].choice)
    Gaussian, N(0, (beta Q)^-1) with beta = n / 2 eps
    >>> MaxEntLaw(Q, (7, 7), epsilon=20) in found.admissible
    False
    >>> design((7, 7), no_drift="site", coherence=Q, gamma=0.5, injection="additive")
    Traceback (most recent call last):
        ...
    chaosgate.gate.desiderata.DesignError: D2 and an additive injection exclude each other: ...
    """
    place = as_grid(grid)
    for name, value, known in (
        ("gauge", gauge, tuple(GAUGES)),
        ("no_drift", no_drift, ("site", "sample")),
        ("injection", injection, ("multiplicative", "additive")),
    ):
        if value is not None and value not in known:
            raise ValueError(f"{name} is {' or '.join(map(repr, known))}, or None; got {value!r}.")
    operator = _operator(coherence, kernel)
    _refuse_if(
        not least_information and family is None,
        "D1",
        "D1 is missing: a budget admits every centred law of that energy. Set "
        "least_information=True, or name a family, such as StudentT.",
    )
    _refuse_if(
        least_information and family not in (None, MaxEntLaw),
        "D1 family",
        "D1 and a family exclude each other: the Gaussian law alone has the largest entropy. Set "
        "least_information=False, or leave out the family.",
    )
    laws: Family = family or MaxEntLaw
    operator, found = _gauged(operator, place, gauge, pin)
    strength = _strength(gamma, log_std, budget)
    deployed = _injection(positive, injection, alpha)

    def scale(at: Grid) -> dict[str, Any]:
        return {"epsilon": budget} if log_std is None else {"beta": operator.mean_variance(at)}

    law_on = partial(_law, laws, operator, scale)
    law = law_on(place)
    realization = _realization(law, positive, no_drift, deployed, strength)
    numbers = {
        "n": float(law.n),
        "rank": float(law.rank),
        "beta": law.beta,
        "epsilon": law.epsilon,
        "gamma": strength,
        "tau": law.tau(strength),
        "log_std": law.log_std(strength),
        "entropy": law.entropy(),
    }
    best = MaxEntLaw(operator, place, beta=law.beta)
    if laws is not MaxEntLaw:
        numbers["entropy_gap"] = best.entropy() - numbers["entropy"]
    size = "n" if found == "boundary" else "rank"
    unit = f"beta = {size} / 2 eps" if budget is not None else "beta = 1"
    if log_std is not None:
        unit = "beta = mean_x Q^-1(x, x), so that gamma is log_std"
    gaussian = type(law) is MaxEntLaw  # a subclass is a family of its own
    act = "h + rms(h) psi" if isinstance(deployed, Additive) else "h times the gate"
    if isinstance(deployed, Multiplicative) and deployed.alpha != 1:
        act = f"h (1 + {deployed.alpha:g} (gate - 1))"
    named, why = (
        ("Gaussian, N(0, (beta Q)^-1)", "D1 with D4: the largest entropy at this energy")
        if gaussian
        else (law.family, "as asked: without D1 the family is free, and has less entropy")
    )
    kernel_is, forced = (
        (f"K / beta with K = {operator}", "D4: the kernel as given, which one operator forces")
        if isinstance(operator, Kernel)
        else (f"Q^-1 / beta with Q = {operator}", "D4: the operator forces its inverse")
    )
    product = "D2: a positive gate scales amplitudes" if positive else "as asked, without D2"
    steps = (
        Step("law F", f"{named} with {unit}", why, "prop. maxent_logfield"),
        Step("kernel K", kernel_is, forced, "cor. operator_substitution"),
        Step("gauge", GAUGES[found], "D5: without it the inverse does not exist", "sec. dgff"),
        Step("realisation", *REALIZATIONS[type(realization)]),
        Step("injection T", act, product, "eq. mul_injection"),
    )
    fixed = {
        "D1": steps[0].choice if least_information else "not asked for",
        "D2": steps[4].choice if positive else "not asked for",
        "D3": steps[3].choice if positive else "a centred field",
        "D4": steps[1].choice,
        "D5": steps[2].choice,
    }
    free = [f"the strength, here {'gamma' if log_std is None else 'log_std'}"]
    if log_std is None and budget is None:
        free.append("the budget: beta = 1 was taken; only tau matters (prop. effective_tau)")
    free.append(f"the channels of a sample: {channels} was taken")
    if isinstance(deployed, Multiplicative):
        free.append(f"alpha of the residual form (eq. residual_mul): {alpha:g} was taken")
    if not positive:
        free.append("log-geometry: the theorems do not apply to signed gates")
    free.append("the place in the network: see chaosgate.sites")
    admissible = AdmissibleClass(
        best, fixed, tuple(free), least_information, positive, no_drift, strength
    )
    gate = Mechanism(law_on, realization, deployed, channels)
    return Design(gate, place, steps, numbers, admissible)


def _law(family: Family, operator: Operator, scale: Callable[[Grid], Any], grid: Grid) -> Law:
    return family(operator, grid, **scale(grid))


def _operator(coherence: Operator | None, kernel: KernelLike | None) -> Operator:
    """The operator of the budget, from itself or from the kernel that it forces."""
    _refuse_if(
        coherence is not None and kernel is not None,
        "D4 kernel",
        "coherence and kernel exclude each other: one is the inverse of the other. Give one.",
    )
    if coherence is not None:
        return coherence
    if kernel is None:
        raise DesignError(
            "D4 is missing: without a budget the entropy has no maximum. Give coherence, such as "
            "DirichletLaplacian() or Identity(), or a kernel.",
            "D4",
        )
    if isinstance(kernel, Operator):
        return kernel
    return CovarianceFunction(kernel) if callable(kernel) else CovarianceMatrix(kernel)


def _gauged(
    operator: Operator, grid: Grid, gauge: str | None, pin: Sequence[int] | None
) -> tuple[Operator, str]:
    """The operator with its gauge, and what makes it invertible on this grid."""
    _refuse_if(
        pin is not None and gauge != "pinned",
        "pin D5",
        f"pin is the site of gauge='pinned'; gauge={gauge!r} has none.",
    )
    n, free = math.prod(grid), charges_no_constants(operator, grid)
    rank = n - 1 if n == 1 and free else operator.rank(grid)
    if rank == n or not free:
        found = "boundary" if rank == n else "pinned"
        how = "is invertible as it is" if rank == n else "holds a site at zero already"
        _refuse_if(
            gauge not in (None, found) or pin is not None,
            "D5 D4",
            f"D5 and D4 exclude each other: {operator} {how}, so it takes no gauge={gauge!r}. "
            "Leave out the gauge, or use Neumann() or Periodic().",
        )
        return operator, found
    _refuse_if(
        gauge == "boundary",
        "D5 D4",
        f"D5 and D4 exclude each other: {operator} is not tied to zero by a boundary. Use "
        "DirichletLaplacian(), or gauge='zero mean' or 'pinned'.",
    )
    if gauge is None:
        raise DesignError(
            f"D5 is missing: {operator} does not charge constants, so it has no inverse. Give "
            "gauge='zero mean' or 'pinned', or add a mass (Massive).",
            "D5",
        )
    if gauge == "pinned":
        return Pinned(operator, [0] * len(grid) if pin is None else pin), gauge
    return operator, gauge


def charges_no_constants(operator: Operator, grid: Grid) -> bool:
    """Whether constant fields have no energy, so that the operator needs a gauge."""
    ones = torch.ones(1, *grid, dtype=torch.float64)
    size = float(operator.matrix(grid).diagonal().sum())
    return float(operator.energy(ones, len(grid))) <= 1e-12 * size


def _strength(gamma: float | None, log_std: float | None, budget: float | None) -> float:
    """The factor on the field."""
    strength = gamma if log_std is None else log_std
    if strength is None:
        raise DesignError(
            "the strength is missing: the desiderata do not fix it. Give gamma, or log_std (1.0 is "
            "a good start).",
            "strength",
        )
    _refuse_if(
        gamma is not None and log_std is not None,
        "gamma log_std",
        "gamma and log_std exclude each other: each fixes tau. Give one.",
    )
    _refuse_if(
        log_std is not None and budget is not None,
        "log_std D4",
        "log_std and budget exclude each other: in tau = gamma^2 / beta the budget cancels. Give "
        "gamma with the budget, or log_std alone.",
    )
    _refuse_if(
        strength == 0,
        "strength",
        f"{'gamma' if log_std is None else 'log_std'}=0 is the constant gate one, no noise at all.",
    )
    return float(strength)


def _injection(positive: bool, injection: str | None, alpha: float) -> Injection:
    _refuse_if(
        positive and injection == "additive",
        "D2 injection",
        "D2 and an additive injection exclude each other: a sum with a Gaussian field changes "
        "signs. Use injection='multiplicative', or positive=False.",
    )
    _refuse_if(
        not positive and injection is None,
        "injection",
        "the injection is missing: without D2 a field may multiply or add. Give "
        "injection='multiplicative' or 'additive'.",
    )
    _refuse_if(
        injection == "additive" and alpha != 1,
        "alpha injection",
        "alpha belongs to the product; an additive injection has none.",
    )
    return Additive() if injection == "additive" else Multiplicative(alpha)


def _realization(
    law: Law, positive: bool, no_drift: str | None, injection: Injection, strength: float
) -> Realization:
    if not positive:
        _refuse_if(
            no_drift == "sample",
            "D3 D2",
            "D3 per sample and a signed gate exclude each other: its spatial mean may be close to "
            "zero. Use no_drift='site', which a centred field has, or positive=True.",
        )
        return Plain(strength) if isinstance(injection, Additive) else Signed(strength)
    _refuse_if(
        no_drift is None,
        "D3",
        "D3 is missing: exp(gamma psi) alone has mean above one. Give no_drift='site' (Wick "
        "normalisation) or 'sample' (division by the spatial mean).",
    )
    _refuse_if(
        no_drift == "sample" and law.n == 1,
        "D3 grid",
        "D3 per sample and a grid of one site exclude each other: the gate would be one. Use "
        "no_drift='site', or a stage with a larger grid.",
    )
    _refuse_if(
        no_drift == "site" and not law.has_exponential_moment,
        "D3 family",
        f"D3 per site and this family exclude each other: under {law.family}, E exp(gamma psi) is "
        "infinite at any strength. Use no_drift='sample', or the Gaussian family.",
    )
    return Wick(strength) if no_drift == "site" else SampleWise(strength)
