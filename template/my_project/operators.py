"""An operator: a symmetric positive definite matrix. The covariance of the noise is its inverse."""

import torch
from torch import Tensor

import chaosgate as cg


class Islands(cg.Operator):
    """Dirichlet Laplacian with weak edges between the left and the right half of the map."""

    def __init__(self, tie: float = 0.05) -> None:
        self.tie = tie

    def matrix(self, grid: tuple[int, ...]) -> Tensor:
        laplacian = cg.DirichletLaplacian().matrix(grid)
        column = torch.arange(grid[0] * grid[1]) % grid[1]
        left = column < grid[1] // 2
        cut = (left[:, None] != left[None, :]) & (laplacian < 0)
        change = torch.where(cut, (1 - self.tie) * laplacian, torch.zeros_like(laplacian))
        return laplacian - change + change.sum(1).diag()
