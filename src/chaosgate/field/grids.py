"""Operators of the regular grid."""

import torch
from torch import Tensor

from chaosgate.field.factor import Factor, Grid
from chaosgate.field.operator import Operator
from chaosgate.field.spectral import SpectralFactor


def path_matrix(n: int) -> Tensor:
    """Laplacian of n sites in a row, both ends tied to a boundary site held at zero; shape (n, n)."""
    off = torch.ones(n - 1, dtype=torch.float64, device="cpu")
    return 2 * torch.eye(n, dtype=torch.float64, device="cpu") - off.diag(1) - off.diag(-1)


class DirichletLaplacian(Operator):
    r"""Graph Laplacian of the H x W grid, zero on an auxiliary outer boundary (eq. dirichlet_laplacian).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2(H+1)} + 4\sin^2\frac{\pi \ell}{2(W+1)} > 0

    so the Green kernel :math:`G_U = L_U^{-1}` exists without gauge fixing (eq. dirichlet-eigs).
    """

    def matrix(self, grid: Grid) -> Tensor:
        eyes = [torch.eye(side, dtype=torch.float64, device="cpu") for side in grid]
        return torch.kron(path_matrix(grid[0]), eyes[1]) + torch.kron(eyes[0], path_matrix(grid[1]))

    def factor(self, grid: Grid) -> Factor:
        axes = [
            4 * torch.sin(torch.pi * torch.arange(1, n + 1, dtype=torch.float64, device="cpu") / (2 * (n + 1))) ** 2
            for n in grid
        ]
        return SpectralFactor(axes[0], axes[1])
