r"""Laws of the log-field: the maximum-entropy one (paper, thm. maxent_logfield), a heavier one,
units of strength, and the entropy that other laws of the same budget give away.

- ``beta``, inverse temperature: the field has covariance :math:`(\beta Q)^{-1}` (eq. gff-law).
- ``epsilon``, mean energy: :math:`\beta = r / 2\varepsilon` with r the rank of Q (cor.
green_forcing). - ``gamma`` multiplies the field in the exponent (eq. exact_gate).
- ``tau``, :math:`\tau = \gamma^2 / \beta`, is all that the gate depends on (prop. effective_tau).
- ``log_std``, :math:`\sqrt{\tau\,\mathrm{mean}_x G(x, x)}`, root mean square of :math:`\gamma\psi`
over the sites.

Only ``log_std`` means the same on two grids. Where the paper writes n, the rank stands here: they
differ under a gauge alone, where one direction is held fixed and carries no energy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chaosgate.field.operator import Grid, Operator, as_grid, positive
from chaosgate.field.white import Noise


def beta_from_epsilon(operator: Operator, grid: Grid, epsilon: float) -> float:
    r"""Inverse temperature of the law of mean energy ``epsilon``: :math:`\beta =
    r/2\varepsilon`.
    """
    return operator.rank(grid) / (2 * positive("epsilon", epsilon))


def epsilon_from_beta(operator: Operator, grid: Grid, beta: float) -> float:
    r"""Mean energy at inverse temperature ``beta``: :math:`\varepsilon = r/2\beta`."""
    return operator.rank(grid) / (2 * positive("beta", beta))


def tau_from_gamma(gamma: float, beta: float = 1.0) -> float:
    r""":math:`\tau = \gamma^2/\beta` (eq. effective_tau); the sign of gamma does not matter."""
    return gamma**2 / positive("beta", beta)


def gamma_from_tau(tau: float, beta: float = 1.0) -> float:
    r"""The non-negative :math:`\gamma = \sqrt{\beta\tau}`."""
    return math.sqrt(tau * positive("beta", beta))


def log_std_from_tau(operator: Operator, grid: Grid, tau: float) -> float:
    r"""Root mean square over the sites of the log-gate,
    :math:`\sqrt{\tau\,\mathrm{mean}_x G(x, x)}`.
    """
    return math.sqrt(tau * operator.mean_variance(grid))


def tau_from_log_std(operator: Operator, grid: Grid, log_std: float) -> float:
    r"""The :math:`\tau` at which the log-gate has root mean square ``log_std`` on this grid."""
    return log_std**2 / operator.mean_variance(grid)


Normals = Callable[[Sequence[int]], Tensor]
"""Where a law gets independent standard normals of a shape from."""


class Law(ABC):
    r"""A centred law of the log-field with covariance :math:`(\beta Q)^{-1}`: a family F on the
    kernel of an operator.

    Family and kernel are independent parts of a mechanism. A custom family defines how it makes
    fields from normals (:meth:`fields`), its entropy and its density.

    Args:
        operator: The operator :math:`Q` of the budget.
        grid: Sites along each axis, one to three of them.
        beta: Inverse temperature; 1 if neither it nor ``epsilon`` is given.
        epsilon: Mean energy :math:`\mathbb E[\tfrac12\langle\psi, Q\psi\rangle]`, instead of
            ``beta``.

    Attributes:
        n: Number of sites.
        rank: Number of free directions, n unless there is a gauge.
    """

    family: str
    """The family as text, for reports."""

    has_exponential_moment: ClassVar[bool]
    r"""Whether :math:`E e^{\gamma\psi(x)}` is finite, without which no Wick gate exists."""

    def __init__(
        self,
        operator: Operator,
        grid: Sequence[int],
        beta: float | None = None,
        epsilon: float | None = None,
    ) -> None:
        if beta is not None and epsilon is not None:
            raise ValueError(
                f"give beta or epsilon, not both (got beta={beta}, epsilon={epsilon}): each fixes "
                "the other."
            )
        self.operator = operator
        self.grid: Grid = as_grid(grid)
        self.n = math.prod(self.grid)
        self.rank = operator.rank(self.grid)
        if epsilon is not None:
            self.epsilon = positive("epsilon", epsilon)
            self.beta = beta_from_epsilon(operator, self.grid, epsilon)
        else:
            self.beta = positive("beta", 1.0 if beta is None else beta)
            self.epsilon = epsilon_from_beta(operator, self.grid, self.beta)

    @abstractmethod
    def fields(self, normal: Normals, count: int) -> Tensor:
        """``count`` independent fields with their sites in a row, (count, n)."""

    @abstractmethod
    def entropy(self) -> float:
        """Differential entropy, under a gauge in orthonormal coordinates of the subspace that it
        leaves.
        """

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
        """Diagonal of the covariance as a map, float64: the v(x) of the Wick correction."""
        return self.operator.variance(self.grid) / self.beta

    def draw(self, noise: Noise, lead: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        r"""Fields (\*lead, \*grid) under a key of the counter noise."""
        return self.rows(noise, math.prod(lead), dtype).view(*lead, *self.grid)

    def rows(self, noise: Noise, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same fields with their sites in a row, (count, n)."""
        return self.fields(lambda shape: noise.normal(shape, dtype), count)

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        r"""Draw n independent fields, shape (n, \*grid).

        Without a generator a new one is seeded from the operating system; the global stream is
        never touched.
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
        r"""Turn white noise (..., \*grid) into Gaussian fields of this covariance; linear,
        deterministic.
        """
        self._check(white)
        rows = white.reshape(-1, self.n)
        return self._color_rows(rows).view(white.shape)

    def _color_rows(self, white: Tensor) -> Tensor:
        fields = self.operator.color_rows(white, self.grid)
        return fields if self.beta == 1 else fields.div_(math.sqrt(self.beta))

    def tau(self, gamma: float) -> float:
        r"""Effective strength :math:`\tau = \gamma^2/\beta` (prop. effective_tau)."""
        return tau_from_gamma(gamma, self.beta)

    def log_std(self, gamma: float) -> float:
        r"""Root mean square of :math:`\gamma\psi` over sites and draws."""
        return log_std_from_tau(self.operator, self.grid, self.tau(gamma))

    def _check(self, field: Tensor) -> None:
        if tuple(field.shape[-len(self.grid) :]) != self.grid:
            raise ValueError(
                f"the law lives on grid {self.grid}; got a field of shape {tuple(field.shape)}."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operator}, grid={self.grid}, beta={self.beta:.6g})"


class MaxEntLaw(Law):
    r"""Centred Gaussian log-field of largest entropy at a given mean energy.

    .. math:: \psi \sim \mathcal N\big(0, (\beta Q)^{-1}\big), \qquad \beta = \frac{n}{2\varepsilon}

    (eq. general_maxent_optimizer, cor. green_forcing). Under a gauge the rank r of :math:`Q` takes
    the place of n: :math:`\beta = r/2\varepsilon`, the inverse is the Moore-Penrose inverse, and
    entropy, normaliser and density are those of the r-dimensional subspace that the gauge leaves
    (fields of mean zero), in orthonormal coordinates.

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

        Under a gauge it is the density of the part of the field inside the subspace.
        """
        self._check(field)
        return -self.beta * self.operator.energy(field, len(self.grid)) - self.log_normalizer()


class StudentT(Law):
    r"""A heavy-tailed field on the same kernel: multivariate Student-t with covariance
    :math:`(\beta Q)^{-1}`.

    .. math:: \psi = \sqrt{\frac{\nu - 2}{\chi^2_\nu}}\;\psi_G, \qquad
        \psi_G \sim \mathcal N\big(0, (\beta Q)^{-1}\big)

    with one :math:`\chi^2_\nu` per field. At the same budget it has less entropy than the Gaussian
    one. It has no exponential moment, :math:`E e^{\gamma\psi} = \infty`, so there is no Wick gate;
    the sample-wise gate exists.

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
                "StudentT: degrees is a whole number of at least 3, below which the field has no "
                f"variance; got {degrees!r}."
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


FEASIBLE = 1e-9
"""Relative error of the mean energy up to which a law meets a budget."""


@dataclass(frozen=True)
class EntropyGap:
    r"""Both sides of :math:`h(p^\star) - h(p) = \mathrm{KL}(p\,\|\,p^\star)` (eq.
    entropy_gap_identity), which holds for every law :math:`p` of mean zero and mean energy
    :math:`\varepsilon`, each from a formula of its own.

    Attributes:
        entropy: Differential entropy h(p) of the feasible law.
        gap: Entropy of the maximum-entropy law minus ``entropy``.
        kl: Divergence of the feasible law from the maximum-entropy law.
    """

    entropy: float
    gap: float
    kl: float


def gaussian_entropy_gap(law: MaxEntLaw, covariance: Tensor) -> EntropyGap:
    r"""Both sides for :math:`p = \mathcal N(0, S)` with :math:`\tfrac12\mathrm{tr}(QS) =
    \varepsilon`.

    .. math::
        h(p) = \tfrac12\log\big((2\pi e)^r \det S\big), \qquad
        \mathrm{KL} = \tfrac12\big(\mathrm{tr}\,K - r - \log\det K\big), \quad
        K = \Sigma^{-1/2} S\, \Sigma^{-1/2}

    with :math:`\Sigma = (\beta Q)^{-1}` the covariance of ``law``.

    Args:
        law: The maximum-entropy law.
        covariance: :math:`S`, shape (n, n), positive definite on the subspace that the gauge
            leaves.
    """
    if tuple(covariance.shape) != (law.n, law.n):
        raise ValueError(
            f"a covariance on the grid of {law} must be ({law.n}, {law.n}); got "
            f"{tuple(covariance.shape)}."
        )
    eigenvalues, basis = _eigenbasis(law)
    covariance = covariance.to(basis)
    inner = basis.T @ covariance @ basis
    if not torch.allclose(
        basis @ inner @ basis.T, covariance, atol=FEASIBLE * float(covariance.abs().max())
    ):
        raise ValueError(
            f"the covariance must be symmetric and stay in the {law.rank} directions of {law}."
        )
    _check_energy(law, 0.5 * float((eigenvalues * inner.diagonal()).sum()))
    root, failed = torch.linalg.cholesky_ex(inner)
    if int(failed):
        raise ValueError(
            f"the covariance is not positive definite on the {law.rank} directions of {law}."
        )
    entropy = 0.5 * law.rank * math.log(2 * math.pi * math.e) + float(root.diagonal().log().sum())
    scale = (law.beta * eigenvalues).sqrt()
    relative = torch.linalg.eigvalsh(scale[:, None] * inner * scale)
    return EntropyGap(
        entropy, law.entropy() - entropy, 0.5 * float((relative - 1 - relative.log()).sum())
    )


def laplace_entropy_gap(law: MaxEntLaw, variances: Tensor | None = None) -> EntropyGap:
    r"""Both sides for independent Laplace coefficients :math:`a_k` along the eigenvectors of
    :math:`Q`.

    With :math:`\mathrm{Var}(a_k) = 2 b_k^2`, :math:`\tfrac12\sum_k\lambda_k \mathrm{Var}(a_k) =
    \varepsilon`, and :math:`\sigma_k^2 = 1/\beta\lambda_k` the variance under ``law``,

    .. math::
        h(p) = \sum_k \big(1 + \log 2 b_k\big), \qquad
        \mathrm{KL} = \sum_k \Big(\tfrac12\log\tfrac\pi2 - 1 + \log\tfrac{\sigma_k}{b_k}
        + \tfrac{b_k^2}{\sigma_k^2}\Big)

    Args:
        law: The maximum-entropy law.
        variances: Positive variances in ascending order of the eigenvalues, shape (rank,); by
            default those of ``law``, so that only the shape of the marginals differs and the gap is
            :math:`\tfrac12(\log\pi - 1)` per direction.
    """
    eigenvalues, _ = _eigenbasis(law)
    optimal = 1 / (law.beta * eigenvalues)
    variances = optimal if variances is None else variances.to(optimal)
    if tuple(variances.shape) != (law.rank,) or not bool((variances > 0).all()):
        raise ValueError(
            f"need {law.rank} positive variances, one per direction of {law}; got {variances}."
        )
    _check_energy(law, 0.5 * float((eigenvalues * variances).sum()))
    entropy = float((1 + (2 * variances).log() / 2).sum())
    ratio = (optimal / variances).sqrt() * math.sqrt(2)  # sigma / b
    kl = float((0.5 * math.log(math.pi / 2) - 1 + ratio.log() + ratio**-2).sum())
    return EntropyGap(entropy, law.entropy() - entropy, kl)


def _eigenbasis(law: MaxEntLaw) -> tuple[Tensor, Tensor]:
    """Eigenvalues (rank,) and orthonormal eigenvectors (n, rank) of the operator, ascending,
    without a gauge's zero.
    """
    eigenvalues, basis = torch.linalg.eigh(law.operator.matrix(law.grid))
    return eigenvalues[-law.rank :], basis[:, -law.rank :]


def _check_energy(law: MaxEntLaw, energy: float) -> None:
    if not math.isclose(energy, law.epsilon, rel_tol=FEASIBLE):
        raise ValueError(
            f"not a feasible law: its mean energy is {energy:.12g}, the budget of {law} is "
            f"{law.epsilon:.12g}. Rescale the covariance by their ratio."
        )
