"""Operators: the quadratic budget that decides how the noise is correlated (paper, desideratum D4)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid, as_grid, positive
from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.factor import Constants, Factor, PinnedFactor

Device = torch.device | str
_Sampler = tuple[Factor, Constants]


def at_least_float32(field: Tensor) -> Tensor:
    """Energies and fields of half-precision features are computed in float32."""
    if field.dtype in (torch.float32, torch.float64):
        return field
    return field.to(torch.promote_types(field.dtype, torch.float32))


def _indexed(device: Device) -> torch.device:
    """The device as tensors name it: "cuda" is "cuda:0", or whichever is current."""
    device = torch.device(device)
    return (
        device
        if device.type == "cpu" or device.index is not None
        else torch.empty(0, device=device).device
    )


def grid_of_field(field: Tensor, axes: int) -> Grid:
    """The grid of fields (..., *grid), whose last ``axes`` dimensions it is."""
    if field.ndim < axes:
        raise ValueError(
            f"fields on {axes} axes have at least as many dimensions; got shape {tuple(field.shape)}."
        )
    return as_grid(field.shape[field.ndim - axes :])


class Operator(ABC):
    r"""A symmetric positive (semi)definite operator :math:`Q` on the sites of a grid of one, two or three axes.

    The operator is the whole design: among all centred log-fields with mean energy
    :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle] = \varepsilon`, the one of largest entropy is Gaussian with
    covariance proportional to :math:`Q^{-1}` (thm. maxent_logfield, cor. operator_substitution).

    A new operator is a class with one method, :meth:`matrix`. Everything else follows from it by a sparse Cholesky
    factorisation; a class that knows more about its structure says so in :meth:`factor`. A matrix whose null space is
    exactly the constants is taken under the zero-mean gauge: its inverse is the Moore-Penrose inverse and fields have
    spatial mean zero.

    An operator is a plain object. What it computes for a grid stays in the object, never enters a ``state_dict``, and
    is left behind when the object is copied or pickled.

    >>> class Chain(Operator):
    ...     def matrix(self, grid: Grid) -> Tensor:
    ...         n = math.prod(grid)
    ...         off = torch.ones(n - 1, dtype=torch.float64)
    ...         return 2 * torch.eye(n, dtype=torch.float64) - off.diag(1) - off.diag(-1)
    >>> Chain().variance((3,))
    tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64)
    """

    _known: dict[tuple[object, ...], Any]
    _published: "_Published"

    def __new__(cls, *args: Any, **kwargs: Any) -> "Operator":
        """Give every operator its caches, so that a user's class need not call ``super().__init__``."""
        self = super().__new__(cls)
        self._known, self._published = {}, _Published()
        return self

    @abstractmethod
    def matrix(self, grid: Grid) -> Tensor:
        """The operator as a dense (n, n) float64 matrix on the CPU, sites flattened with the last axis fastest."""

    def factor(self, grid: Grid) -> Factor:
        """Solve the operator on a grid; override to use structure. Called once per grid."""
        return CholeskyFactor.of_matrix(self.matrix(grid), grid, str(self))

    def mass(self, grid: Grid) -> Tensor:
        """Share of each site in a mass term, a float64 map: one, or zero where an operator holds the field at zero."""
        return torch.ones(as_grid(grid), dtype=torch.float64, device="cpu")

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        r"""Energy :math:`\tfrac12\langle\psi, Q\psi\rangle` of fields (..., \*grid), shape (...).

        The grid is the last ``axes`` dimensions. Builds the matrix; override to use structure.
        """
        flat = at_least_float32(field).flatten(-axes)
        return 0.5 * (flat @ self.matrix(grid_of_field(field, axes)).to(flat) * flat).sum(-1)

    def spectrum(self, grid: Grid) -> Tensor:
        """All n eigenvalues in float64.

        Ascending, except that the operators of a regular grid return them in the order of their frequencies, the last
        axis fastest. The zero mode of a gauge is first and exactly zero.
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
        """Site variances :math:`G(x, x)` as a map; kept per grid, device and dtype, so do not write to it."""
        variance: Tensor = self._look_up("variance", as_grid(grid), _indexed(device), dtype)
        return variance

    def mean_variance(self, grid: Grid) -> float:
        r"""Mean site variance :math:`\frac1n\sum_x G(x, x)`: what turns a log standard deviation into :math:`\tau`."""
        return self._factor(grid).mean_variance

    def logdet(self, grid: Grid) -> float:
        """Logarithm of the determinant; under a gauge, of the product of the non-zero eigenvalues."""
        return self._factor(grid).logdet

    def color(self, white: Tensor, axes: int = 2) -> Tensor:
        r"""Turn white noise (..., \*grid) into fields with covariance :math:`G`, in its dtype and on its device.

        The grid is the last ``axes`` dimensions. The map is linear, :math:`\psi = A z` with :math:`A A^\top = G`, and
        draws nothing. It computes in float32 at least, whatever autocast says, and compiles into one graph.
        """
        if white.device.type != "meta" and torch.is_autocast_enabled(white.device.type):
            with torch.autocast(white.device.type, enabled=False):
                return self.color(white, axes)
        wide = at_least_float32(white)
        grid = grid_of_field(white, axes)
        sampler: _Sampler = self._look_up("sampler", grid, wide.device, wide.dtype)
        factor, constants = sampler
        fields = factor.color(wide.reshape(-1, *grid), constants).view(white.shape)
        return fields if wide is white else fields.to(white.dtype)

    def prepare(
        self, grid: Grid, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        """Build now what :meth:`color` would build at its first call for this grid, device and dtype."""
        self._look_up(
            "sampler", as_grid(grid), _indexed(device), torch.promote_types(dtype, torch.float32)
        )

    def _factor(self, grid: Grid) -> Factor:
        factor: Factor = self._look_up("factor", as_grid(grid))
        return factor

    def _look_up(self, use: str, grid: Grid, *form: Any) -> Any:
        """What is known under (use, grid, device, dtype), computed if need be."""
        if not torch.compiler.is_compiling():
            return self._recall(use, grid, *form)
        self._publish(use, grid, *form)
        return getattr(self._published, _name(use, *grid, *form))

    def _publish(self, use: str, grid: Grid, *form: Any) -> None:
        setattr(self._published, _name(use, *grid, *form), self._recall(use, grid, *form))

    # All that torch.compiler.assume_constant_result does; to call it here would import the whole compiler. It marks a
    # method, since older compilers take no object as an argument of a constant.
    _publish._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _recall(self, use: str, grid: Grid, *form: Any) -> Any:
        if (use, grid, *form) not in self._known:
            # The caller may be in inference mode, or have set a default device: neither must leave traces in a cache.
            with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
                self._known[use, grid, *form] = self._compute(use, grid, *form)
        return self._known[use, grid, *form]

    def _compute(self, use: str, grid: Grid, *form: Any) -> Any:
        if use == "factor":
            return self.factor(grid)
        factor: Factor = self._recall("factor", grid)
        device, dtype = form
        return (
            factor.variance.to(dtype).to(device)
            if use == "variance"
            else (factor, factor.constants(device, dtype))
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the caches behind: a copy or a checkpoint carries the arguments only."""
        return {**self.__dict__, "_known": {}, "_published": _Published()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Published:
    """What a compiled graph takes from an operator, one attribute each.

    A compiler cannot trace a factorisation. It runs ``_publish`` while it traces, never in the graph, and finds the
    result here. A dictionary it would read once, and miss what is added to it later.
    """


def _name(*key: object) -> str:
    name = "_".join(["is", *[str(part) for part in key]])
    return name.replace(".", "_").replace(":", "_")  # an identifier, as the compiler expects


class Massive(Operator):
    r"""The operator :math:`Q + \mu I`: the same geometry, cut off at distance about :math:`\mu^{-1/2}`.

    .. math:: \mathcal E_\mu(\psi) = \tfrac12 \langle\psi, Q\psi\rangle + \tfrac\mu2 \lVert\psi\rVert^2

    (paper, app. variational_derivation, massive variant). Better conditioned, shorter correlations. An operator under
    the zero-mean gauge becomes positive definite and needs no gauge any more. A pinned site stays pinned and carries no
    mass.

    Args:
        operator: The operator :math:`Q`.
        mu: The mass, positive.
    """

    def __init__(self, operator: Operator, mu: float) -> None:
        self.operator = operator
        self.mu = positive("the mass mu", mu)

    def mass(self, grid: Grid) -> Tensor:
        """That of the operator inside: masses add up."""
        return self.operator.mass(grid)

    def matrix(self, grid: Grid) -> Tensor:
        return self.operator.matrix(grid) + self.mu * self.mass(grid).flatten().diag()

    def factor(self, grid: Grid) -> Factor:
        """Of the same structure as the operator inside."""
        return self.operator.factor(grid).shifted(self.mu)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        field = at_least_float32(field)
        mass = self.mass(grid_of_field(field, axes)).to(field)
        return self.operator.energy(field, axes) + 0.5 * self.mu * (mass * field.square()).flatten(
            -axes
        ).sum(-1)

    def __repr__(self) -> str:
        return f"Massive({self.operator}, mu={self.mu})"


class Pinned(Operator):
    r"""An operator whose field is held at zero on one site: a gauge for Neumann and periodic grids.

    The row and the column of the site are struck out of :math:`Q`. Where the constants cost no energy, this is the
    other usual gauge beside the zero mean: :math:`\psi - \psi(x_0)` for a field :math:`\psi` of mean zero. Where
    :math:`Q` is positive definite, it is the law of its field given :math:`\psi(x_0) = 0`.

    Args:
        operator: The operator :math:`Q`.
        site: Index of the site :math:`x_0` on each axis, counted from 0; negative ones count from the end.

    >>> from chaosgate.field import Periodic
    >>> float(Pinned(Periodic(), [0, 0]).variance((5, 5))[0, 0])
    0.0
    """

    def __init__(self, operator: Operator, site: Sequence[int]) -> None:
        self.operator = operator
        if isinstance(site, str) or any(
            isinstance(i, bool) or not isinstance(i, int) for i in site
        ):
            raise ValueError(
                f"Pinned: site has one whole number per axis of the grid, e.g. [0, 0]; got {site!r}."
            )
        self.site = tuple(site)

    def _index(self, grid: Grid) -> int:
        grid = as_grid(grid)
        if len(self.site) != len(grid) or any(
            not -n <= i < n for i, n in zip(self.site, grid, strict=True)
        ):
            raise ValueError(f"{self} has no such site on grid {grid}.")
        return int(torch.arange(math.prod(grid)).view(grid)[self.site])

    def mass(self, grid: Grid) -> Tensor:
        """None at the site."""
        mass = self.operator.mass(grid).clone()
        mass.view(-1)[self._index(grid)] = 0.0
        return mass

    def matrix(self, grid: Grid) -> Tensor:
        matrix, site = self.operator.matrix(grid).clone(), self._index(grid)
        matrix[site], matrix[:, site] = 0.0, 0.0
        return matrix

    def factor(self, grid: Grid) -> Factor:
        """The field of the operator inside, minus what its value at the site tells about the others."""
        if not bool(self.operator.mass(grid).all()):
            raise ValueError(
                f"{self}: {self.operator} holds a site at zero already, and one is enough for a gauge."
            )
        return PinnedFactor(
            self.operator.factor(grid), self._index(grid), lambda: self.matrix(grid)
        )

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        free = torch.ones_like(self.mass(grid := grid_of_field(field, axes)))
        free.view(-1)[self._index(grid)] = 0.0
        return self.operator.energy(
            at_least_float32(field) * free.to(at_least_float32(field)), axes
        )

    def __repr__(self) -> str:
        return f"Pinned({self.operator}, site={list(self.site)})"
