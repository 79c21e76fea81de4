"""Operators: the quadratic budget that sets the correlation of the noise (paper, D4)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import signature
from operator import index
from typing import Any, TypeVar

import torch
from torch import Tensor

Grid = tuple[int, ...]
"""Sites along each axis of a feature map: (length,), (height, width) or (depth, height, width).

Sites are flattened with the last axis fastest.
"""

Constants = tuple[Tensor, ...]
"""Tensors of a sampler, in the dtype and on the device of the white noise."""

Device = torch.device | str
Known = TypeVar("Known")


def as_grid(grid: Sequence[int]) -> Grid:
    """Check that ``grid`` is one to three positive whole numbers, and return them as a tuple."""
    # index() refuses fractions, and makes a compiler that treats sizes as symbols take the grid
    # as a constant
    try:
        sides = tuple([index(side) for side in grid])
    except TypeError:
        sides = ()
    if len(sides) not in (1, 2, 3) or min(sides) < 1:
        raise ValueError(
            "a grid is (length,), (height, width) or (depth, height, width) in positive whole "
            f"numbers; got {tuple(grid)}."
        )
    return sides


def grid_text(grid: Sequence[int]) -> str:
    """A grid in messages and tables.

    >>> grid_text((7, 14))
    '7x14'
    """
    return "x".join(map(str, grid))


def positive(name: str, value: float) -> float:
    """Return ``value`` as a float; raise an error unless it is positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite; got {value}.")
    return float(value)


def at_least_float32(field: Tensor) -> Tensor:
    """Energies and fields of half-precision features are computed in float32."""
    return field.to(torch.promote_types(field.dtype, torch.float32))


def grid_of_field(field: Tensor, axes: int) -> Grid:
    """The grid of fields (..., *grid): the last ``axes`` dimensions."""
    return as_grid(field.shape[field.ndim - axes :] if field.ndim >= axes else ())


class Factor(ABC):
    r"""An operator :math:`Q` solved on one grid: spectrum, Green kernel, and a root of the kernel.

    Everything here is float64 on the CPU; only :meth:`constants` moves to another dtype or device.

    Attributes:
        grid: Sites along each axis.
        rank: Number of free directions: n, or fewer with a gauge.
        logdet: Logarithm of the product of the non-zero eigenvalues.
        variance: The diagonal of the Green kernel as a map, of the shape of the grid.
        mean_variance: Its mean.
    """

    grid: Grid
    rank: int
    logdet: float
    variance: Tensor
    mean_variance: float

    def spectrum(self) -> Tensor:
        """All n eigenvalues, shape (n,), ascending; exactly zero in directions that a gauge
        removes.
        """
        values: Tensor = torch.linalg.eigvalsh(self.green())[-self.rank :].flip(0).reciprocal()
        return torch.nn.functional.pad(values, (math.prod(self.grid) - self.rank, 0))

    @abstractmethod
    def green(self) -> Tensor:
        r"""The (Moore-Penrose) inverse :math:`G = Q^{+}`, shape (n, n)."""

    @abstractmethod
    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The tensors that :meth:`color` needs.

        They are cast before they are moved, because not every device has float64.
        """

    @abstractmethod
    def color(self, white: Tensor, constants: Constants) -> Tensor:
        r"""Map white noise (B, n) by :math:`A` with :math:`A A^\top = G`, in torch."""

    @abstractmethod
    def shifted(self, mu: float) -> "Factor":
        r"""The factor of :math:`Q + \mu I`, of the same structure."""


class Operator(ABC):
    r"""A symmetric positive (semi)definite operator :math:`Q` on the sites of a grid of one, two
    or three axes.

    The operator determines the field: among all centered log-fields with mean energy
    :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle] = \varepsilon`, the one with the largest
    entropy is Gaussian with covariance proportional to :math:`Q^{-1}` (thm. maxent_logfield, cor.
    operator_substitution).

    A custom operator is a class with one method, :meth:`matrix`, which is factorized by a sparse
    Cholesky method. A class with more structure can override :meth:`factor`. A matrix whose null
    space consists of the constants gets the zero-mean gauge: its inverse is the Moore-Penrose
    inverse and fields have spatial mean zero.

    Results for a grid are cached in the object. They are not part of a ``state_dict`` and are not
    copied or pickled.

    >>> class Chain(Operator):
    ...     def matrix(self, grid: Grid) -> Tensor:
    ...         n = math.prod(grid)
    ...         off = torch.ones(n - 1, dtype=torch.float64)
    ...         return 2 * torch.eye(n, dtype=torch.float64) - off.diag(1) - off.diag(-1)
    >>> Chain().variance((3,))
    tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64)
    """

    _known: dict[tuple[object, ...], Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Operator":
        """Give every operator its cache, so that a custom class need not call
        ``super().__init__``.
        """
        self = super().__new__(cls)
        self._known = {}
        return self

    @abstractmethod
    def matrix(self, grid: Grid) -> Tensor:
        """The operator as a dense (n, n) float64 matrix on the CPU, sites flattened with the last
        axis fastest.
        """

    def factor(self, grid: Grid) -> Factor:
        """Factorize the operator on a grid; override it to use structure. Called once per grid."""
        from chaosgate.field.cholesky import CholeskyFactor

        return CholeskyFactor.of_matrix(self.matrix(grid), grid, str(self))

    def free(self, grid: Grid) -> Tensor:
        """A float64 map: zero where the operator fixes the field at zero, otherwise one."""
        return torch.ones(as_grid(grid), dtype=torch.float64, device="cpu")

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        r"""Energy :math:`\tfrac12\langle\psi, Q\psi\rangle` of fields (..., \*grid), shape (...).

        The grid is the last ``axes`` dimensions. This builds the matrix; override it to use
        structure.
        """
        flat = at_least_float32(field).flatten(-axes)
        return 0.5 * (flat @ self.matrix(grid_of_field(field, axes)).to(flat) * flat).sum(-1)

    def spectrum(self, grid: Grid) -> Tensor:
        """All n eigenvalues in float64.

        They are ascending; for operators of a regular grid, they are in the order of frequencies,
        with the last axis fastest. The zero mode of a gauge is first and exactly zero.
        """
        return self._factor(grid).spectrum()

    def rank(self, grid: Grid) -> int:
        """Number of free directions: n, or fewer with a gauge."""
        return self._factor(grid).rank

    def green(self, grid: Grid) -> Tensor:
        r"""Green kernel :math:`G = Q^{-1}` (Moore-Penrose with a gauge), dense (n, n) float64."""
        return self._factor(grid).green()

    def variance(
        self, grid: Grid, dtype: torch.dtype = torch.float64, device: Device = "cpu"
    ) -> Tensor:
        """Site variances :math:`G(x, x)` as a map."""
        return self._factor(grid).variance.to(dtype).to(device)

    def mean_variance(self, grid: Grid) -> float:
        r"""Mean site variance :math:`\frac1n\sum_x G(x, x)`."""
        return self._factor(grid).mean_variance

    def logdet(self, grid: Grid) -> float:
        """Logarithm of the determinant; with a gauge, of the product of non-zero eigenvalues."""
        return self._factor(grid).logdet

    def color(self, white: Tensor, axes: int = 2) -> Tensor:
        r"""Map white noise (..., \*grid) to fields with covariance :math:`G`, in the same dtype and
        on the same device.

        The grid is the last ``axes`` dimensions. The map is linear, :math:`\psi = A z` with
        :math:`A A^\top = G`, and draws nothing. It is computed in float32 or better, also under
        autocast. Before ``torch.compile``, call :meth:`prepare` or this method once.
        """
        grid = grid_of_field(white, axes)
        rows = at_least_float32(white).reshape(-1, math.prod(grid))
        return self.color_rows(rows, grid).view(white.shape).to(white.dtype)

    def color_rows(self, white: Tensor, grid: Grid) -> Tensor:
        """:meth:`color` for flat fields, (B, n), in float32 or float64."""
        if white.device.type != "meta" and torch.is_autocast_enabled(white.device.type):
            with torch.autocast(white.device.type, enabled=False):
                return self.color_rows(white, grid)
        factor, form = self._factor(grid), (white.device, white.dtype)
        constants = self._once((grid, "constants", *form), lambda: factor.constants(*form))
        return factor.color(white, constants)

    def prepare(
        self, grid: Grid, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        """Fill the caches of :meth:`color` for this grid, device and dtype."""
        dtype = torch.promote_types(dtype, torch.float32)
        white = torch.zeros(1, math.prod(grid), device=device, dtype=dtype)
        self.color_rows(white, as_grid(grid))

    def _factor(self, grid: Grid) -> Factor:
        grid = as_grid(grid)
        factor = self._once((grid, "factor"), lambda: self.factor(grid))
        if not factor.rank:
            raise ValueError(
                f"{self} on grid {grid} has no field: its only site is fixed by a gauge."
            )
        return factor

    def _once(self, key: tuple[Any, ...], compute: Callable[[], Known]) -> Known:
        """What is known under a key, which begins with the grid; computed at the first call."""
        if key not in self._known:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    f"{self} was not solved on grid {key[0]} before torch.compile: call prepare, "
                    "or run one forward first. A factorization cannot be traced."
                )
            # The caller may be in inference mode, or have set a default device: neither must
            # leave traces in a cache.
            with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
                self._known[key] = compute()
        found: Known = self._known[key]
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave the cache behind: a copy or a checkpoint carries the arguments only."""
        return {**self.__dict__, "_known": {}}

    def __repr__(self) -> str:
        """The class and its arguments, as far as they are attributes and given."""
        names = signature(type(self).__init__).parameters
        found = [(name, getattr(self, name, None)) for name in names]
        text = [
            f"{value}" if name == "operator" else f"{name}={getattr(value, '__name__', value)}"
            for name, value in found
            if value is not None
        ]
        return f"{type(self).__name__}({', '.join(text)})"


class Massive(Operator):
    r"""The operator :math:`Q + \mu I`: the same geometry with correlations up to a
    distance of about :math:`\mu^{-1/2}`.

    .. math:: \mathcal E_\mu(\psi) = \tfrac12 \langle\psi, Q\psi\rangle + \tfrac\mu2
        \lVert\psi\rVert^2

    (paper, app. variational_derivation, massive variant). The operator is better conditioned, the
    correlations are shorter. An operator with the zero-mean gauge becomes positive definite and
    needs no gauge. A pinned site stays pinned and has no mass.

    Args:
        operator: The operator :math:`Q`.
        mu: The mass, positive.
    """

    def __init__(self, operator: Operator, mu: float) -> None:
        self.operator = operator
        self.mu = positive("the mass mu", mu)

    def free(self, grid: Grid) -> Tensor:
        return self.operator.free(grid)

    def matrix(self, grid: Grid) -> Tensor:
        return self.operator.matrix(grid) + self.mu * self.free(grid).flatten().diag()

    def factor(self, grid: Grid) -> Factor:
        """Of the same structure as the operator inside."""
        return self.operator.factor(grid).shifted(self.mu)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        field = at_least_float32(field)
        free = self.free(grid_of_field(field, axes)).to(field)
        squares = (free * field.square()).flatten(-axes).sum(-1)
        return self.operator.energy(field, axes) + 0.5 * self.mu * squares
