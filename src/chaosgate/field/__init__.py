"""Operators, the maximum-entropy laws they force, and the linear maps that sample them (paper, sections 4 and 5)."""

from chaosgate.field.arguments import Grid
from chaosgate.field.entropy_gap import EntropyGap, gaussian_entropy_gap, laplace_entropy_gap
from chaosgate.field.graph import EdgeWeighted, Graph
from chaosgate.field.grids import Anisotropic, DirichletLaplacian, Identity, Neumann, Periodic
from chaosgate.field.law import (
    Law,
    MaxEntLaw,
    StudentT,
    beta_from_epsilon,
    epsilon_from_beta,
    gamma_from_tau,
    log_std_from_tau,
    tau_from_gamma,
    tau_from_log_std,
)
from chaosgate.field.matrices import CovarianceFunction, CovarianceMatrix, Dense, Kernel, Matern
from chaosgate.field.operator import Massive, Operator, Pinned

__all__ = [
    "Anisotropic",
    "CovarianceFunction",
    "CovarianceMatrix",
    "Dense",
    "DirichletLaplacian",
    "EdgeWeighted",
    "EntropyGap",
    "Graph",
    "Grid",
    "Identity",
    "Kernel",
    "Law",
    "Massive",
    "Matern",
    "MaxEntLaw",
    "Neumann",
    "Operator",
    "Periodic",
    "Pinned",
    "StudentT",
    "beta_from_epsilon",
    "epsilon_from_beta",
    "gamma_from_tau",
    "gaussian_entropy_gap",
    "laplace_entropy_gap",
    "log_std_from_tau",
    "tau_from_gamma",
    "tau_from_log_std",
]
