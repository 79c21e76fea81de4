"""Operators given as a matrix: that of the energy, or that of the covariance, written down or as a
function.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chaosgate.field.cholesky import ASYMMETRY, PIVOT, CholeskyFactor
from chaosgate.field.operator import Constants, Factor, Grid, Operator, as_grid, positive

Matrix = Tensor | Sequence[Sequence[float]]


def _square(owner: Operator, matrix: Matrix) -> Tensor:
    given = matrix if isinstance(matrix, Tensor) else torch.tensor(matrix, dtype=torch.float64)
    values = given.detach().to("cpu").clone()
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not len(values):
        name = type(owner).__name__
        raise ValueError(f"{name} needs a square matrix; got shape {tuple(values.shape)}.")
    return values


def _require_sites(owner: Operator, values: Tensor, grid: Grid) -> None:
    if math.prod(grid) != len(values):
        raise ValueError(
            f"{owner} lives on {len(values)} sites; grid {tuple(grid)} has {math.prod(grid)}. Give "
            "a matrix for this grid, or attach the gate where the feature map has that size."
        )


class Dense(Operator):
    r"""Any symmetric positive definite matrix :math:`Q` (paper, cor. operator_substitution).

    It lives on every grid with as many sites as the matrix has rows. A matrix that annihilates the
    constants, and nothing else, is taken under the zero-mean gauge.

    Args:
        matrix: Shape (n, n), a tensor or nested lists.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.values = _square(self, matrix)
        self.factor((len(self.values),))  # raise now, not at the first training step

    def matrix(self, grid: Grid) -> Tensor:
        """The matrix as given, in float64 and without an asymmetry of the size of rounding."""
        _require_sites(self, self.values, grid)
        values = self.values.double()
        return (values + values.T) / 2

    def factor(self, grid: Grid) -> Factor:
        """From the entries as given: how much of an asymmetry is rounding depends on their type."""
        _require_sites(self, self.values, grid)
        return CholeskyFactor.of_matrix(self.values, grid, str(self))

    def __repr__(self) -> str:
        return f"Dense(matrix={len(self.values)}x{len(self.values)})"


class KernelFactor(Factor):
    r"""An operator given by its inverse, the covariance :math:`K = R R^\top`.

    The root :math:`R` is a Cholesky factor, or :math:`V\Lambda^{1/2}` from the eigenvectors where
    :math:`K` is singular: then :math:`Q = K^{+}`, and the directions without variance are taken
    away like those of a gauge.
    """

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
        self.grid, self.kernel, self.name = grid, kernel, name
        root, failed = torch.linalg.cholesky_ex(kernel)
        if not int(failed) and float(root.diagonal().square().min()) > PIVOT * largest:
            self.rank, self.root = n, root
            self.logdet = -2 * float(root.diagonal().log().sum())
        else:
            values, vectors = torch.linalg.eigh(kernel)
            rounding = n * PIVOT * largest
            kept = values > rounding
            self.rank = int(kept.sum())
            if float(values[0]) < -rounding or not self.rank:
                raise ValueError(
                    f"{name} is not positive semidefinite on grid {grid}: its eigenvalues go from "
                    f"{float(values[0]):.3g} to {float(values[-1]):.3g}."
                )
            self.root = vectors * (values * kept).sqrt()
            self.logdet = -float(values[kept].log().sum())
        self.variance = kernel.diagonal().clone().view(grid)
        self.mean_variance = float(self.variance.mean())

    def inverse(self) -> Tensor:
        r""":math:`Q`, the inverse or pseudo-inverse of the kernel."""
        if self.rank == len(self.root):
            return torch.cholesky_inverse(self.root)
        kept = self.root[:, -self.rank :]
        scaled = kept / kept.square().sum(0)
        inverse: Tensor = scaled @ scaled.T
        return inverse

    def spectrum(self) -> Tensor:
        """Ascending, after the zeros of the directions without variance."""
        values: Tensor = torch.linalg.eigvalsh(self.kernel)[-self.rank :].flip(0).reciprocal()
        return torch.cat([values.new_zeros(len(self.root) - self.rank), values])

    def green(self) -> Tensor:
        return self.kernel

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (self.root.T.contiguous().to(dtype).to(device),)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        return white @ constants[0]

    def shifted(self, mu: float) -> "KernelFactor":
        r""":math:`(K^{-1} + \mu I)^{-1} = (I + \mu K)^{-1} K`; :math:`(K^{+} + \mu I)^{-1}` where
        the kernel is singular.
        """
        eye = torch.eye(len(self.root), dtype=torch.float64)
        if self.rank == len(eye):
            kernel = torch.linalg.solve(eye + mu * self.kernel, self.kernel)
        else:
            kernel = torch.linalg.inv(self.inverse() + mu * eye)
        return KernelFactor((kernel + kernel.T) / 2, self.grid, f"massive {self.name}")


class Kernel(Operator):
    r"""An operator given by the covariance it forces: :math:`Q = K^{-1}`, so that the field has
    covariance :math:`K/\beta`.

    The maximum-entropy law of a budget with :math:`Q` has the kernel :math:`Q^{-1}` (cor.
    operator_substitution), so every positive definite kernel is the solution for one operator. A
    singular one is too, on the fields that have variance. A custom kernel is a class with one
    method.
    """

    @abstractmethod
    def covariance(self, grid: Grid) -> Tensor:
        """The kernel as a dense (n, n) matrix, sites flattened with the last axis fastest."""

    def matrix(self, grid: Grid) -> Tensor:
        """The inverse of the covariance, or its pseudo-inverse."""
        factor = self._factor(grid)
        assert isinstance(factor, KernelFactor)
        return factor.inverse()

    def factor(self, grid: Grid) -> Factor:
        kernel = self.covariance(grid).detach().to(device="cpu", dtype=torch.float64)
        return KernelFactor(kernel, grid, str(self))


class CovarianceMatrix(Kernel):
    """A kernel written down; it lives on every grid with as many sites as the matrix has rows.

    Args:
        matrix: Symmetric positive semidefinite, shape (n, n), a tensor or nested lists.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.values = _square(self, matrix).double()
        self.factor((len(self.values),))  # raise now, not at the first training step

    def covariance(self, grid: Grid) -> Tensor:
        _require_sites(self, self.values, grid)
        return self.values

    def __repr__(self) -> str:
        return f"CovarianceMatrix(matrix={len(self.values)}x{len(self.values)})"


class CovarianceFunction(Kernel):
    r"""A kernel that depends on the distance of two sites: :math:`K(x, y) = k(|x - y|) +
    \delta_{xy}\,\text{nugget}`.

    Args:
        function: :math:`k`, from Euclidean distances in sites (n, n) to covariances (n, n).
        nugget: Variance added at every site by itself.

    >>> operator = CovarianceFunction(lambda distance: torch.exp(-distance / 2))
    >>> operator.green((3,))[0]
    tensor([1.0000, 0.6065, 0.3679], dtype=torch.float64)
    """

    def __init__(self, function: Callable[[Tensor], Tensor], nugget: float = 0.0) -> None:
        self.function, self.nugget = function, nugget

    def covariance(self, grid: Grid) -> Tensor:
        places = [torch.arange(side, dtype=torch.float64) for side in as_grid(grid)]
        sites = torch.cartesian_prod(*places).view(-1, len(grid))
        # exact on the diagonal, unlike torch.cdist
        distance = (sites[:, None] - sites).square().sum(-1).sqrt()
        eye = torch.eye(len(sites), dtype=torch.float64)
        return self.function(distance).double() + self.nugget * eye

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", self.function)
        return f"CovarianceFunction({name}, nugget={self.nugget})"


class Matern(CovarianceFunction):
    r"""The Matern kernels of half-integer smoothness, with variance one (Rasmussen, Williams 2006,
    eq. 4.17).

    .. math:: k_{1/2}(r) = e^{-r/\ell}, \quad k_{3/2}(r) = (1 + s)\,e^{-s},\ s = \sqrt3\,r/\ell,
        \quad k_{5/2}(r) = (1 + s + s^2/3)\,e^{-s},\ s = \sqrt5\,r/\ell

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
        polynomial = torch.ones_like(s) if self.smoothness == 0.5 else 1 + s
        if self.smoothness == 2.5:
            polynomial = 1 + s + s.square() / 3
        return polynomial * torch.exp(-s)

    def __repr__(self) -> str:
        return f"Matern(length={self.length}, smoothness={self.smoothness}, nugget={self.nugget})"
