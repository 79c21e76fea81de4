"""Operators that a product of two one-dimensional bases diagonalises (paper, eq. dirichlet-eigs)."""

import math

import torch
from torch import Tensor

from chaosgate.field.factor import Constants, Factor, Grid


def sine_basis(n: int) -> Tensor:
    r"""Orthonormal DST-I basis, :math:`\sqrt{2/(n+1)}\,\sin(\pi k i/(n+1))`; symmetric, shape (n, n)."""
    index = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    # Reducing k * i modulo the period keeps the argument small, hence the sine exact, on long axes.
    phase = (index[:, None] * index) % (2 * (n + 1))
    return math.sqrt(2 / (n + 1)) * torch.sin(torch.pi * phase / (n + 1))


class SpectralFactor(Factor):
    r"""Eigenvalues :math:`\lambda_{k\ell} = a_k + b_\ell` and eigenvectors :math:`e_k \otimes f_\ell`.

    White noise is read as spectral coefficients: :math:`\psi = E\,(Z \odot \lambda^{-1/2})\,F^\top`, two products.
    """

    def __init__(self, vertical: Tensor, horizontal: Tensor, shift: float = 0.0) -> None:
        self.grid: Grid = (len(vertical), len(horizontal))
        self.axes = (vertical, horizontal)
        self.shift = shift
        self.eigenvalues = vertical[:, None] + horizontal + shift
        self.rank = self.eigenvalues.numel()

    def spectrum(self) -> Tensor:
        return self.eigenvalues.flatten()

    def green(self) -> Tensor:
        basis = torch.kron(sine_basis(self.grid[0]), sine_basis(self.grid[1]))
        return basis / self.spectrum() @ basis.T

    def variance(self) -> Tensor:
        return sine_basis(self.grid[0]) ** 2 @ self.eigenvalues.reciprocal() @ sine_basis(self.grid[1]) ** 2

    def logdet(self) -> float:
        return float(self.eigenvalues.log().sum())

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        tensors = self.eigenvalues.rsqrt(), sine_basis(self.grid[0]), sine_basis(self.grid[1])
        return tuple(tensor.to(device=device, dtype=dtype) for tensor in tensors)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        scale, vertical, horizontal = constants
        return vertical @ (white * scale @ horizontal)

    def shifted(self, mu: float) -> "SpectralFactor":
        return SpectralFactor(*self.axes, self.shift + mu)
