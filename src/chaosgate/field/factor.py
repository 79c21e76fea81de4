"""What an operator becomes on one grid: the numbers and the linear map that every law, gate and probe is built from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

Grid = tuple[int, int]
"""Height and width of a feature map; sites are flattened row by row."""

Constants = tuple[Tensor, ...]
"""What a sampler multiplies with, already in the dtype and on the device of the white noise."""


def as_grid(grid: Sequence[int]) -> Grid:
    """Check that ``grid`` is a pair of positive integers and return it as a tuple, so that it can key a cache."""
    sides = tuple(int(side) for side in grid)
    if len(sides) != 2 or min(sides) < 1 or sides != tuple(grid):
        raise ValueError(f"a grid is (height, width) in positive whole numbers; got {tuple(grid)}.")
    return sides[0], sides[1]


class Factor(ABC):
    r"""An operator :math:`Q` solved on one grid: spectrum, Green kernel, and a root of the Green kernel.

    Everything here is float64 on the CPU; only :meth:`constants` moves to another dtype or device.

    Attributes:
        grid: Height and width.
        rank: Number of free directions: all n sites, or one fewer under a gauge.
    """

    grid: Grid
    rank: int

    @abstractmethod
    def spectrum(self) -> Tensor:
        """All n eigenvalues, shape (n,); exactly zero on the direction that a gauge removes."""

    @abstractmethod
    def green(self) -> Tensor:
        r"""The (Moore-Penrose) inverse :math:`G = Q^{+}`, shape (n, n)."""

    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of the Green kernel as a map, shape (H, W)."""

    @abstractmethod
    def logdet(self) -> float:
        """Logarithm of the product of the non-zero eigenvalues."""

    @abstractmethod
    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The tensors that :meth:`color` needs; the caller keeps them."""

    @abstractmethod
    def color(self, white: Tensor, constants: Constants) -> Tensor:
        r"""Map white noise (..., H, W) by :math:`A` with :math:`A A^\top = G`; pure torch, nothing built or synchronised."""

    @abstractmethod
    def shifted(self, mu: float) -> "Factor":
        r"""The factor of :math:`Q + \mu I`, of the same structure."""

    def mean_variance(self) -> float:
        r"""Mean site variance :math:`\frac1n \sum_x G(x, x)`."""
        return float(self.variance().mean())
