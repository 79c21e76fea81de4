"""Operators, the maximum-entropy laws they force, and the linear maps that sample them (paper, sections 4 and 5)."""

from chaosgate.field.factor import Grid
from chaosgate.field.grids import DirichletLaplacian
from chaosgate.field.law import MaxEntLaw
from chaosgate.field.operator import Operator
from chaosgate.field.strength import (
    beta_from_epsilon,
    epsilon_from_beta,
    gamma_from_tau,
    log_std_from_tau,
    tau_from_gamma,
    tau_from_log_std,
)

__all__ = [
    "DirichletLaplacian",
    "Grid",
    "MaxEntLaw",
    "Operator",
    "beta_from_epsilon",
    "epsilon_from_beta",
    "gamma_from_tau",
    "log_std_from_tau",
    "tau_from_gamma",
    "tau_from_log_std",
]
