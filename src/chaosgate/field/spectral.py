"""Operators that a product of two one-dimensional bases diagonalises (paper, eq. dirichlet-eigs, alg. gch)."""

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid
from chaosgate.field.axis import Axis
from chaosgate.field.factor import Constants, Factor

COMBINED_UP_TO = 128
"""Up to this many sites the scale and both transforms are one n x n product.

Measured on one CPU thread with 64 fields in float32: on 7 x 7 it takes half the time of two products, on 14 x 14 more
than they do.
"""

FOLDED_UP_TO = 1 << 16
"""Up to this many entries, n H, every column has a vertical basis of its own with the scale folded in: a pass less."""

CHUNK_SITES = 1 << 18
"""On a CPU, fields are transformed this many sites at a time, so that intermediate results stay in its cache."""


class SpectralFactor(Factor):
    r"""Eigenvalues :math:`\lambda_{k\ell} = p\,a_k + q\,b_\ell + \mu` with eigenvectors :math:`e_k \otimes f_\ell`.

    White noise is read as spectral coefficients, :math:`\psi = E\,(Z \odot \lambda^{-1/2})\,F^\top`, in whatever order
    of the frequencies is fastest: a permutation of :math:`Z` does not change the law. Memory is linear in the number of
    sites. The mode with eigenvalue zero, if there is one, gets no noise: that is the zero-mean gauge.

    Args:
        vertical: Basis :math:`E` of the H rows.
        horizontal: Basis :math:`F` of the W columns.
        weights: Edge weights :math:`(p, q)` of the two axes.
        shift: The mass :math:`\mu`.
    """

    def __init__(
        self, vertical: Axis, horizontal: Axis, weights: tuple[float, float] = (1.0, 1.0), shift: float = 0.0
    ) -> None:
        self.grid: Grid = (vertical.n, horizontal.n)
        self.vertical, self.horizontal, self.weights, self.shift = vertical, horizontal, weights, shift
        rows, columns = weights[0] * vertical.eigenvalues(), weights[1] * horizontal.eigenvalues()
        self.eigenvalues = rows[:, None] + columns + shift
        gauge = vertical.has_zero_mode and horizontal.has_zero_mode and shift == 0.0
        self.n = self.eigenvalues.numel()
        self.rank = self.n - gauge
        self.inverses = self.eigenvalues.reciprocal()
        if gauge:
            self.inverses[0, 0] = 0.0
        self.logdet = float(self.spectrum()[-self.rank :].log().sum())
        self.variance = vertical.power(horizontal.power(self.inverses, -1), -2).contiguous()
        self.mean_variance = float(self.inverses.mean())
        self.combined = self.n <= COMBINED_UP_TO
        self.tall = vertical.n >= horizontal.n
        self.stacked = self.tall and vertical.plain and horizontal.plain
        self.folded = self.stacked and self.n * vertical.n <= FOLDED_UP_TO

    def spectrum(self) -> Tensor:
        """In the order of the frequencies (k, l), row by row."""
        return self.eigenvalues.flatten()

    def green(self) -> Tensor:
        """From the full basis; nothing else builds it, except on the smallest grids."""
        basis = self._full_basis()
        return basis * self.inverses.flatten() @ basis.T

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The combined map; or the scale and what each axis needs, unless the scale is folded into one of them."""
        scale, vertical, horizontal = self.inverses.sqrt(), self.vertical.constant(), self.horizontal.constant()
        if self.combined:
            tensors: Constants = ((self._full_basis() * scale.flatten()).T.contiguous(),)
        elif self.folded:
            tensors = (vertical.T * scale.T[:, :, None]).contiguous(), horizontal.T.contiguous()
        elif self.stacked:
            tensors = scale.T.contiguous(), vertical.T.contiguous(), horizontal.T.contiguous()
        else:
            scale = scale[self.vertical.order()][:, self.horizontal.order()]
            tensors = scale.T.contiguous() if self.tall else scale, vertical, horizontal
        return tuple(tensor.to(dtype.to_complex() if tensor.is_complex() else dtype).to(device) for tensor in tensors)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        """One product on the smallest grids, one or two per axis on the next, FFTs on the largest."""
        if self.combined:
            return (white.flatten(-2) @ constants[0]).view(white.shape)
        synthesize = self._by_columns if self.stacked else self._by_axes
        fields = white.reshape(-1, *self.grid)
        step = max(1, CHUNK_SITES // self.n)
        if white.device.type != "cpu" or torch.compiler.is_compiling() or len(fields) <= step:
            return synthesize(fields, constants).reshape(white.shape)
        out = torch.empty_like(fields)
        for start in range(0, len(fields), step):
            out[start : start + step] = synthesize(fields[start : start + step], constants)
        return out.view(white.shape)

    def shifted(self, mu: float) -> "SpectralFactor":
        """Shifts every eigenvalue; the basis stays."""
        return SpectralFactor(self.vertical, self.horizontal, self.weights, self.shift + mu)

    def _full_basis(self) -> Tensor:
        return torch.kron(self.vertical.basis(), self.horizontal.basis())

    def _by_columns(self, white: Tensor, constants: Constants) -> Tensor:
        """The vertical axis column by column, then one product for all rows, which leaves the fields contiguous."""
        *scale, vertical, horizontal = constants
        height, width = self.grid
        coefficients = white.reshape(-1, width, height)
        if not self.folded:
            coefficients, vertical = coefficients * scale[0], vertical.expand(width, -1, -1)
        columns = torch.bmm(coefficients.transpose(0, 1), vertical)  # (W, B, H)
        return (columns.view(width, -1).T @ horizontal).view(-1, height, width)

    def _by_axes(self, white: Tensor, constants: Constants) -> Tensor:
        """The longer axis first, on contiguous coefficients, then the other one."""
        scale, vertical, horizontal = constants
        if self.tall:
            fields = self.vertical.synthesize(white.reshape(-1, *scale.shape) * scale, -1, vertical)
            return self.horizontal.synthesize(fields.mT, -1, horizontal)
        fields = self.horizontal.synthesize(white * scale, -1, horizontal)
        return self.vertical.synthesize(fields, -2, vertical)
