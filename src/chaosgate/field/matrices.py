"""Operators given by a matrix or a function: of the energy, or of the covariance."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chaosgate.field.cholesky import PIVOT, CholeskyFactor, symmetric
from chaosgate.field.operator import Constants, Factor, Grid, Operator, as_grid, positive

Matrix = Tensor | Sequence[Sequence[float]]


def _given(matrix: Matrix) -> Tensor:
    given = matrix if isinstance(matrix, Tensor) else torch.tensor(matrix, dtype=torch.float64)
    return given.detach().to("cpu").clone()


class Dense(Operator):
    r"""Any symmetric positive definite matrix :math:`Q` (paper, cor. operator_substitution).

    It applies to every grid with as many sites as the matrix has rows. A matrix whose null space
    consists of the constants gets the zero-mean gauge.

    Args:
        matrix: Shape (n, n), a tensor or nested lists.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.values = _given(matrix)
        self.factor((len(self.values),))  # raise now, not at the first training step

    def matrix(self, grid: Grid) -> Tensor:
        """The matrix in float64, made symmetric up to rounding."""
        values = symmetric(self.values, grid, str(self))
        return (values + values.T) / 2

    def factor(self, grid: Grid) -> Factor:
        """The factor; the precision of the given entries decides how much asymmetry is rounding."""
        return CholeskyFactor.of_matrix(self.values, grid, str(self))

    def __repr__(self) -> str:
        return f"Dense(matrix={len(self.values)}x{len(self.values)})"


class KernelFactor(Factor):
    r"""An operator given by its inverse, the covariance :math:`K = R R^\top`.

    The root :math:`R` is a Cholesky factor, or :math:`V\Lambda^{1/2}` from the eigenvectors if
    :math:`K` is singular: then :math:`Q = K^{+}`, and directions without variance are removed, as
    by a gauge.
    """

    def __init__(self, kernel: Tensor, grid: Grid, name: str) -> None:
        self.grid, self.name = grid, name
        self.kernel = kernel = symmetric(kernel, grid, name)
        rounding = PIVOT * float(kernel.abs().max())
        self.root, failed = torch.linalg.cholesky_ex(kernel)
        if not int(failed) and float(self.root.diagonal().square().min()) > rounding:
            self.rank = len(kernel)
            self.logdet = -2 * float(self.root.diagonal().log().sum())
        else:
            values, vectors = torch.linalg.eigh(kernel)
            rounding *= len(kernel)
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
        scaled: Tensor = kept / kept.square().sum(0)
        return scaled @ scaled.T

    def green(self) -> Tensor:
        return self.kernel

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (self.root.T.contiguous().to(dtype).to(device),)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        return white @ constants[0]

    def shifted(self, mu: float) -> "KernelFactor":
        r""":math:`(K^{-1} + \mu I)^{-1} = (I + \mu K)^{-1} K`; :math:`(K^{+} + \mu I)^{-1}` if
        the kernel is singular.
        """
        eye = torch.eye(len(self.root), dtype=torch.float64)
        if self.rank == len(eye):
            kernel = torch.linalg.solve(eye + mu * self.kernel, self.kernel)
        else:
            kernel = torch.linalg.inv(self.inverse() + mu * eye)
        return KernelFactor((kernel + kernel.T) / 2, self.grid, f"massive {self.name}")


class Kernel(Operator):
    r"""An operator given by its covariance: :math:`Q = K^{-1}`, so that the field has
    covariance :math:`K/\beta`.

    The maximum-entropy law of a budget with :math:`Q` has the kernel :math:`Q^{-1}` (cor.
    operator_substitution), so every positive definite kernel is the solution for one operator. This
    also holds for singular kernels, on the subspace with variance. A custom kernel is a class with
    one method.
    """

    @abstractmethod
    def covariance(self, grid: Grid) -> Tensor:
        """The kernel as a dense (n, n) matrix, sites flattened with the last axis fastest."""

    def matrix(self, grid: Grid) -> Tensor:
        """The inverse of the covariance, or its pseudo-inverse."""
        return self.factor(grid).inverse()

    def factor(self, grid: Grid) -> KernelFactor:
        return KernelFactor(self.covariance(grid), grid, str(self))


class CovarianceMatrix(Kernel):
    """A kernel given as a matrix, for every grid with as many sites as the matrix has rows.

    Args:
        matrix: Symmetric positive semidefinite, shape (n, n), a tensor or nested lists.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.values = _given(matrix).double()
        self.factor((len(self.values),))  # raise now, not at the first training step

    def covariance(self, grid: Grid) -> Tensor:
        return self.values

    def __repr__(self) -> str:
        return f"CovarianceMatrix(matrix={len(self.values)}x{len(self.values)})"


class CovarianceFunction(Kernel):
    r"""A kernel that depends on the distance of two sites: :math:`K(x, y) = k(|x - y|) +
    \delta_{xy}\,\text{nugget}`.

    Args:
        function: :math:`k`, from Euclidean distances in sites (n, n) to covariances (n, n).
        nugget: Independent variance added at every site.

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


class Matern(CovarianceFunction):
    r"""The Matern kernels of half-integer smoothness, with variance one (Rasmussen, Williams 2006,
    eq. 4.17).

    .. math:: k_{1/2}(r) = e^{-r/\ell}, \quad k_{3/2}(r) = (1 + s)\,e^{-s},\ s = \sqrt3\,r/\ell,
        \quad k_{5/2}(r) = (1 + s + s^2/3)\,e^{-s},\ s = \sqrt5\,r/\ell

    Args:
        length: The range :math:`\ell` in sites.
        smoothness: 0.5 (exponential kernel), 1.5 or 2.5.
        nugget: Independent variance added at every site.
    """

    def __init__(self, length: float, smoothness: float = 0.5, nugget: float = 0.0) -> None:
        if smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern: smoothness must be 0.5, 1.5 or 2.5; got {smoothness!r}.")
        self.length, self.smoothness = positive("the length", length), float(smoothness)
        super().__init__(self._of_distance, nugget)

    def _of_distance(self, distance: Tensor) -> Tensor:
        s = math.sqrt(2 * self.smoothness) * distance / self.length
        polynomial = torch.ones_like(s) if self.smoothness == 0.5 else 1 + s
        if self.smoothness == 2.5:
            polynomial = 1 + s + s.square() / 3
        return polynomial * torch.exp(-s)
