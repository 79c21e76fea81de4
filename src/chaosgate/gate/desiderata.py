"""What can be asked of a noise mechanism, and which requests exclude each other or leave something open."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chaosgate.field import (
    CovarianceFunction,
    CovarianceMatrix,
    Grid,
    Kernel,
    Law,
    MaxEntLaw,
    Operator,
    Pinned,
)
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


class DesignError(ValueError):
    """Desiderata from which no mechanism follows.

    Attributes:
        desiderata: The pair that clashes, or the one that is missing.
    """

    def __init__(self, message: str, *desiderata: str) -> None:
        super().__init__(message)
        self.desiderata = desiderata


Family = Callable[..., Law]
"""A family of laws: a class, or anything else called as ``family(operator, grid, beta=..., epsilon=...)``."""

KernelLike = Kernel | Tensor | Sequence[Sequence[float]] | Callable[[Tensor], Tensor]
"""A covariance: a class, a matrix (n, n), or a function of the distances between sites."""


def require_coherence(coherence: Operator | None, kernel: KernelLike | None) -> Operator:
    """The operator of the budget, from itself or from the kernel that it forces."""
    if coherence is not None and kernel is not None:
        raise DesignError(
            "coherence and kernel exclude each other: the kernel is the inverse of the operator. Give one.",
            "D4",
            "kernel",
        )
    if coherence is not None:
        return coherence
    if kernel is None:
        raise DesignError(
            "D4 is missing: without a quadratic budget the entropy of a log-field has no maximum. Give coherence=Q, an "
            "operator such as DirichletLaplacian(), or the kernel itself; Identity() if sites should be independent.",
            "D4",
        )
    if isinstance(kernel, Operator):
        return kernel
    return CovarianceFunction(kernel) if callable(kernel) else CovarianceMatrix(kernel)


def choose_family(least_information: bool, family: Family | None) -> Family:
    """The family of the law: D1 leaves the Gaussian one alone, without D1 it has to be named."""
    if family is None and not least_information:
        raise DesignError(
            "D1 is missing: a budget alone admits every centred law of that energy. Ask for least_information=True, "
            "which leaves one, or name a family, such as family=StudentT.",
            "D1",
        )
    if family is not None and family is not MaxEntLaw and least_information:
        name = getattr(family, "__name__", str(family))
        raise DesignError(
            f"D1 and family={name} exclude each other: at a given energy the Gaussian law alone has the largest "
            "entropy. Leave out the family, or set least_information=False.",
            "D1",
            "family",
        )
    return MaxEntLaw if family is None else family


def require_gauge(
    operator: Operator, grid: Grid, gauge: str | None, pin: Sequence[int] | None
) -> tuple[Operator, str]:
    """The operator with its gauge, and what makes it invertible on this grid."""
    if gauge not in (None, "boundary", "zero mean", "pinned"):
        raise ValueError(f"gauge is 'boundary', 'zero mean', 'pinned' or None; got {gauge!r}.")
    if pin is not None and gauge != "pinned":
        raise DesignError(
            f"pin is the site of gauge='pinned'; gauge={gauge!r} has none.", "pin", "D5"
        )
    n = math.prod(grid)
    free = charges_no_constants(operator, grid)
    rank = n - 1 if n == 1 and free else operator.rank(grid)
    if rank == n or not free:
        found = "boundary" if rank == n else "pinned"
        if gauge not in (None, found) or pin is not None:
            how = "is invertible as it is" if rank == n else "holds a site at zero already"
            raise DesignError(
                f"D5 and D4 exclude each other: {operator} {how}, and gauge={gauge!r} would take away a direction that "
                "its budget charges. Leave out the gauge, or use Neumann() or Periodic().",
                "D5",
                "D4",
            )
        return operator, found
    if gauge is None:
        raise DesignError(
            f"D5 is missing: {operator} does not charge constants, so it has no inverse. Give gauge='zero mean' or "
            "'pinned', add a mass (Massive), or use DirichletLaplacian().",
            "D5",
        )
    if gauge == "boundary":
        raise DesignError(
            f"D5 and D4 exclude each other: gauge='boundary' asks for an operator that is tied to zero, and "
            f"{operator} is not. Use DirichletLaplacian(), or gauge='zero mean' or 'pinned'.",
            "D5",
            "D4",
        )
    if gauge == "pinned":
        return Pinned(operator, [0] * len(grid) if pin is None else pin), gauge
    return operator, gauge


def charges_no_constants(operator: Operator, grid: Grid) -> bool:
    """Whether constant fields have no energy, so that the operator needs a gauge."""
    ones = torch.ones(1, *grid, dtype=torch.float64)
    return float(operator.energy(ones, len(grid))) <= 1e-12 * float(
        operator.matrix(grid).diagonal().sum()
    )


def require_strength(gamma: float | None, log_std: float | None, budget: float | None) -> float:
    """The factor on the field."""
    strength = gamma if log_std is None else log_std
    if strength is None:
        raise DesignError(
            "the strength is missing: the desiderata force the geometry, not how strong the noise is. Give gamma, or "
            "log_std (1.0 is a good start).",
            "strength",
        )
    if gamma is not None and log_std is not None:
        raise DesignError(
            "gamma and log_std exclude each other: each fixes tau alone. Give one.",
            "gamma",
            "log_std",
        )
    if log_std is not None and budget is not None:
        raise DesignError(
            "log_std and budget exclude each other: log_std fixes tau = gamma^2 / beta, in which the budget cancels. "
            "Give gamma with the budget, or log_std alone.",
            "log_std",
            "D4",
        )
    if strength == 0:
        name = "gamma" if log_std is None else "log_std"
        raise DesignError(
            f"{name}=0 is the constant gate one, no noise at all. Give another strength.",
            "strength",
        )
    return float(strength)


def require_injection(positive: bool, injection: str | None, alpha: float) -> Injection:
    if injection not in (None, "multiplicative", "additive"):
        raise ValueError(f"injection is 'multiplicative', 'additive' or None; got {injection!r}.")
    if positive and injection == "additive":
        raise DesignError(
            "D2 and an additive injection exclude each other: a sum with a Gaussian field changes signs with positive "
            "probability at any strength. Use injection='multiplicative', or positive=False.",
            "D2",
            "injection",
        )
    if not positive and injection is None:
        raise DesignError(
            "the injection is missing: without D2 a signed field may multiply or add. Give injection='multiplicative' "
            "(the gate 1 + gamma psi) or 'additive' (h + gamma rms(h) psi).",
            "injection",
        )
    if injection == "additive":
        if alpha != 1:
            raise DesignError(
                "alpha belongs to the product; an additive injection has none.",
                "alpha",
                "injection",
            )
        return Additive()
    return Multiplicative(alpha)


def choose_realization(
    law: Law, positive: bool, no_drift: str | None, injection: Injection, strength: float
) -> Realization:
    if no_drift not in (None, "site", "sample"):
        raise ValueError(f"no_drift is 'site', 'sample' or None; got {no_drift!r}.")
    if not positive:
        if no_drift == "sample":
            raise DesignError(
                "D3 per sample and a signed perturbation exclude each other: the spatial mean of a signed gate comes "
                "arbitrarily close to zero, so nothing can be divided by it. Use no_drift='site' (a centred field has "
                "it), or positive=True.",
                "D3",
                "D2",
            )
        return (
            Plain(float(strength)) if isinstance(injection, Additive) else Signed(float(strength))
        )
    if no_drift is None:
        raise DesignError(
            "D3 is missing: exp(gamma psi) alone has mean above one, and positivity does not say how to normalise it. "
            "Give no_drift='site' (Wick normalisation) or 'sample' (division by the spatial mean).",
            "D3",
        )
    if no_drift == "sample" and law.n == 1:
        raise DesignError(
            "D3 per sample and a grid of one site exclude each other: a gate divided by its own value is constantly "
            "one. Use no_drift='site', or a stage with a larger grid.",
            "D3",
            "grid",
        )
    if no_drift == "site" and not law.has_exponential_moment:
        raise DesignError(
            f"D3 per site and this family exclude each other: under {law.family}, E exp(gamma psi) is infinite at any "
            "strength, so the Wick gate, which divides by it, does not exist. Use no_drift='sample', which divides by "
            "the spatial mean, or the Gaussian family.",
            "D3",
            "family",
        )
    return Wick(float(strength)) if no_drift == "site" else SampleWise(float(strength))
