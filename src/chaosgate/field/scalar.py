"""The trivial factor: every site on its own."""

import math

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid
from chaosgate.field.factor import Constants, Factor


class ScalarFactor(Factor):
    r"""A multiple :math:`c I` of the identity."""

    def __init__(self, grid: Grid, scale: float) -> None:
        self.grid, self.scale, self.rank = grid, scale, grid[0] * grid[1]
        self.logdet = self.rank * math.log(scale)
        self.mean_variance = 1 / scale
        self.variance = torch.full(grid, self.mean_variance, dtype=torch.float64, device="cpu")

    def spectrum(self) -> Tensor:
        """All equal."""
        return torch.full((self.rank,), self.scale, dtype=torch.float64, device="cpu")

    def green(self) -> Tensor:
        """Diagonal."""
        return self.spectrum().reciprocal().diag()

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """One number."""
        return (torch.tensor(self.scale**-0.5, device=device, dtype=dtype),)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        """A multiplication."""
        return white * constants[0]

    def shifted(self, mu: float) -> "ScalarFactor":
        """Again a scalar."""
        return ScalarFactor(self.grid, self.scale + mu)
