r"""How much entropy a feasible law gives away: :math:`h(p^\star) - h(p) = \mathrm{KL}(p\,\|\,p^\star)`.

The identity (eq. entropy_gap_identity) holds for every law :math:`p` of mean zero and mean energy :math:`\varepsilon`.
Here both sides are computed on their own, in closed form, for two families: Gaussians of any covariance, and laws with
independent Laplace coefficients in the eigenbasis of the operator. Under a gauge everything lives on the subspace that
the gauge leaves, in orthonormal coordinates.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.field.law import MaxEntLaw

FEASIBLE = 1e-9
"""Relative error of the mean energy beyond which a law is refused as infeasible."""


@dataclass(frozen=True)
class EntropyGap:
    r"""Both sides of :math:`h(p^\star) - h(p) = \mathrm{KL}(p\,\|\,p^\star)` (eq. entropy_gap_identity).

    Attributes:
        entropy: Differential entropy h(p) of the feasible law.
        gap: Entropy of the maximum-entropy law minus ``entropy``.
        kl: Divergence of the feasible law from the maximum-entropy law, from a formula of its own.
    """

    entropy: float
    gap: float
    kl: float


def gaussian_entropy_gap(law: MaxEntLaw, covariance: Tensor) -> EntropyGap:
    r"""Both sides for :math:`p = \mathcal N(0, S)` with :math:`\tfrac12\mathrm{tr}(QS) = \varepsilon`.

    .. math::
        h(p) = \tfrac12\log\big((2\pi e)^r \det S\big), \qquad
        \mathrm{KL} = \tfrac12\big(\mathrm{tr}\,K - r - \log\det K\big), \quad K = \Sigma^{-1/2} S\, \Sigma^{-1/2}

    with :math:`\Sigma = (\beta Q)^{-1}` the covariance of ``law``.

    Args:
        law: The maximum-entropy law.
        covariance: :math:`S`, shape (n, n), positive definite on the subspace that the gauge leaves.
    """
    if tuple(covariance.shape) != (law.n, law.n):
        raise ValueError(
            f"a covariance on the grid of {law} must be ({law.n}, {law.n}); got {tuple(covariance.shape)}."
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
    r"""Both sides for independent Laplace coefficients :math:`a_k` along the eigenvectors of :math:`Q`.

    With :math:`\mathrm{Var}(a_k) = 2 b_k^2`, :math:`\tfrac12\sum_k\lambda_k \mathrm{Var}(a_k) = \varepsilon`, and
    :math:`\sigma_k^2 = 1/\beta\lambda_k` the variance under ``law``,

    .. math::
        h(p) = \sum_k \big(1 + \log 2 b_k\big), \qquad
        \mathrm{KL} = \sum_k \Big(\tfrac12\log\tfrac\pi2 - 1 + \log\tfrac{\sigma_k}{b_k}
        + \tfrac{b_k^2}{\sigma_k^2}\Big)

    Args:
        law: The maximum-entropy law.
        variances: Positive variances in ascending order of the eigenvalues, shape (rank,); by default those of ``law``,
            so that only the shape of the marginals differs and the gap is :math:`\tfrac12(\log\pi - 1)` per direction.
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
    """Eigenvalues (rank,) and orthonormal eigenvectors (n, rank) of the operator, ascending, without a gauge's zero."""
    eigenvalues, basis = torch.linalg.eigh(law.operator.matrix(law.grid))
    return eigenvalues[-law.rank :], basis[:, -law.rank :]


def _check_energy(law: MaxEntLaw, energy: float) -> None:
    if not math.isclose(energy, law.epsilon, rel_tol=FEASIBLE):
        raise ValueError(
            f"not a feasible law: its mean energy is {energy:.12g}, the budget of {law} is {law.epsilon:.12g}. "
            "Rescale the covariance by their ratio."
        )
