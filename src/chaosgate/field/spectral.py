r"""Fast transforms for regular grids: eigenvectors of sites in a row for three boundary conditions,
and operators that a product of them diagonalizes.

Each basis diagonalizes the one-dimensional Laplacian with unit weights. Synthesis, :math:`x_i =
\sum_k E_{ik} a_k`, is one matrix product on short axes, two products of half the size on longer
ones, and a real FFT where an n x n basis would be slow or large. Along an axis, a
grid has the shape (outer, n, inner): the axes before it, the axis, the axes after it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from chaosgate.field.operator import Constants, Factor

COMBINED_UP_TO = 128
"""Up to this many sites the scale and all transforms are one n x n product.

Measured on one CPU thread with 64 fields in float32: on 7 x 7 and 10 x 10 this takes half the time
of one product per axis, on 14 x 14 more time.
"""

CHUNK_SITES = 1 << 18
"""On a CPU, fields are transformed this many sites at a time, so that intermediate results stay in
its cache.
"""

HALVED_FROM = 128
"""Shortest axis on which a product is worth splitting into a symmetric and an antisymmetric
half.
"""


class Axis(ABC):
    r"""An orthonormal eigenbasis :math:`E` of n sites in a row, column k with eigenvalue
    :math:`\lambda_k`.

    Args:
        n: Number of sites.
    """

    first: ClassVar[int]
    """The first of the n frequencies k."""

    matmul_up_to: ClassVar[int]
    """Longest axis that is synthesized by matrix products rather than an FFT.

    The limit depends on how well the length of the FFT factorizes: 2n + 2 for the sine
    basis, 2n for the cosine basis, n for the Hartley basis. Measured on one CPU thread in float32.
    """

    has_mirror: ClassVar[bool] = True
    """Whether the basis vectors are alternately symmetric and antisymmetric under reversal of the
    axis.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.k = torch.arange(self.first, self.first + n, dtype=torch.float64, device="cpu")
        self.short = n <= self.matmul_up_to
        self.halved = self.short and self.has_mirror and n >= HALVED_FROM

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """Eigenvalues in the order of the frequencies, shape (n,)."""

    @abstractmethod
    def basis(self) -> Tensor:
        """The basis, shape (sites, frequencies)."""

    @abstractmethod
    def power(self, values: Tensor) -> Tensor:
        r"""Apply the squared basis to (outer, n, inner): :math:`\sum_k E_{ik}^2 v_k`, the variances
        of independent coefficients.

        The values must depend on k through the eigenvalue alone.
        """

    @abstractmethod
    def phases(self) -> Tensor:
        """Factors of :meth:`transform`."""

    @abstractmethod
    def transform(self, coefficients: Tensor, phases: Tensor) -> Tensor:
        """Apply the basis to (outer, n, inner) through an FFT."""

    def order(self) -> Tensor:
        """The order of frequencies in :meth:`synthesize`: every second one first if halved."""
        index = torch.arange(self.n, device="cpu")
        return torch.cat([index[0::2], index[1::2]]) if self.halved else index

    def constant(self) -> Tensor:
        """Factors of :meth:`synthesize`: the basis, half of it, or the phases of an FFT."""
        if not self.short:
            return self.phases()
        basis = self.basis()
        return basis[: (self.n + 1) // 2, self.order()].contiguous() if self.halved else basis

    def synthesize(self, coefficients: Tensor, constant: Tensor) -> Tensor:
        """Apply the basis to coefficients (outer, n, inner), given in the order of
        :meth:`order`.
        """
        if not self.short:
            return self.transform(coefficients, constant)
        if not self.halved:
            return _multiply(constant, coefficients)
        # The symmetric and the antisymmetric part on half of the sites give the other half: half
        # the arithmetic.
        count = (self.n + 1) // 2
        even = _multiply(constant[:, :count], coefficients[:, :count])
        odd = _multiply(constant[:, count:], coefficients[:, count:])
        both = even + odd
        return torch.cat([both, even.sub_(odd)[:, : self.n - count].flip(1)], 1)


class Sine(Axis):
    r"""Both ends fixed at zero (DST-I): :math:`E_{ik} = \sqrt{\tfrac2{n+1}}\sin\tfrac{\pi i
    k}{n+1}`, i, k from 1 to n.

    .. math:: \lambda_k = 4 \sin^2 \frac{\pi k}{2(n+1)}
    """

    first = 1
    matmul_up_to = 1024

    def eigenvalues(self) -> Tensor:
        """All positive, ascending."""
        return 4 * torch.sin(torch.pi * self.k / (2 * (self.n + 1))) ** 2

    def basis(self) -> Tensor:
        """Symmetric."""
        # Reducing modulo the period keeps the argument small, and with it the error of the sine.
        phase = torch.outer(self.k, self.k) % (2 * (self.n + 1))
        return math.sqrt(2 / (self.n + 1)) * torch.sin(torch.pi * phase / (self.n + 1))

    def power(self, values: Tensor) -> Tensor:
        """From 2 sin^2 = 1 - cos of the double angle."""
        cosines: Tensor = torch.fft.fft(_pad(values), dim=1).real[:, 1:]
        return (values.sum(1, keepdim=True) - cosines) / (self.n + 1)

    def phases(self) -> Tensor:
        """A norm, and the sign of the sines in a forward FFT."""
        return torch.tensor(-math.sqrt(2 / (self.n + 1)), dtype=torch.float64, device="cpu")

    def transform(self, coefficients: Tensor, phases: Tensor) -> Tensor:
        """Imaginary part of an FFT of length 2n + 2, of which the coefficients fill one half."""
        spectrum: Tensor = torch.fft.rfft(_pad(coefficients), 2 * (self.n + 1), dim=1)
        return phases * spectrum.imag[:, 1 : self.n + 1]


class Cosine(Axis):
    r"""Both ends free (DCT-II): :math:`E_{ik} = \sqrt{\tfrac{2 - [k=0]}n}\cos\tfrac{\pi k (i +
    1/2)}n`, i and k from 0.

    .. math:: \lambda_k = 4 \sin^2 \frac{\pi k}{2n}
    """

    first = 0
    matmul_up_to = 512

    def eigenvalues(self) -> Tensor:
        """Ascending from zero."""
        return 4 * torch.sin(torch.pi * self.k / (2 * self.n)) ** 2

    def basis(self) -> Tensor:
        """Column 0 is the constant."""
        phase = torch.outer(2 * self.k + 1, self.k) % (4 * self.n)
        return torch.cos(torch.pi * phase / (2 * self.n)) * self._norms()

    def power(self, values: Tensor) -> Tensor:
        """From 2 cos^2 = 1 + cos of the double angle, except that the constant has no factor 2."""
        turn = torch.polar(torch.ones_like(self.k), torch.pi * self.k / self.n)
        cosines: Tensor = torch.fft.ifft(values * turn[:, None], dim=1, norm="forward").real
        return (values.sum(1, keepdim=True) + cosines - values[:, :1]) / self.n

    def phases(self) -> Tensor:
        """Half a step of phase per frequency, and half the norm, since a real FFT adds the complex
        conjugate.
        """
        halves = self._norms() / 2
        halves[0] *= 2
        return torch.polar(halves, torch.pi * self.k / (2 * self.n))

    def transform(self, coefficients: Tensor, phases: Tensor) -> Tensor:
        """First half of a real inverse FFT of length 2n."""
        spectrum = coefficients * phases[:, None]
        doubled: Tensor = torch.fft.irfft(spectrum, 2 * self.n, dim=1, norm="forward")
        return doubled[:, : self.n]

    def _norms(self) -> Tensor:
        norms = torch.full_like(self.k, math.sqrt(2 / self.n))
        norms[0] = math.sqrt(1 / self.n)
        return norms


class Hartley(Axis):
    r"""A closed ring: :math:`E_{ik} = n^{-1/2}(\cos + \sin)\tfrac{2\pi i k}n`, i and k from 0.

    .. math:: \lambda_k = 4 \sin^2 \frac{\pi k}{n}

    Frequencies k and n - k share an eigenvalue, so these real combinations of the Fourier basis
    diagonalize any symmetric circulant matrix. On two sites the ring is a double edge, on one site
    there is no edge.
    """

    first = 0
    matmul_up_to = 128
    has_mirror = False

    def eigenvalues(self) -> Tensor:
        """In the order of k; the values for k and n - k are bit-identical."""
        return 4 * torch.sin(torch.pi * torch.minimum(self.k, self.n - self.k) / self.n) ** 2

    def basis(self) -> Tensor:
        """Symmetric; column 0 is the constant."""
        phase = 2 * torch.pi * (torch.outer(self.k, self.k) % self.n) / self.n
        return (torch.cos(phase) + torch.sin(phase)) / math.sqrt(self.n)

    def power(self, values: Tensor) -> Tensor:
        """A constant: (cos + sin)^2 = 1 + sin of the double angle, and the sines of k and n - k
        cancel.
        """
        return values.mean(1, keepdim=True).expand(values.shape)

    def phases(self) -> Tensor:
        return torch.tensor(1 / math.sqrt(self.n), dtype=torch.float64, device="cpu")

    def transform(self, coefficients: Tensor, phases: Tensor) -> Tensor:
        """Real minus imaginary part of an FFT, whose second half mirrors the first."""
        spectrum = torch.fft.rfft(coefficients, dim=1) * phases
        mirrored = (spectrum.real + spectrum.imag)[:, 1 : (self.n + 1) // 2].flip(1)
        return torch.cat([spectrum.real - spectrum.imag, mirrored], 1)


def _pad(values: Tensor) -> Tensor:
    """Put a zero before the first of the n entries of (outer, n, inner)."""
    return pad(values, (0, 0, 1, 0))


def _multiply(matrix: Tensor, coefficients: Tensor) -> Tensor:
    """Apply a matrix (sites, frequencies) to coefficients (outer, frequencies, inner)."""
    if coefficients.shape[2] == 1:  # one product over all rows of all fields, not many small ones
        return (coefficients[:, :, 0] @ matrix.T)[:, :, None]
    return torch.bmm(matrix.expand(len(coefficients), -1, -1), coefficients)


class SpectralFactor(Factor):
    r"""Operators that a product of one-dimensional bases diagonalizes (paper, eq. dirichlet-eigs,
    alg. gch).

    On two axes the eigenvectors are :math:`e_k \otimes f_\ell`, and white noise gives the
    spectral coefficients, :math:`\psi = E\,(Z \odot \lambda^{-1/2})\,F^\top`; similarly on one or
    three axes. On axes of :data:`HALVED_FROM` to ``matmul_up_to`` sites, except on rings, :math:`Z`
    has every second coefficient first (:meth:`Axis.order`). Memory is linear in the number of
    sites. A mode with eigenvalue zero gets no noise (zero-mean gauge).

    Args:
        axes: The bases, one per axis.
        eigenvalues: On the grid of frequencies; equal for k and n - k on a ring.
        shift: Added to all of them.
    """

    def __init__(self, axes: Sequence[Axis], eigenvalues: Tensor, shift: float = 0.0) -> None:
        self.axes, self.unshifted, self.shift = axes, eigenvalues, shift
        self.eigenvalues = eigenvalues + shift
        self.grid = tuple(axis.n for axis in axes)
        self.n = math.prod(self.grid)
        gauge = float(self.eigenvalues.view(-1)[0]) == 0.0
        self.rank = self.n - gauge
        self.inverses = self.eigenvalues.reciprocal()
        if gauge:
            self.inverses.view(-1)[0] = 0.0
        self.logdet = float(self.spectrum()[-self.rank :].log().sum())
        variance = self.inverses
        for index, axis in enumerate(axes):
            variance = axis.power(self._seen_from(index, variance))
        self.variance = variance.reshape(self.grid).contiguous()
        self.mean_variance = float(self.inverses.mean())
        self.combined = self.n <= COMBINED_UP_TO

    def _seen_from(self, index: int, fields: Tensor) -> Tensor:
        """Fields as (outer, n, inner) around one axis."""
        return fields.reshape(-1, self.grid[index], math.prod(self.grid[index + 1 :]))

    def basis(self) -> Tensor:
        """All eigenvectors, one per column, (n, n)."""
        return reduce(torch.kron, (axis.basis() for axis in self.axes))

    def spectrum(self) -> Tensor:
        """In the order of the frequencies, the last axis fastest."""
        return self.eigenvalues.flatten()

    def green(self) -> Tensor:
        """Computed from the full basis, which is otherwise used on the smallest grids only."""
        basis = self.basis()
        return basis * self.inverses.flatten() @ basis.T

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The combined map; or the scale, in the order of the axes' frequencies, and the bases."""
        scale = self.inverses.sqrt()
        if self.combined:
            tensors = [(self.basis() * scale.flatten()).T.contiguous()]
        else:
            for dim, axis in enumerate(self.axes):
                scale = scale.index_select(dim, axis.order())
            tensors = [scale.flatten(), *(axis.constant() for axis in self.axes)]
        types = [dtype.to_complex() if tensor.is_complex() else dtype for tensor in tensors]
        return tuple(t.to(kind).to(device) for t, kind in zip(tensors, types, strict=True))

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        """One product on the smallest grids, one or two per axis on the next, FFTs on the
        largest.
        """
        if self.combined:
            return white.mm(constants[0])
        step = max(1, CHUNK_SITES // self.n)
        if white.device.type != "cpu" or torch.compiler.is_compiling() or len(white) <= step:
            return self._by_axes(white, constants)
        out = torch.empty_like(white)
        for start in range(0, len(white), step):
            out[start : start + step] = self._by_axes(white[start : start + step], constants)
        return out

    def _by_axes(self, white: Tensor, constants: Constants) -> Tensor:
        fields = white * constants[0]
        for index, axis in reversed(list(enumerate(self.axes))):
            fields = axis.synthesize(self._seen_from(index, fields), constants[1 + index])
        return fields.reshape(white.shape)

    def shifted(self, mu: float) -> "SpectralFactor":
        """Every eigenvalue is shifted; the basis is the same."""
        return SpectralFactor(self.axes, self.unshifted, self.shift + mu)
