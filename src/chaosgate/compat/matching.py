r"""Reference gates that inject a given energy relative to the features, :math:`E\|\tilde h-h\|^2 =
e\,\|h\|^2`.

Methods are compared at equal injected energy, so each one is solved for the same :math:`e` on the
same features.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chaosgate.field import DirichletLaplacian, MaxEntLaw, Operator
from chaosgate.field.white import Noise, fold
from chaosgate.gate import (
    CorrelatedGaussian,
    DropBlock,
    Dropout,
    Gate,
    GaussianChaos,
    IIDGaussian,
    IIDLogNormal,
    SignedCorrelated,
    samplewise,
)

_SITES = 1 << 18  # sites of the fields drawn to estimate the energy of the sample-wise gate


def power_map(h: Tensor) -> Tensor:
    r""":math:`\sum_{b,c} h(b,c,x)^2` of features (B, C, \*grid) as a map, which determines the
    injected energy.
    """
    return h.detach().double().square().sum((0, 1))


def _gch(power: Tensor, energy: float, operator: Operator) -> Gate:
    grid = tuple(power.shape)
    law = MaxEntLaw(operator, grid, beta=operator.mean_variance(grid))
    count = max(64, _SITES // power.numel())
    psi = law.color(Noise(torch.tensor(fold("energy matching"))).normal((count, *grid)))
    share = power / power.sum()

    def injected(log_std: float) -> float:
        pairs = (samplewise(psi, sign * log_std, len(grid)) for sign in (1, -1))
        return float(sum(((xi - 1).double().square().mean(0) * share).sum() for xi in pairs)) / 2

    return GaussianChaos(log_std=_solve(injected, energy, 12.0, "GaussianChaos"), operator=operator)


def _gch_wick(power: Tensor, energy: float, operator: Operator) -> Gate:
    variance, share = _unit_variance(operator, power), power / power.sum()

    def injected(log_std: float) -> float:
        return float((torch.expm1(log_std**2 * variance) * share).sum())

    log_std = _solve(injected, energy, 12.0, "GaussianChaos")
    return GaussianChaos(log_std=log_std, operator=operator, realization="wick")


def _dropblock(power: Tensor, energy: float, operator: Operator) -> Gate:
    root, total = power.sqrt()[None, None], float(power.sum())

    def injected(p: float) -> float:
        return float(DropBlock(p, 3).expected_energy(root)) / total

    return DropBlock(_solve(injected, energy, 0.999, "DropBlock"), 3)


def _signed(power: Tensor, energy: float, operator: Operator) -> Gate:
    weighted = (power * _unit_variance(operator, power)).sum()
    return SignedCorrelated(math.sqrt(energy * float(power.sum() / weighted)), operator)


def _unit_variance(operator: Operator, power: Tensor) -> Tensor:
    """Site variances, scaled to mean one."""
    grid = tuple(power.shape)
    return operator.variance(grid) / operator.mean_variance(grid)


METHODS: dict[str, Callable[[Tensor, float, Operator], Gate]] = {
    "dropout": lambda power, energy, operator: Dropout(energy / (1 + energy), mask="site"),
    "dropout_element": lambda power, energy, operator: Dropout(energy / (1 + energy)),
    "dropblock": _dropblock,
    "iid_gaussian": lambda power, energy, operator: IIDGaussian(math.sqrt(energy)),
    "correlated_gaussian": lambda power, energy, operator: CorrelatedGaussian(
        math.sqrt(energy), operator
    ),
    "signed_correlated": _signed,
    "iid_lognormal": lambda power, energy, operator: IIDLogNormal(math.sqrt(math.log1p(energy))),
    "gch_wick": _gch_wick,
    "gch": _gch,
}
"""Solvers by name: from the power map of the features, the energy and an operator to a gate."""

DEFAULT_METHODS = ("gch", "dropout", "dropblock", "iid_gaussian", "correlated_gaussian")


def matched_gates(
    h: Tensor,
    energy: float,
    methods: Sequence[str] = DEFAULT_METHODS,
    operator: Operator | None = None,
) -> dict[str, Gate]:
    r"""Gates that inject ``energy`` times the energy of the features (B, C, \*grid), by the name of
    the method.

    ``dropout`` drops whole sites, as in the theorems; ``dropout_element`` drops single values.

    >>> matched_gates(torch.ones(2, 3, 7, 7), 0.25, ["dropout"])["dropout"].p
    0.2
    """
    check_methods(methods)
    if not (energy > 0 and math.isfinite(energy)):
        raise ValueError(f"energy must be positive (relative to the features); got {energy}.")
    power = power_map(h).cpu()
    if not float(power.sum()) > 0:
        raise ValueError(
            "the features are zero everywhere, so no energy can be matched. Probe another stage."
        )
    operator = operator or DirichletLaplacian()
    return {name: METHODS[name](power, energy, operator) for name in methods}


def check_methods(methods: Sequence[str]) -> None:
    """Raise an error unless every name is a method."""
    for name in methods:
        if name not in METHODS:
            raise ValueError(f"there is no method {name!r}. Available: {', '.join(METHODS)}.")


def _solve(injected: Callable[[float], float], energy: float, largest: float, name: str) -> float:
    """The strength in (0, largest) at which an increasing function reaches ``energy``, by
    bisection.
    """
    if injected(largest) < energy:
        raise ValueError(
            f"{name} cannot inject {energy:.3g} of the features' energy on this grid. Use less."
        )
    low, high = 0.0, largest
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if injected(middle) < energy else (low, middle)
    return high
