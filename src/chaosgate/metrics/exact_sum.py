r"""Sums that do not depend on the order of addition.

Floating-point addition is not associative, so a float sum changes with the batch size and the number of processes;
and a float state inside a module is rounded by ``module.to(torch.bfloat16)``, or refused by a device without float64.
Integers have neither problem. A sum :math:`s` of non-negative values is held as four int64 numbers,

.. math:: s = 2^{-12}\,a + 2^{-52}\,b, \qquad 0 \le b < 2^{40} \text{ after } \texttt{carry},

and the number of infinite and of nan summands, so that these stay as visible as in a float sum. Each summand is
resolved to :math:`2^{-52}` (a float64 near one), the sum may reach :math:`2^{51}`, and equal summands have equal sums,
bit for bit, however they were split into batches and processes.
"""

import torch
from torch import Tensor

PARTS = 4
"""Integers per sum: coarse, fine, number of infinities, number of nans."""

LARGEST = 2.0**28
"""Larger summands count as infinite; :math:`2^{23}` of this size still fit the range of a sum."""

_COARSE, _FINE = 2.0**12, 2.0**40


def split(values: Tensor) -> Tensor:
    """Integer parts ``(..., 4)`` of non-negative values ``(...)`` in float32 or float64.

    Scaling by a power of two, ``floor`` and the difference are exact in either type; only bits below
    :math:`2^{-52}` are rounded.
    """
    scaled = torch.where(values <= LARGEST, values, 0.0) * _COARSE  # a nan is not less than anything either
    coarse = scaled.floor()
    fine = scaled.sub_(coarse).mul_(_FINE).round_()
    return torch.stack((coarse, fine, values > LARGEST, values.isnan()), dim=-1).long()


def carry(parts: Tensor) -> Tensor:
    """The same sums ``(..., 4)`` with the surplus of the fine part moved up: room for another 2^23 summands."""
    coarse, fine, infinite, undefined = parts.unbind(-1)
    surplus = fine >> 40
    return torch.stack((coarse + surplus, fine - (surplus << 40), infinite, undefined), dim=-1)


def join(parts: Tensor) -> Tensor:
    """Sums ``(...)`` in float64 of parts ``(..., 4)``; on the CPU where the device has no float64."""
    parts = parts.cpu() if parts.device.type == "mps" else parts
    coarse, fine, infinite, undefined = carry(parts).to(torch.float64).unbind(-1)
    total = coarse / _COARSE + fine / (_COARSE * _FINE)
    return torch.where(undefined > 0, torch.nan, torch.where(infinite > 0, torch.inf, total))


def sum_by_slot(values: Tensor, slot: Tensor, num_slots: int) -> Tensor:
    """Parts ``(num_slots, F, 4)`` of the sums of ``values (N, F)`` over the rows with equal ``slot (N,)``.

    >>> parts = sum_by_slot(torch.tensor([[0.25], [0.5], [4.0]]), torch.tensor([1, 1, 0]), num_slots=3)
    >>> join(parts).squeeze(1)
    tensor([4.0000, 0.7500, 0.0000], dtype=torch.float64)
    """
    zeros = torch.zeros(num_slots, values.shape[1], PARTS, dtype=torch.int64, device=values.device)
    return zeros.index_add_(0, slot, split(values))
