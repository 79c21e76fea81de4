"""Operators: the quadratic budget that decides how the noise is correlated (paper, desideratum D4)."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid, as_grid
from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.factor import Constants, Factor

Device = torch.device | str
_Sampler = tuple[Factor, Constants]


def at_least_float32(field: Tensor) -> Tensor:
    """Energies and fields of half-precision features are computed in float32."""
    return field.to(torch.promote_types(field.dtype, torch.float32))


def _indexed(device: Device) -> torch.device:
    """The device as tensors name it: "cuda" is "cuda:0", or whichever is current."""
    device = torch.device(device)
    return device if device.type == "cpu" or device.index is not None else torch.empty(0, device=device).device


class Operator(ABC):
    r"""A symmetric positive (semi)definite operator :math:`Q` on the sites of a grid.

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
    ...         n = grid[0] * grid[1]
    ...         off = torch.ones(n - 1, dtype=torch.float64)
    ...         return 2 * torch.eye(n, dtype=torch.float64) - off.diag(1) - off.diag(-1)
    >>> Chain().variance((1, 3))
    tensor([[0.7500, 1.0000, 0.7500]], dtype=torch.float64)
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
        """The operator as a dense (n, n) float64 matrix on the CPU, sites flattened row by row."""

    def factor(self, grid: Grid) -> Factor:
        """Solve the operator on a grid; override to use structure. Called once per grid."""
        return CholeskyFactor.of_matrix(self.matrix(grid), grid, str(self))

    def mass(self, grid: Grid) -> Tensor:
        """Share of each site in a mass term, (H, W) float64: one, or zero where an operator holds the field at zero."""
        return torch.ones(as_grid(grid), dtype=torch.float64, device="cpu")

    def energy(self, field: Tensor) -> Tensor:
        r"""Energy :math:`\tfrac12\langle\psi, Q\psi\rangle` of fields (..., H, W), shape (...).

        Builds the matrix; override to use structure.
        """
        flat = at_least_float32(field).flatten(-2)
        return 0.5 * (flat @ self.matrix(as_grid(field.shape[-2:])).to(flat) * flat).sum(-1)

    def spectrum(self, grid: Grid) -> Tensor:
        """All n eigenvalues in float64.

        Ascending, except that the operators of a regular grid return them in the order of their frequencies (k, l), row
        by row. The zero mode of a gauge is first and exactly zero.
        """
        return self._factor(grid).spectrum()

    def rank(self, grid: Grid) -> int:
        """Number of free directions: n, or n - 1 under a gauge."""
        return self._factor(grid).rank

    def green(self, grid: Grid) -> Tensor:
        r"""Green kernel :math:`G = Q^{-1}` (Moore-Penrose under a gauge), dense (n, n) in float64."""
        return self._factor(grid).green()

    def variance(self, grid: Grid, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> Tensor:
        """Site variances :math:`G(x, x)` as a map (H, W); kept per grid, device and dtype, so do not write to it."""
        variance: Tensor = self._look_up("variance", *as_grid(grid), _indexed(device), dtype)
        return variance

    def mean_variance(self, grid: Grid) -> float:
        r"""Mean site variance :math:`\frac1n\sum_x G(x, x)`: what turns a log standard deviation into :math:`\tau`."""
        return self._factor(grid).mean_variance

    def logdet(self, grid: Grid) -> float:
        """Logarithm of the determinant; under a gauge, of the product of the non-zero eigenvalues."""
        return self._factor(grid).logdet

    def color(self, white: Tensor) -> Tensor:
        r"""Turn white noise (..., H, W) into fields with covariance :math:`G`, in its dtype and on its device.

        The map is linear, :math:`\psi = A z` with :math:`A A^\top = G`, and draws nothing. It computes in float32 at
        least, whatever autocast says, and compiles into one graph.
        """
        if torch.is_autocast_enabled(white.device.type):
            with torch.autocast(white.device.type, enabled=False):
                return self.color(white)
        dtype = torch.promote_types(white.dtype, torch.float32)
        sampler: _Sampler = self._look_up("sampler", *as_grid(white.shape[-2:]), white.device, dtype)
        factor, constants = sampler
        return factor.color(white.to(dtype), constants).to(white.dtype)

    def prepare(self, grid: Grid, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> None:
        """Build now what :meth:`color` would build at its first call for this grid, device and dtype."""
        self._look_up("sampler", *as_grid(grid), _indexed(device), torch.promote_types(dtype, torch.float32))

    def _factor(self, grid: Grid) -> Factor:
        factor: Factor = self._look_up("factor", *as_grid(grid))
        return factor

    def _look_up(self, use: str, *key: Any) -> Any:
        """What is known under (use, height, width, device, dtype), computed if need be."""
        if not torch.compiler.is_compiling():
            return self._recall(use, *key)
        _publish(self, use, *key)
        return getattr(self._published, _name(use, *key))

    def _recall(self, use: str, *key: Any) -> Any:
        if (use, *key) not in self._known:
            # The caller may be in inference mode, or have set a default device: neither must leave traces in a cache.
            with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
                self._known[use, *key] = self._compute(use, *key)
        return self._known[use, *key]

    def _compute(self, use: str, height: int, width: int, *form: Any) -> Any:
        if use == "factor":
            return self.factor((height, width))
        factor: Factor = self._recall("factor", height, width)
        device, dtype = form
        return factor.variance.to(dtype).to(device) if use == "variance" else (factor, factor.constants(device, dtype))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the caches behind: a copy or a checkpoint carries the arguments only."""
        return {**self.__dict__, "_known": {}, "_published": _Published()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Published:
    """What a compiled graph takes from an operator, one attribute each.

    A compiler cannot trace a factorisation. It runs :func:`_publish` while it traces, never in the graph, and finds the
    result here. A dictionary it would read once, and miss what is added to it later.
    """


def _name(*key: object) -> str:
    name = "_".join(["is", *[str(part) for part in key]])
    return name.replace(".", "_").replace(":", "_")  # an identifier, as the compiler expects


def _publish(operator: Operator, *key: Any) -> None:
    setattr(operator._published, _name(*key), operator._recall(*key))


# All that torch.compiler.assume_constant_result does; to call it here would import the whole compiler.
_publish._dynamo_marked_constant = True  # type: ignore[attr-defined]
