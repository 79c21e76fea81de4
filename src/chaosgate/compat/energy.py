r"""Roughness: the intrinsic energy of a map, what gates add to it, and how coherent a map is.

.. math:: \mathcal E_{\mathrm{int}}(f) = \tfrac12 \sum_{\{x,y\}} c_{xy}\,(f(x) - f(y))^2

Unlike the energy of the design problem it has no outer boundary, so constants are free and it measures relative
geometry (eq. intrinsic_energy).
"""

import torch
from torch import Tensor

from chaosgate.compat.site_graph import SiteGraph


def intrinsic_energy(field: Tensor, graph: SiteGraph) -> Tensor:
    r""":math:`\mathcal E_{\mathrm{int}}` of fields (..., H, W), shape (...); float32 at least."""
    flat = _flat(field, graph)
    first, second = graph.edges.T.to(flat.device)
    jumps = flat[..., first] - flat[..., second]
    return 0.5 * (graph.weights.to(flat) * jumps.square()).sum(-1)


def roughness_budget(covariance: Tensor, graph: SiteGraph) -> float:
    r""":math:`\varepsilon_{\mathrm{int}} = \tfrac12\mathrm{tr}(L_{\mathrm{int}} C)` of a field with covariance (n, n).

    The sample-wise gate adds exactly :math:`\gamma^2\varepsilon_{\mathrm{int}}` to the expected intrinsic energy of the
    log-map, whatever the map (eq. samplewise_intrinsic_budget).
    """
    first, second = graph.edges.T
    diagonal = covariance.diagonal()
    variances = diagonal[first] + diagonal[second] - 2 * covariance[first, second]
    return 0.5 * float((graph.weights * variances).sum())


def weighted_mass(h: Tensor, graph: SiteGraph) -> Tensor:
    r""":math:`\sum_x d_x^{\mathrm{int}} h(x)^2` of maps (..., H, W), shape (...)."""
    flat = _flat(h, graph)
    return (graph.degrees().to(flat) * flat.square()).sum(-1)


def dropout_energy(h: Tensor, q: float, graph: SiteGraph) -> Tensor:
    r"""Expected intrinsic energy of maps (..., H, W) whose sites are kept independently with probability q.

    .. math::
        \mathbb E\,\mathcal E_{\mathrm{int}}(m_q \odot h)
        = \mathcal E_{\mathrm{int}}(h) + \frac{1-q}{2q}\sum_x d_x^{\mathrm{int}} h(x)^2

    (eq. dropout_energy_inflation); holds for signed maps too.
    """
    return intrinsic_energy(h, graph) + (1 - q) / (2 * q) * weighted_mass(h, graph)


def coherence(h: Tensor, graph: SiteGraph) -> Tensor:
    r"""Coherence score :math:`\kappa(h) = \sum_x d_x h(x)^2 / 2\mathcal E_{\mathrm{int}}(h)` of maps, shape (...).

    Large when a map carries mass but varies little from site to site; infinite for a constant map, not a number for a
    map that is zero everywhere (eq. coherence_score).
    """
    return weighted_mass(h, graph) / (2 * intrinsic_energy(h, graph))


def dropout_amplification(kappa: Tensor | float, q: float) -> Tensor | float:
    r"""Factor :math:`1 + \tfrac{1-q}{q}\kappa` of dropout on the expected intrinsic energy (eq. coherence_factor)."""
    return 1 + (1 - q) / q * kappa


def _flat(field: Tensor, graph: SiteGraph) -> Tensor:
    return graph.flat(field).to(torch.promote_types(field.dtype, torch.float32))
