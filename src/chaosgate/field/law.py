"""The maximum-entropy law of the log-field (paper, thm. maxent_logfield)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid, as_grid, positive
from chaosgate.field.operator import Operator
from chaosgate.field.strength import (
    beta_from_epsilon,
    epsilon_from_beta,
    log_std_from_tau,
    tau_from_gamma,
)


class MaxEntLaw:
    r"""Centred Gaussian log-field of largest entropy at a given mean energy.

    .. math:: \psi \sim \mathcal N\big(0, (\beta Q)^{-1}\big), \qquad \beta = \frac{n}{2\varepsilon}

    (eq. general_maxent_optimizer, cor. green_forcing). Under a gauge the rank r of :math:`Q` takes the place of n:
    :math:`\beta = r/2\varepsilon`, the inverse is the Moore-Penrose inverse, and entropy, normaliser and density are
    those of the r-dimensional subspace that the gauge leaves (fields of mean zero), in orthonormal coordinates.

    Args:
        operator: The operator :math:`Q` of the budget.
        grid: Height and width.
        beta: Inverse temperature; 1 if neither it nor ``epsilon`` is given.
        epsilon: Mean energy :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle]`, instead of ``beta``.

    Attributes:
        n: Number of sites.
        rank: Number of free directions, n unless there is a gauge.
    """

    def __init__(
        self,
        operator: Operator,
        grid: Sequence[int],
        beta: float | None = None,
        epsilon: float | None = None,
    ) -> None:
        if beta is not None and epsilon is not None:
            raise ValueError(
                f"give beta or epsilon, not both (got beta={beta}, epsilon={epsilon}): each fixes the other."
            )
        self.operator = operator
        self.grid: Grid = as_grid(grid)
        self.n = self.grid[0] * self.grid[1]
        self.rank = operator.rank(self.grid)
        if epsilon is not None:
            self.epsilon = positive("epsilon", epsilon)
            self.beta = beta_from_epsilon(operator, self.grid, epsilon)
        else:
            self.beta = positive("beta", 1.0 if beta is None else beta)
            self.epsilon = epsilon_from_beta(operator, self.grid, self.beta)

    @property
    def covariance(self) -> Tensor:
        r""":math:`(\beta Q)^{-1} = \beta^{-1} G` (eq. gff-cov), shape (n, n), float64."""
        return self.operator.green(self.grid) / self.beta

    @property
    def precision(self) -> Tensor:
        r""":math:`\beta Q`, shape (n, n), float64."""
        return self.operator.matrix(self.grid) * self.beta

    @property
    def variance(self) -> Tensor:
        """Diagonal of the covariance as a map (H, W), float64: the v(x) of the Wick correction."""
        return self.operator.variance(self.grid) / self.beta

    def entropy(self) -> float:
        r"""Entropy :math:`\tfrac12\log\big((2\pi e)^r \det (\beta Q)^{-1}\big)` (eq. maxent_entropy_value)."""
        return 0.5 * self.rank + self.log_normalizer()

    def log_normalizer(self) -> float:
        r""":math:`\log Z_\beta = \tfrac r2\log 2\pi - \tfrac12\log\det(\beta Q)` (eq. gff-normalizer)."""
        return 0.5 * (self.rank * math.log(2 * math.pi / self.beta) - self.operator.logdet(self.grid))

    def log_prob(self, field: Tensor) -> Tensor:
        r"""Log-density :math:`-\beta\,\mathcal E(\psi) - \log Z_\beta` of fields (..., H, W); shape (...).

        Under a gauge it is the density of the part of the field inside the subspace.
        """
        self._check(field)
        return -self.beta * self.operator.energy(field) - self.log_normalizer()

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Draw n independent fields, shape (n, H, W).

        Without a generator a new one is seeded from the operating system; the global stream is never touched.
        """
        if generator is None:
            generator = torch.Generator(device)
            generator.seed()
        white = torch.randn(n, *self.grid, generator=generator, dtype=dtype, device=generator.device)
        return self.color(white.to(device))

    def color(self, white: Tensor) -> Tensor:
        """Turn white noise (..., H, W) into fields of this law; linear, deterministic."""
        self._check(white)
        return self.operator.color(white) / math.sqrt(self.beta)

    def tau(self, gamma: float) -> float:
        r"""Effective strength :math:`\tau = \gamma^2/\beta` (prop. effective_tau)."""
        return tau_from_gamma(gamma, self.beta)

    def log_std(self, gamma: float) -> float:
        r"""Root mean square of :math:`\gamma\psi` over sites and draws: the strength that transfers between grids."""
        return log_std_from_tau(self.operator, self.grid, self.tau(gamma))

    def _check(self, field: Tensor) -> None:
        if tuple(field.shape[-2:]) != self.grid:
            raise ValueError(f"the law lives on grid {self.grid}; got a field of shape {tuple(field.shape)}.")

    def __repr__(self) -> str:
        return f"MaxEntLaw({self.operator}, grid={self.grid}, beta={self.beta:.6g})"
