r"""Calibration error over bins of equal mass.

Bins of equal width leave most of an over-confident network's samples in the last bin. Here the :math:`n` samples are
sorted by confidence and bin :math:`m` of :math:`M` takes the ranks from :math:`\lfloor mn/M \rfloor` up to, not
including, :math:`\lfloor (m+1)n/M \rfloor`: sizes differ by at most one where :math:`M` does not divide :math:`n`, and
bins are empty where :math:`n < M`.

Samples of equal confidence are interchangeable, so a border between them must not depend on who came first: each of
them carries the mean correctness of its tie. That makes the result a function of the set of samples alone.
"""

import torch
from torch import Tensor

from chaosgate.metrics.checks import check_num_bins
from chaosgate.metrics.exact_sum import join, sum_by_slot
from chaosgate.metrics.functional import Reliability, calibration_error, working_precision


def adaptive_bins(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Reliability:
    """Reliability sums over equal-mass bins of ``confidence (N,)`` in [0, 1] and ``correct (N,)`` in {0, 1}.

    ``edges`` holds the mean of the confidences on the two sides of each border, with 0 and 1 at the ends.
    """
    check_num_bins(num_bins)
    order = working_precision(confidence).sort()
    value, hit = order.values, correct.to(order.values)[order.indices]
    n = len(value)
    tie = torch.zeros(n, dtype=torch.int64, device=value.device)  # which group of equal confidences a sample is in
    tie[1:] = (value[1:] != value[:-1]).cumsum(0)
    size, hits = (torch.zeros_like(value).index_add_(0, tie, x) for x in (torch.ones_like(hit), hit))
    hit = (hits / size)[tie]

    borders = torch.tensor([m * n // num_bins for m in range(num_bins + 1)], device=value.device)
    slot = torch.searchsorted(borders, torch.arange(n, device=value.device), right=True) - 1
    columns = torch.stack((torch.ones_like(value), value, hit), dim=1)
    sums = join(sum_by_slot(columns, slot, num_bins))
    padded = torch.cat((value.new_zeros(1), value, value.new_ones(1)))
    edges = (padded[borders] + padded[borders + 1]) / 2
    edges[0], edges[-1] = 0, 1
    return Reliability(sums[:, 0], sums[:, 1], sums[:, 2], edges)


def adaptive_calibration_error(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Tensor:
    """Expected calibration error over ``num_bins`` bins of equal mass; nan without samples.

    >>> adaptive_calibration_error(torch.tensor([0.6, 0.7, 0.8, 0.9]), torch.tensor([0, 1, 1, 1]), num_bins=2)
    tensor(0.1500, dtype=torch.float64)
    """
    return calibration_error(adaptive_bins(confidence, correct, num_bins))
