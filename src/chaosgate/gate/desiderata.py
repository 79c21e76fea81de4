"""What can be asked of a noise mechanism, and which requests exclude each other or leave something open."""

import math

import torch

from chaosgate.field import Grid, Operator
from chaosgate.gate.injection import Additive, Injection, Multiplicative
from chaosgate.gate.realization import Plain, Realization, SampleWise, Signed, Wick

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


def require_budget(least_information: bool, coherence: Operator | None) -> Operator:
    if coherence is None:
        raise DesignError(
            "D4 is missing: without a quadratic budget the entropy of a log-field has no maximum. Give coherence=Q, an "
            "operator such as DirichletLaplacian(); Identity() if sites shall be independent.",
            "D4",
        )
    if not least_information:
        raise DesignError(
            "D1 is missing: a budget alone admits every centred law of that energy. Ask for least_information=True, "
            "which leaves one, or build cg.Mechanism(law, realization, injection) from a law of your choice.",
            "D1",
        )
    return coherence


def require_gauge(operator: Operator, grid: Grid, gauge: str | None) -> str:
    """What makes the operator invertible on this grid."""
    if gauge not in (None, "boundary", "zero mean"):
        raise ValueError(f"gauge is 'boundary', 'zero mean' or None; got {gauge!r}.")
    n = math.prod(grid)
    rank = n - 1 if n == 1 and _free_constant(operator, grid) else operator.rank(grid)
    if rank == n:
        if gauge == "zero mean":
            raise DesignError(
                f"D5 and D4 exclude each other: {operator} is invertible as it is, and a zero-mean gauge would "
                "take away a direction that its budget charges. Leave out the gauge, or use Neumann() or Periodic().",
                "D5",
                "D4",
            )
        return "boundary"
    if not _free_constant(operator, grid):
        return "pinned"
    if gauge is None:
        raise DesignError(
            f"D5 is missing: {operator} charges constants nothing, so it has no inverse. Say gauge='zero mean', "
            "add a mass (Massive), or use DirichletLaplacian().",
            "D5",
        )
    if gauge == "boundary":
        raise DesignError(
            f"D5 and D4 exclude each other: gauge='boundary' asks for an operator that is tied to zero, and "
            f"{operator} is not. Use DirichletLaplacian(), or gauge='zero mean'.",
            "D5",
            "D4",
        )
    return "zero mean"


def _free_constant(operator: Operator, grid: Grid) -> bool:
    ones = torch.ones(1, *grid, dtype=torch.float64)
    return float(operator.energy(ones, len(grid))) <= 1e-12 * float(operator.matrix(grid).diagonal().sum())


def require_strength(gamma: float | None, log_std: float | None, budget: float | None) -> None:
    if gamma is None and log_std is None:
        raise DesignError(
            "the strength is missing: the desiderata force the geometry, not how strong the noise is. Give gamma, or "
            "log_std (1.0 is a good start).",
            "strength",
        )
    if gamma is not None and log_std is not None:
        raise DesignError("gamma and log_std exclude each other: each fixes tau alone. Give one.", "gamma", "log_std")
    if log_std is not None and budget is not None:
        raise DesignError(
            "log_std and budget exclude each other: log_std fixes tau = gamma^2 / beta, in which the budget cancels. "
            "Give gamma with the budget, or log_std alone.",
            "log_std",
            "D4",
        )
    for name, value in (("gamma", gamma), ("log_std", log_std)):
        if value == 0:
            raise DesignError(f"{name}=0 is the constant gate one, no noise at all. Give another strength.", "strength")


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
            "the injection is missing: without D2 a signed field may multiply or add. Say injection='multiplicative' "
            "(the gate 1 + gamma psi) or 'additive' (h + gamma rms(h) psi).",
            "injection",
        )
    if injection == "additive":
        if alpha != 1:
            raise DesignError("alpha belongs to the product; an additive injection has none.", "alpha", "injection")
        return Additive()
    return Multiplicative(alpha)


def choose_realization(
    grid: Grid, positive: bool, no_drift: str | None, injection: Injection, strength: float | None
) -> Realization:
    assert strength is not None
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
        return Plain(float(strength)) if isinstance(injection, Additive) else Signed(float(strength))
    if no_drift is None:
        raise DesignError(
            "D3 is missing: exp(gamma psi) alone has mean above one, and positivity does not say how to normalise it. "
            "Say no_drift='site' (Wick normalisation) or 'sample' (division by the spatial mean).",
            "D3",
        )
    if no_drift == "sample" and math.prod(grid) == 1:
        raise DesignError(
            "D3 per sample and a grid of one site exclude each other: a gate divided by its own value is constantly "
            "one. Use no_drift='site', or a stage with a larger grid.",
            "D3",
            "grid",
        )
    return Wick(float(strength)) if no_drift == "site" else SampleWise(float(strength))
