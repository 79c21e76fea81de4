"""Operators given as a matrix: that of the energy, or that of the covariance, written down or as a function."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid, as_grid, non_negative, positive
from chaosgate.field.cholesky import ASYMMETRY, PIVOT, CholeskyFactor
from chaosgate.field.factor import Constants, Factor
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
        self.factor(
            (len(values),)
        )  # raise now if it is not positive semidefinite, not at the first training step

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


class KernelFactor(Factor):
    r"""An operator given by its inverse, the covariance :math:`K`, through a Cholesky root :math:`K = R R^\top`."""

    def __init__(self, kernel: Tensor, grid: Grid, name: str) -> None:
        n = math.prod(grid)
        if tuple(kernel.shape) != (n, n):
            raise ValueError(
                f"{name} on grid {grid} needs a covariance ({n}, {n}); got {tuple(kernel.shape)}."
            )
        if not bool(kernel.isfinite().all()):
            raise ValueError(f"{name} on grid {grid} has entries that are not finite.")
        largest = float(kernel.abs().max())
        if float((kernel - kernel.T).abs().max()) > ASYMMETRY * largest:
            raise ValueError(f"{name} is not symmetric on grid {grid}, as a covariance is.")
        root, failed = torch.linalg.cholesky_ex(kernel)
        if int(failed) or float(root.diagonal().square().min()) <= PIVOT * largest:
            raise ValueError(
                f"{name} is not positive definite on grid {grid}, to rounding: some combination of sites has no "
                "variance. A longer range on the same grid makes it worse; a small nugget on the diagonal repairs it."
            )
        self.grid, self.rank, self.kernel, self.root, self.name = grid, n, kernel, root, name
        self.logdet = -2 * float(root.diagonal().log().sum())
        self.variance = kernel.diagonal().clone().view(grid)
        self.mean_variance = float(self.variance.mean())

    def spectrum(self) -> Tensor:
        """Ascending."""
        values: Tensor = torch.linalg.eigvalsh(self.kernel)
        return values.flip(0).reciprocal()

    def green(self) -> Tensor:
        return self.kernel

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (self.root.T.contiguous().to(dtype).to(device),)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        return (white.flatten(1) @ constants[0]).view(white.shape)

    def shifted(self, mu: float) -> "KernelFactor":
        r""":math:`(K^{-1} + \mu I)^{-1} = (I + \mu K)^{-1} K`."""
        eye = torch.eye(self.rank, dtype=torch.float64)
        kernel = torch.linalg.solve(eye + mu * self.kernel, self.kernel)
        return KernelFactor((kernel + kernel.T) / 2, self.grid, f"massive {self.name}")


class Kernel(Operator):
    r"""An operator given by the covariance it forces: :math:`Q = K^{-1}`, so that the field has covariance
    :math:`K/\beta`.

    The maximum-entropy law of a budget with :math:`Q` has the kernel :math:`Q^{-1}` (cor. operator_substitution), so
    every positive definite kernel is the solution for one operator. A custom kernel is a class with one method.
    """

    @abstractmethod
    def covariance(self, grid: Grid) -> Tensor:
        """The kernel as a dense (n, n) matrix, sites flattened with the last axis fastest."""

    def matrix(self, grid: Grid) -> Tensor:
        """The inverse of the covariance."""
        factor = self._factor(grid)
        assert isinstance(factor, KernelFactor)
        return torch.cholesky_inverse(factor.root)

    def factor(self, grid: Grid) -> Factor:
        return KernelFactor(
            self.covariance(grid).detach().to(device="cpu", dtype=torch.float64), grid, str(self)
        )


class CovarianceMatrix(Kernel):
    """A kernel written down; it lives on every grid with as many sites as the matrix has rows.

    Args:
        matrix: Symmetric positive definite, shape (n, n), a tensor or nested lists.
    """

    def __init__(self, matrix: Tensor | Sequence[Sequence[float]]) -> None:
        values = torch.as_tensor(matrix, dtype=torch.float64, device="cpu").detach().clone()
        if values.ndim != 2 or values.shape[0] != values.shape[1] or not len(values):
            raise ValueError(
                f"CovarianceMatrix needs a square matrix; got shape {tuple(values.shape)}."
            )
        self.values = values
        self.factor(
            (len(values),)
        )  # raise now if it is not a covariance, not at the first training step

    def covariance(self, grid: Grid) -> Tensor:
        if math.prod(grid) != len(self.values):
            raise ValueError(
                f"{self} lives on {len(self.values)} sites; grid {tuple(grid)} has {math.prod(grid)}. "
                "Give a matrix for this grid, or attach the gate where the feature map has that size."
            )
        return self.values

    def __repr__(self) -> str:
        return f"CovarianceMatrix(matrix={len(self.values)}x{len(self.values)})"


class CovarianceFunction(Kernel):
    r"""A kernel that depends on the distance of two sites: :math:`K(x, y) = k(|x - y|) + \delta_{xy}\,\text{nugget}`.

    Args:
        function: :math:`k`, from Euclidean distances in sites (n, n) to covariances (n, n).
        nugget: Variance added at every site by itself.

    >>> operator = CovarianceFunction(lambda distance: torch.exp(-distance / 2))
    >>> operator.green((3,))[0]
    tensor([1.0000, 0.6065, 0.3679], dtype=torch.float64)
    """

    def __init__(self, function: Callable[[Tensor], Tensor], nugget: float = 0.0) -> None:
        if not callable(function):
            raise ValueError(
                f"CovarianceFunction: function maps distances to covariances; got {function!r}."
            )
        self.function = function
        self.nugget = non_negative("the nugget", nugget)

    def covariance(self, grid: Grid) -> Tensor:
        places = [torch.arange(side, dtype=torch.float64) for side in as_grid(grid)]
        sites = torch.cartesian_prod(*places).view(-1, len(grid))
        distance = (
            (sites[:, None] - sites).square().sum(-1).sqrt()
        )  # exact on the diagonal, unlike torch.cdist
        return self.function(distance).double() + self.nugget * torch.eye(
            len(sites), dtype=torch.float64
        )

    def __repr__(self) -> str:
        return f"CovarianceFunction({getattr(self.function, '__name__', self.function)}, nugget={self.nugget})"


class Matern(CovarianceFunction):
    r"""The Matern kernels of half-integer smoothness, with variance one (Rasmussen, Williams 2006, eq. 4.17).

    .. math:: k_{1/2}(r) = e^{-r/\ell}, \quad k_{3/2}(r) = (1 + s)\,e^{-s},\ s = \sqrt3\,r/\ell, \quad
        k_{5/2}(r) = (1 + s + s^2/3)\,e^{-s},\ s = \sqrt5\,r/\ell

    Args:
        length: The range :math:`\ell` in sites.
        smoothness: 0.5 (exponential kernel), 1.5 or 2.5.
        nugget: Variance added at every site by itself.
    """

    def __init__(self, length: float, smoothness: float = 0.5, nugget: float = 0.0) -> None:
        if smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern: smoothness is 0.5, 1.5 or 2.5; got {smoothness!r}.")
        self.length, self.smoothness = positive("the length", length), float(smoothness)
        super().__init__(self._of_distance, nugget)

    def _of_distance(self, distance: Tensor) -> Tensor:
        s = math.sqrt(2 * self.smoothness) * distance / self.length
        polynomial = {0.5: torch.ones_like(s), 1.5: 1 + s, 2.5: 1 + s + s.square() / 3}[
            self.smoothness
        ]
        return polynomial * torch.exp(-s)

    def __repr__(self) -> str:
        return f"Matern(length={self.length}, smoothness={self.smoothness}, nugget={self.nugget})"
