"""Operators, the maximum-entropy laws they force, and the linear maps that sample them (paper,
sections 4 and 5).
"""

from chaosgate.field.graph import EdgeWeighted, FeatureGraph, Graph
from chaosgate.field.grids import (
    Anisotropic,
    BandLimited,
    DirichletLaplacian,
    Fractional,
    Identity,
    MultiScale,
    Neumann,
    Periodic,
    Spectral,
)
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
from chaosgate.field.operator import Grid, Massive, Operator
from chaosgate.field.pinned import Pinned

__all__ = [
    "Anisotropic",
    "BandLimited",
    "CovarianceFunction",
    "CovarianceMatrix",
    "Dense",
    "DirichletLaplacian",
    "EdgeWeighted",
    "FeatureGraph",
    "Fractional",
    "Graph",
    "Grid",
    "Identity",
    "Kernel",
    "Law",
    "Massive",
    "Matern",
    "MaxEntLaw",
    "MultiScale",
    "Neumann",
    "Operator",
    "Periodic",
    "Pinned",
    "Spectral",
    "StudentT",
    "beta_from_epsilon",
    "epsilon_from_beta",
    "gamma_from_tau",
    "log_std_from_tau",
    "tau_from_gamma",
    "tau_from_log_std",
]
