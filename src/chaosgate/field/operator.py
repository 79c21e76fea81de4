"""Operators: the quadratic budget that decides how the noise is correlated (paper, desideratum D4)."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.factor import Constants, Factor, Grid, as_grid

Device = torch.device | str


class Operator(ABC):
    r"""A symmetric positive (semi)definite operator :math:`Q` on the sites of a grid.

    The operator is the whole design: among all centred log-fields with mean energy
    :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle] = \varepsilon`, the one of largest entropy is Gaussian with
    covariance proportional to :math:`Q^{-1}` (thm. maxent_logfield, cor. operator_substitution).

    A new operator is a class with one method, :meth:`matrix`. Everything else follows from it by a sparse Cholesky
    factorisation; a class that knows more about its structure says so in :meth:`factor`. A matrix whose null space is
    exactly the constants is taken under the zero-mean gauge: its inverse is the Moore-Penrose inverse and fields have
    spatial mean zero.

    An operator is a plain object. What it computes for a grid is kept in the object, never in a ``state_dict``, and is
    left behind when the object is copied or pickled.

    >>> class Chain(Operator):
    ...     def matrix(self, grid: Grid) -> Tensor:
    ...         n = grid[0] * grid[1]
    ...         off = torch.ones(n - 1, dtype=torch.float64)
    ...         return 2 * torch.eye(n, dtype=torch.float64) - off.diag(1) - off.diag(-1)
    >>> Chain().variance((1, 3))
    tensor([[0.7500, 1.0000, 0.7500]], dtype=torch.float64)
    """

    _factors: dict[Grid, Factor]
    _constants: dict[tuple[Grid, torch.device, torch.dtype], Constants]
    _variances: dict[tuple[Grid, torch.device, torch.dtype], Tensor]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Operator":
        """Give every operator its caches, so that a user's class need not call ``super().__init__``."""
        self = super().__new__(cls)
        self._forget()
        return self

    @abstractmethod
    def matrix(self, grid: Grid) -> Tensor:
        """The operator as a dense (n, n) float64 matrix on the CPU, sites flattened row by row."""

    def factor(self, grid: Grid) -> Factor:
        """Solve the operator on a grid; override to use structure. Called once per grid."""
        return CholeskyFactor.of_matrix(self.matrix(grid), grid, str(self))

    def spectrum(self, grid: Grid) -> Tensor:
        """All n eigenvalues in float64.

        Ascending, except for the operators of a regular grid, which return them in the order of their frequencies
        (k, l), row by row. The zero mode of a gauge is first and exactly zero.
        """
        return self._factor(grid).spectrum()

    def rank(self, grid: Grid) -> int:
        """Number of free directions: n, or n - 1 under a gauge."""
        return self._factor(grid).rank

    def green(self, grid: Grid) -> Tensor:
        r"""Green kernel :math:`G = Q^{-1}` (Moore-Penrose under a gauge), dense (n, n) in float64."""
        return self._factor(grid).green()

    def variance(
        self, grid: Grid, dtype: torch.dtype = torch.float64, device: Device = "cpu"
    ) -> Tensor:
        """Site variances :math:`G(x, x)` as a map (H, W), kept per grid, device and dtype; do not write to it."""
        key = (as_grid(grid), torch.device(device), dtype)
        if key not in self._variances:
            with torch.inference_mode(False), torch.no_grad():
                self._variances[key] = self._factor(grid).variance().to(device=key[1], dtype=dtype)
        return self._variances[key]

    def mean_variance(self, grid: Grid) -> float:
        r"""Mean site variance :math:`\frac1n\sum_x G(x, x)`: what turns a log standard deviation into :math:`\tau`."""
        return self._factor(grid).mean_variance()

    def logdet(self, grid: Grid) -> float:
        """Logarithm of the determinant; under a gauge, of the product of the non-zero eigenvalues."""
        return self._factor(grid).logdet()

    def energy(self, field: Tensor) -> Tensor:
        r"""Energy :math:`\tfrac12\langle\psi, Q\psi\rangle` of fields (..., H, W); shape (...)."""
        flat = field.flatten(-2)
        matrix = self.matrix(as_grid(field.shape[-2:])).to(flat)
        return 0.5 * (flat @ matrix * flat).sum(-1)

    def color(self, white: Tensor) -> Tensor:
        r"""Turn white noise (..., H, W) into fields with covariance :math:`G`, in its dtype and on its device.

        The map is linear, :math:`\psi = A z` with :math:`A A^\top = G`, and draws nothing. It computes in float32 at
        least, whatever autocast says. Call :meth:`prepare` first where building constants is not possible.
        """
        grid = (white.shape[-2], white.shape[-1])
        dtype = torch.promote_types(white.dtype, torch.float32)
        key = (grid, white.device, dtype)
        if key not in self._constants:
            self.prepare(*key)
        with torch.autocast(white.device.type, enabled=False):
            return self._factors[grid].color(white.to(dtype), self._constants[key]).to(white.dtype)

    def prepare(self, grid: Grid, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> None:
        """Build everything that :meth:`color` needs for whites of this grid, device and dtype."""
        key = (as_grid(grid), torch.device(device), torch.promote_types(dtype, torch.float32))
        if key not in self._constants:
            with torch.inference_mode(False), torch.no_grad():
                self._constants[key] = self._factor(grid).constants(key[1], key[2])

    def _factor(self, grid: Grid) -> Factor:
        grid = as_grid(grid)
        if grid not in self._factors:
            with torch.inference_mode(False), torch.no_grad():
                self._factors[grid] = self.factor(grid)
        return self._factors[grid]

    def _forget(self) -> None:
        self._factors, self._constants, self._variances = {}, {}, {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the caches behind: a copy or a checkpoint carries the arguments only."""
        return {**self.__dict__, "_factors": {}, "_constants": {}, "_variances": {}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
