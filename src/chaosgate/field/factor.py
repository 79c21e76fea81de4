"""What an operator becomes on one grid: the numbers and the linear map that every law, gate and probe is built from."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid

Constants = tuple[Tensor, ...]
"""What a sampler multiplies with, already in the dtype and on the device of the white noise."""


class Factor(ABC):
    r"""An operator :math:`Q` solved on one grid: spectrum, Green kernel, and a root of the Green kernel.

    Everything here is float64 on the CPU; only :meth:`constants` moves to another dtype or device.

    Attributes:
        grid: Height and width.
        rank: Number of free directions: all n sites, or one fewer under a gauge.
        logdet: Logarithm of the product of the non-zero eigenvalues.
        variance: The diagonal of the Green kernel as a map, shape (H, W).
        mean_variance: Its mean.
    """

    grid: Grid
    rank: int
    logdet: float
    variance: Tensor
    mean_variance: float

    @abstractmethod
    def spectrum(self) -> Tensor:
        """All n eigenvalues, shape (n,); exactly zero on the direction that a gauge removes."""

    @abstractmethod
    def green(self) -> Tensor:
        r"""The (Moore-Penrose) inverse :math:`G = Q^{+}`, shape (n, n)."""

    @abstractmethod
    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The tensors that :meth:`color` needs; the caller keeps them.

        Cast before they move: not every device has float64.
        """

    @abstractmethod
    def color(self, white: Tensor, constants: Constants) -> Tensor:
        r"""Map white noise (..., H, W) by :math:`A` with :math:`A A^\top = G`; torch alone, no wait for the host."""

    @abstractmethod
    def shifted(self, mu: float) -> "Factor":
        r"""The factor of :math:`Q + \mu I`, of the same structure."""
