r"""What metrics keep between batches: sums that do not depend on the order of addition, and samples.

Floating-point addition is not associative, so a float sum changes with the batch size and the number of processes;
and a float state inside a module is rounded by ``module.to(torch.bfloat16)``, or refused by a device without float64.
Integers have neither problem. A sum :math:`s` of non-negative values is held as four int64 numbers,

.. math:: s = 2^{-12}\,a + 2^{-52}\,b, \qquad 0 \le b < 2^{40} \text{ after } \texttt{carry},

and the number of infinite and of nan summands, so that these stay as visible as in a float sum. Each summand is
resolved to :math:`2^{-52}` (a float64 near one), the sum may reach :math:`2^{51}`, and equal summands have equal sums,
bit for bit, however they were split into batches and processes.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

PARTS = 4
"""Integers per sum: coarse, fine, number of infinities, number of nans."""

LARGEST = 2.0**28
"""Larger summands count as infinite; :math:`2^{23}` of this size still fit the range of a sum."""

_COARSE, _FINE = 2.0**12, 2.0**40
_SCALE_BITS = 60
_UNDEFINED = -1


def split(values: Tensor) -> Tensor:
    """Integer parts ``(..., 4)`` of non-negative values ``(...)`` in float32 or float64.

    Scaling by a power of two, ``floor`` and the difference are exact in either type; only bits below
    :math:`2^{-52}` are rounded.
    """
    scaled = (
        torch.where(values <= LARGEST, values, 0.0) * _COARSE
    )  # a nan is not less than anything either
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


def working_precision(values: Tensor) -> Tensor:
    """The same numbers in float64, or in float32 on a device that has no float64 (MPS)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


class KeptSamples(Metric):
    """Base of metrics that no sum can express: it keeps confidence, correctness and cell of each sample in 16 bytes.

    Rows ``(N, 2)`` of int64: the cell, and the confidence in units of 2^-60 (exact above 2^-36 in float32 and above
    2^-8 in float64, to 2^-60 below) with the correctness in the last bit. Integers, because casting the enclosing
    module rounds float states.
    """

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False

    samples: list[Tensor] | Tensor

    def keep_samples(self) -> None:
        """Add the state; to be called once, by ``__init__`` of the subclass."""
        self.add_state("samples", [], dist_reduce_fx="cat")

    def append(self, confidence: Tensor, correct: Tensor, cell: Tensor) -> None:
        """Keep a batch, each argument ``(B,)``; a nan confidence stays nan."""
        scaled = working_precision(confidence) * 2.0**_SCALE_BITS
        undefined = scaled.isnan()
        key = 2 * torch.where(undefined, 0.0, scaled).long() + correct.long()
        rows = torch.stack((cell.long(), torch.where(undefined, _UNDEFINED, key)), dim=1)
        self.samples = self._batches()
        self.samples.append(rows)

    def kept(self) -> tuple[Tensor, Tensor, Tensor]:
        """Confidence in float64, correctness and cell of all samples, each ``(N,)``."""
        rows = torch.cat([self._no_rows(), *self._batches()])
        rows = rows.cpu() if rows.device.type == "mps" else rows
        cell, key = rows.unbind(1)
        confidence = (key >> 1).to(torch.float64) * 2.0**-_SCALE_BITS
        return torch.where(key == _UNDEFINED, torch.nan, confidence), key & 1, cell

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Combine processes; one without samples takes part with no rows of the right type and width."""
        if "samples" in self.metric_state and not len(self.samples):
            self.samples = [self._no_rows()]
        super().sync(*args, **kwargs)

    def _batches(self) -> list[Tensor]:
        """The rows as a list, which synchronising replaces by one tensor."""
        return [self.samples] if isinstance(self.samples, Tensor) else self.samples

    def _no_rows(self) -> Tensor:
        return torch.zeros(0, 2, dtype=torch.int64, device=self.device)
