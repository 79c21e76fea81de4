"""An operator given as a matrix."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid
from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.factor import Factor
from chaosgate.field.operator import Operator


class Dense(Operator):
    r"""Any symmetric positive definite matrix :math:`Q` (paper, cor. operator_substitution).

    It lives on every grid with as many sites as the matrix has rows. A matrix that annihilates the constants, and
    nothing else, is taken under the zero-mean gauge.

    Args:
        matrix: Shape (n, n), a tensor or nested lists.
    """

    def __init__(self, matrix: Tensor | Sequence[Sequence[float]]) -> None:
        given = matrix if isinstance(matrix, Tensor) else torch.tensor(matrix, dtype=torch.float64)
        values = given.detach().to("cpu").clone()
        if values.ndim != 2 or values.shape[0] != values.shape[1] or not len(values):
            raise ValueError(f"Dense needs a square matrix; got shape {tuple(values.shape)}.")
        self.values = values
        self.factor((len(values),))  # refuse a matrix that is no energy now, not at the first training step

    def matrix(self, grid: Grid) -> Tensor:
        """The matrix as given, in float64 and without an asymmetry of the size of rounding."""
        self._on(grid)
        values = self.values.double()
        return (values + values.T) / 2

    def factor(self, grid: Grid) -> Factor:
        """From the entries as given: how much of an asymmetry is rounding depends on their type."""
        self._on(grid)
        return CholeskyFactor.of_matrix(self.values, grid, str(self))

    def _on(self, grid: Grid) -> None:
        if math.prod(grid) != len(self.values):
            raise ValueError(
                f"{self} lives on {len(self.values)} sites; grid {tuple(grid)} has {math.prod(grid)}. "
                "Give a matrix for this grid, or attach the gate where the feature map has that size."
            )

    def __repr__(self) -> str:
        return f"Dense(matrix={len(self.values)}x{len(self.values)})"
