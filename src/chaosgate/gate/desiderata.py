r"""The design step: from desiderata of the noise to the mechanism that they determine (paper sec. 3
and 5.1 to 5.4).

.. math:: D \longmapsto \mathfrak N(D) \ni N^\star = (\mathcal F, K, \mathcal T)

Every part of the mechanism follows from a desideratum by a statement of the paper, or is free.
An error is raised if desiderata exclude each other or leave a part undecided.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from chaosgate.field.law import Law, MaxEntLaw, StudentT
from chaosgate.field.matrices import Kernel
from chaosgate.field.operator import Grid, Operator, as_grid, grid_text
from chaosgate.field.pinned import Pinned
from chaosgate.gate.mechanism import Mechanism
from chaosgate.gate.realization import (
    Additive,
    Injection,
    Multiplicative,
    Plain,
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

GAUGES = {
    "boundary": "Q is positive definite, because of a boundary or a mass",
    "pinned": "the field is zero at one site; Q is inverted on the others",
    "zero mean": "fields of spatial mean zero; Q is inverted on them (rank n - 1)",
}
REALIZATIONS: dict[tuple[bool, str | None], tuple[Any, str, str, str]] = {
    (True, "site"): (
        Wick,
        "exp(gamma psi - gamma^2 v / 2)",
        "D2 D3: an exponential with expectation one at every site",
        "thm. maxent-gff-chaos",
    ),
    (True, "sample"): (
        SampleWise,
        "exp(gamma psi) over its spatial mean",
        "D2 D3: an exponential with mean one over the sites of a sample",
        "eq. samplewise_meanone",
    ),
    (False, "multiplicative"): (
        Signed,
        "1 + gamma psi",
        "D3: without D2, the first-order approximation; its field is centered",
        "prop. small_gamma",
    ),
    (False, "additive"): (
        Plain,
        "gamma psi",
        "D3: without D2, the field itself, which is centered",
        "prop. small_gamma",
    ),
}
"""Keys: positivity, and the kind of D3 (with positivity) or the injection (without)."""


class DesignError(ValueError):
    """Desiderata that contradict each other, or from which one is missing."""


class Step(NamedTuple):
    """One decision: the part of the mechanism, the choice, the desiderata and the statement that
    determine it.
    """

    part: str
    choice: str
    because: str
    statement: str


class Membership(NamedTuple):
    """Whether a law is in the admissible class, and its distance from the maximum-entropy law.

    Attributes:
        member: Mean zero and the energy of the budget; with D1 also without an entropy gap.
        mean: Largest mean of a site, in standard deviations of the maximum-entropy law.
        energy: Mean energy, as a multiple of the budget.
        entropy_gap: Entropy below that of the maximum-entropy law at the same budget, in nats. For
            samples, a lower bound: the gap of the Gaussian law with their covariance.
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

    Iterating yields the mechanisms of chaosgate in this class.

    Attributes:
        law: The maximum-entropy law; the only one in the class if D1 is required.
        fixed: What each desideratum fixes.
        free: What the desiderata leave open, and what was chosen.
        least_information: Whether D1 is required.
        positive: Whether D2 is required.
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

        A law is tested by its covariance and entropy, up to rounding; samples are tested up to
        five standard errors.
        """
        best, n = self.law, self.law.n
        matrix = best.operator.matrix(best.grid)
        if isinstance(law, Law):
            mean, allowed = 0.0, 0.0
            energy, slack = 0.5 * float((matrix * law.covariance).sum()), 1e-9
            entropy, gap_slack = law.entropy(), 1e-9 * n
        else:
            fields = law.double()
            flat, count = fields.reshape(-1, n), fields.numel() // n
            energies = best.operator.energy(fields, len(best.grid))
            energy = float(energies.mean())
            slack = 5 * float(energies.std()) / math.sqrt(count) / best.epsilon
            scaled = flat / best.variance.flatten().clamp_min(1e-300).sqrt()
            mean = float(scaled.mean(0).abs().max())
            allowed = 5 * float(scaled.std(0).max()) / math.sqrt(count)
            # the entropy of the Gaussian law of this covariance, on the directions of the best one
            inner = (flat - flat.mean(0)) @ torch.linalg.eigh(matrix)[1][:, -best.rank :]
            logdet = float(torch.logdet(inner.T @ inner / (count - 1)))
            entropy = 0.5 * (best.rank * math.log(2 * math.pi * math.e) + logdet)
            gap_slack = 5 * math.sqrt(n / 2 / count) + n * (n + 1) / 2 / count
        ratio, gap = energy / best.epsilon, best.entropy() - entropy
        member = mean <= allowed and abs(ratio - 1) <= slack
        member = member and (not self.least_information or gap <= gap_slack)
        return Membership(member, mean, ratio, gap)

    def __contains__(self, law: Law | Tensor) -> bool:
        return self.membership(law).member

    def __iter__(self) -> Iterator[Mechanism]:
        laws: list[Law] = [self.law]
        if not self.least_information:
            laws.append(StudentT(self.law.operator, self.law.grid, self.law.beta))
        for law in laws:
            if self.no_drift != "site" and law.n > 1:
                yield Mechanism(law, SampleWise(self.strength))
            if self.no_drift != "sample":
                if law.has_exponential_moment:
                    yield Mechanism(law, Wick(self.strength))
                if not self.positive:
                    yield Mechanism(law, Signed(self.strength))
                    yield Mechanism(law, Plain(self.strength), Additive())


@dataclass(frozen=True)
class Design:
    """A mechanism with its derivation.

    Attributes:
        gate: The mechanism, ready to be attached.
        grid: The grid of the derivation.
        steps: The decisions in the order of the paper.
        numbers: ``n``, ``rank``, ``beta``, ``epsilon``, ``gamma``, ``tau``, ``log_std``,
            ``entropy`` on the grid, and ``entropy_gap`` to the largest entropy at this energy if
            another family was requested.
        admissible: The class of admissible laws and mechanisms.
    """

    gate: Mechanism
    grid: Grid
    steps: tuple[Step, ...]
    numbers: dict[str, float]
    admissible: AdmissibleClass

    def card(self) -> str:
        """The derivation as plain text."""
        width = max(len(step.part) for step in self.steps)
        lines = [f"From the desiderata to a mechanism on {grid_text(self.grid)}", ""]
        for part, choice, because, statement in self.steps:
            lines.append(f"{part:<{width}}  {choice}")
            lines.append(f"{'':<{width}}    {because} ({statement})")
        numbers = ", ".join(f"{name} {value:.5g}" for name, value in self.numbers.items())
        lines += ["", f"numbers: {numbers}", "still free:"]
        return "\n".join([*lines, *(f"  - {text}" for text in self.admissible.free)])

    __str__ = card


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
    family: Callable[..., Law] | None = None,
) -> Design:
    r"""The mechanism that the desiderata determine, with its derivation and the admissible class.

    Args:
        grid: Where it is deployed: height and width of the feature map.
        least_information: D1: the law with the largest entropy of all that meet the others.
        positive: D2: the gate changes no sign and deletes nothing.
        no_drift: D3: the gate has mean one at every ``"site"`` (in expectation), or in every
            ``"sample"`` (over sites).
        coherence: D4: the operator :math:`Q` whose energy :math:`\tfrac12\langle\psi,
            Q\psi\rangle` is limited; or its inverse, a :class:`~chaosgate.field.Kernel`.
        budget: D4: the mean energy :math:`\varepsilon`; without it :math:`\beta = 1`.
        gauge: D5: what makes the operator invertible: its ``"boundary"`` or a mass. If constants
            have no energy, ``"zero mean"`` fields are needed, or fields ``"pinned"`` to zero at the
            first site (with :class:`~chaosgate.field.Pinned`, at any site).
        gamma: Strength of the exponential, or of the field if the gate is signed.
        log_std: Strength as standard deviation of the log-gate, instead of ``gamma`` and
            ``budget``.
        injection: How the perturbation is applied to the features; positivity forces the product.
        alpha: Weight of the gate in the residual form.
        channels: One gate for all channels of a sample, or one each.
        family: The family of laws if D1 is not required: ``StudentT``, a ``partial`` of it, or any
            callable ``family(operator, grid, beta=..., epsilon=...)``.

    >>> from chaosgate.field import DirichletLaplacian
    >>> Q = DirichletLaplacian()
    >>> found = design((7, 7), no_drift="site", coherence=Q, budget=24.5, gamma=0.5)
    >>> print(found.steps[0].choice)
    N(0, (beta Q)^-1) with beta 1
    >>> MaxEntLaw(Q, (7, 7), epsilon=20) in found.admissible
    False
    >>> design((7, 7), no_drift="site", coherence=Q, gamma=0.5, injection="additive")
    Traceback (most recent call last):
        ...
    chaosgate.gate.desiderata.DesignError: D2 and injection exclude each other: a sum changes signs.
    """
    place = as_grid(grid)
    _refuse(
        ("D1", not (least_information or family), "name a family (StudentT)"),
        ("D4", not coherence, "give coherence (DirichletLaplacian())"),
        ("strength", not (gamma or log_std), "give log_std (try 1.0) or gamma"),
        (
            "injection",
            not (positive or injection),
            "without D2, choose 'multiplicative' or 'additive'",
        ),
        ("D3", positive and not no_drift, "the mean of exp(gamma psi) is above one"),
        ("D1 family", least_information and family, "the Gaussian has the largest entropy"),
        ("gamma log_std", gamma and log_std, "each determines tau"),
        ("log_std budget", log_std and budget, "the budget cancels in tau; give gamma"),
        ("D2 injection", positive and injection == "additive", "a sum changes signs"),
        ("D3 D2", no_drift == "sample" and not positive, "a signed gate may have mean zero"),
    )
    assert coherence is not None
    operator, found = coherence, None
    if operator.rank(place) == math.prod(place):
        found = "boundary"
    elif not operator.free(place).all():
        found = "pinned"
    _refuse(
        ("D5", not (found or gauge), "give gauge='zero mean' or 'pinned', or add a Massive"),
        ("D5 D4", found and gauge not in (None, found), f"{operator} does not need this gauge"),
        ("D5 D4", not found and gauge == "boundary", f"{operator} has no boundary"),
    )
    if not found and gauge == "pinned":
        operator = Pinned(operator, [0] * len(place))
    strength = float(log_std or gamma or 0)

    def law_on(at: Grid) -> Law:
        scale = {"beta": operator.mean_variance(at)} if log_std else {"epsilon": budget}
        return (family or MaxEntLaw)(operator, at, **scale)

    kind, *reasons = REALIZATIONS[positive, no_drift if positive else injection]
    deployed: Injection = Additive() if injection == "additive" else Multiplicative(alpha)
    gate = Mechanism(law_on, kind(strength), deployed, channels)
    gate.check(place)
    law = law_on(place)
    best = MaxEntLaw(operator, place, beta=law.beta)
    numbers = {name: float(getattr(law, name)) for name in ("n", "rank", "beta", "epsilon")}
    numbers |= {"gamma": strength, "tau": law.tau(strength), "log_std": law.log_std(strength)}
    numbers |= {"entropy": law.entropy()}
    if family not in (None, MaxEntLaw):
        numbers["entropy_gap"] = best.entropy() - law.entropy()
    symbol, kernel = ("K", "K") if isinstance(operator, Kernel) else ("Q", "Q^-1")
    steps = (
        Step(
            "law F",
            f"{law.family} with beta {law.beta:.6g}",
            "D1 D4: the largest entropy at this energy" if least_information else "as requested",
            "prop. maxent_logfield",
        ),
        Step(
            "kernel K",
            f"{kernel} / beta with {symbol} = {operator}",
            "D4: the operator determines its inverse",
            "cor. operator_substitution",
        ),
        Step(
            "gauge",
            GAUGES[found or str(gauge)],
            "D5: without a gauge there is no inverse",
            "sec. dgff",
        ),
        Step("realization", *reasons),
        Step(
            "injection T",
            "h + rms(h) psi" if injection == "additive" else "h (1 + alpha (gate - 1))",
            "D2: a positive gate scales amplitudes" if positive else "as requested",
            "eq. mul_injection",
        ),
    )
    fixed = {
        name: step.choice
        for step in steps
        for name in step.because.partition(":")[0].split()
        if name in DESIDERATA
    }
    free = (
        f"the strength, here {'log_std' if log_std else 'gamma'}; only tau matters",
        f"channels: {channels} was chosen",
        f"alpha of a product (eq. residual_mul): {alpha:g} was chosen",
        "the place in the network: see chaosgate.sites",
    )
    admissible = AdmissibleClass(best, fixed, free, least_information, positive, no_drift, strength)
    return Design(gate, place, steps, numbers, admissible)


def _refuse(*rows: tuple[str, object, str]) -> None:
    """Raise an error for the first row (names, whether it is wrong, why): one name is missing, two
    exclude each other.
    """
    for names, wrong, why in rows:
        if wrong:
            both = names.split()
            what = "exclude each other" if len(both) > 1 else "is missing"
            raise DesignError(f"{' and '.join(both)} {what}: {why}.")
