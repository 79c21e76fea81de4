r"""Laws of the log-field: the maximum-entropy law (paper, thm. maxent_logfield), a heavy-tailed
law, and units of strength.

- ``beta``, inverse temperature: the field has covariance :math:`(\beta Q)^{-1}` (eq. gff-law).
- ``epsilon``, mean energy: :math:`\beta = r / 2\varepsilon` with r the rank of Q (cor.
  green_forcing).
- ``gamma`` multiplies the field in the exponent (eq. exact_gate).
- ``tau``, :math:`\tau = \gamma^2 / \beta`: the gate depends on nothing else (prop. effective_tau).
- ``log_std``, :math:`\sqrt{\tau\,\mathrm{mean}_x G(x, x)}`, root mean square of :math:`\gamma\psi`
  over the sites.

Only ``log_std`` has the same meaning on all grids. The rank replaces the paper's n; they differ
only with a gauge, which removes one direction.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from chaosgate.field.operator import Grid, Operator, as_grid, positive
from chaosgate.field.white import Noise

Normals = Callable[[Sequence[int]], Tensor]
"""Function from a shape to independent standard normal numbers."""


class Law(ABC):
    r"""A centered law of the log-field with covariance :math:`(\beta Q)^{-1}`: a family of
    distributions and the kernel of an operator.

    A custom family defines how fields are made from normal numbers (:meth:`fields`), the entropy
    and the density.

    Args:
        operator: The operator :math:`Q` of the budget.
        grid: Sites along each axis, one to three of them.
        beta: Inverse temperature; 1 if neither it nor ``epsilon`` is given.
        epsilon: Mean energy :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle]`, instead of
            ``beta``.

    Attributes:
        n: Number of sites.
        rank: Number of free directions; n without a gauge.
    """

    family: str
    """The family as text, for reports."""

    has_exponential_moment: ClassVar[bool]
    r"""Whether :math:`E e^{\gamma\psi(x)}` is finite; otherwise there is no Wick gate."""

    def __init__(
        self,
        operator: Operator,
        grid: Sequence[int],
        beta: float | None = None,
        epsilon: float | None = None,
    ) -> None:
        if beta is not None and epsilon is not None:
            raise ValueError(
                f"give beta or epsilon, not both (got beta={beta}, epsilon={epsilon}): each "
                "determines the other."
            )
        self.operator = operator
        self.grid: Grid = as_grid(grid)
        self.n = math.prod(self.grid)
        self.rank = operator.rank(self.grid)
        name, given = ("epsilon", epsilon) if epsilon is not None else ("beta", beta)
        value = positive(name, 1.0 if given is None else given)
        other = self.rank / (2 * value)  # either from the other
        self.epsilon, self.beta = (value, other) if name == "epsilon" else (other, value)

    @abstractmethod
    def fields(self, normal: Normals, count: int) -> Tensor:
        """``count`` independent flat fields, (count, n)."""

    @abstractmethod
    def entropy(self) -> float:
        """Differential entropy; with a gauge, in orthonormal coordinates of the subspace left."""

    @abstractmethod
    def log_prob(self, field: Tensor) -> Tensor:
        r"""Log-density of fields (..., \*grid); shape (...)."""

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
        """Diagonal of the covariance as a map, float64; v(x) in the Wick gate."""
        return self.operator.variance(self.grid) / self.beta

    def draw(self, noise: Noise, lead: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        r"""Fields (\*lead, \*grid) from counter-based noise."""
        return self.rows(noise, math.prod(lead), dtype).view(*lead, *self.grid)

    def rows(self, noise: Noise, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same fields, flat, (count, n)."""
        return self.fields(lambda shape: noise.normal(shape, dtype), count)

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        r"""Draw n independent fields, shape (n, \*grid).

        Without a generator, a new one with a random seed is used; torch's global generator does
        not change.
        """
        if generator is None:
            generator = torch.Generator(device)
            generator.seed()
        at = generator.device
        rows = self.fields(
            lambda s: torch.randn(s, generator=generator, dtype=dtype, device=at).to(device), n
        )
        return rows.view(n, *self.grid)

    def color(self, white: Tensor) -> Tensor:
        r"""Map white noise (..., \*grid) linearly to Gaussian fields with this covariance."""
        self._check(white)
        return self._color_rows(white.reshape(-1, self.n)).view(white.shape)

    def _color_rows(self, white: Tensor) -> Tensor:
        fields = self.operator.color_rows(white, self.grid)
        return fields if self.beta == 1 else fields.div_(math.sqrt(self.beta))

    def tau(self, gamma: float) -> float:
        r"""Effective strength :math:`\tau = \gamma^2/\beta` (prop. effective_tau)."""
        return gamma**2 / self.beta

    def log_std(self, gamma: float) -> float:
        r"""Root mean square of :math:`\gamma\psi` over sites and draws."""
        return math.sqrt(self.tau(gamma) * self.operator.mean_variance(self.grid))

    def _check(self, field: Tensor) -> None:
        if tuple(field.shape[-len(self.grid) :]) != self.grid:
            raise ValueError(
                f"the law is on grid {self.grid}; got a field of shape {tuple(field.shape)}."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operator}, grid={self.grid}, beta={self.beta:.6g})"


class MaxEntLaw(Law):
    r"""Centered Gaussian log-field, which has the largest entropy at a given mean energy.

    .. math:: \psi \sim \mathcal N\big(0, (\beta Q)^{-1}\big), \qquad \beta = \frac{n}{2\varepsilon}

    (eq. general_maxent_optimizer, cor. green_forcing). With a gauge, the rank r of :math:`Q`
    replaces n: :math:`\beta = r/2\varepsilon`, the inverse is the Moore-Penrose inverse, and
    entropy, normalizer and density refer to the remaining r-dimensional subspace (fields of mean
    zero), in orthonormal coordinates.

    Args:
        operator: The operator :math:`Q` of the budget.
        grid: Sites along each axis, one to three of them.
        beta: Inverse temperature; 1 if neither it nor ``epsilon`` is given.
        epsilon: Mean energy :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle]`, instead of
            ``beta``.
    """

    family = "N(0, (beta Q)^-1)"
    has_exponential_moment = True

    def fields(self, normal: Normals, count: int) -> Tensor:
        return self._color_rows(normal((count, self.n)))

    def entropy(self) -> float:
        r"""Entropy :math:`\tfrac12\log\big((2\pi e)^r \det (\beta Q)^{-1}\big)` (eq.
        maxent_entropy_value).
        """
        return 0.5 * self.rank + self.log_normalizer()

    def log_normalizer(self) -> float:
        r""":math:`\log Z_\beta = \tfrac r2\log 2\pi - \tfrac12\log\det(\beta Q)` (eq.
        gff-normalizer).
        """
        return 0.5 * (
            self.rank * math.log(2 * math.pi / self.beta) - self.operator.logdet(self.grid)
        )

    def log_prob(self, field: Tensor) -> Tensor:
        r"""Log-density :math:`-\beta\,\mathcal E(\psi) - \log Z_\beta` of fields (..., \*grid).

        With a gauge, the density of the part of the field in the remaining subspace.
        """
        self._check(field)
        return -self.beta * self.operator.energy(field, len(self.grid)) - self.log_normalizer()


class StudentT(Law):
    r"""A heavy-tailed field on the same kernel: multivariate Student-t with covariance
    :math:`(\beta Q)^{-1}`.

    .. math:: \psi = \sqrt{\frac{\nu - 2}{\chi^2_\nu}}\;\psi_G, \qquad
        \psi_G \sim \mathcal N\big(0, (\beta Q)^{-1}\big)

    with one :math:`\chi^2_\nu` per field. At the same budget it has less entropy than the Gaussian
    law. Because :math:`E e^{\gamma\psi} = \infty` there is no Wick gate, only a sample-wise gate.

    Args:
        operator: The operator :math:`Q` of the budget.
        grid: Sites along each axis, one to three of them.
        beta: Inverse temperature; 1 if neither it nor ``epsilon`` is given.
        epsilon: Mean energy, instead of ``beta``.
        degrees: Degrees of freedom :math:`\nu`, a whole number of at least 3; the Gaussian law is
            the limit.
    """

    has_exponential_moment = False

    def __init__(
        self,
        operator: Operator,
        grid: Sequence[int],
        beta: float | None = None,
        epsilon: float | None = None,
        degrees: int = 5,
    ) -> None:
        super().__init__(operator, grid, beta, epsilon)
        if not isinstance(degrees, int) or degrees < 3:
            raise ValueError(
                "StudentT: degrees must be a whole number of at least 3, for a finite variance; "
                f"got {degrees!r}."
            )
        self.degrees = degrees
        self.family = f"Student-t, {degrees} degrees of freedom, covariance (beta Q)^-1"

    def fields(self, normal: Normals, count: int) -> Tensor:
        gaussian = self._color_rows(normal((count, self.n)))
        chi_square = normal((count, self.degrees)).square().sum(-1, keepdim=True)
        return gaussian * ((self.degrees - 2) / chi_square).sqrt()

    def _log_peak(self) -> float:
        """Log-density of the zero field."""
        nu, r = self.degrees, self.rank
        gammas = math.lgamma((nu + r) / 2) - math.lgamma(nu / 2)
        return gammas - 0.5 * (
            r * math.log((nu - 2) * math.pi / self.beta) - self.operator.logdet(self.grid)
        )

    def entropy(self) -> float:
        nu, r = self.degrees, self.rank
        upper, lower = torch.digamma(torch.tensor([(nu + r) / 2, nu / 2], dtype=torch.float64))
        return (nu + r) / 2 * float(upper - lower) - self._log_peak()

    def log_prob(self, field: Tensor) -> Tensor:
        self._check(field)
        energy = self.operator.energy(field, len(self.grid))
        return self._log_peak() - (self.degrees + self.rank) / 2 * torch.log1p(
            2 * self.beta * energy / (self.degrees - 2)
        )
