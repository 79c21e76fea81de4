r"""Sums that do not depend on the order of addition.

Floating-point addition is not associative, so a float sum changes with the batch size and the number of processes;
and a float state inside a module is rounded by ``module.to(torch.bfloat16)``, or refused by a device without float64.
Integers have neither problem. A value :math:`v` is held as two int64 numbers, its *limbs*,

.. math:: v = 2^{-12}\,a + 2^{-52}\,b, \qquad 0 \le b < 2^{40},

and limbs are added. The resolution is :math:`2^{-52}` per summand (that of a float64 near one), the range of the sum
is :math:`2^{51}`, and every sum is the same bit for bit however the samples were split. Moving low bits up with
:func:`carry` after each batch leaves room for :math:`2^{23}` rows per batch and any number of batches.
"""

import torch
from torch import Tensor

COARSE_BITS = 12
FINE_BITS = 40

LARGEST = 2.0**28
"""Largest single value: :math:`2^{23}` of them still fit the range."""


def to_fixed(values: Tensor) -> Tensor:
    r"""Limbs ``(..., 2)`` of finite values ``(...)`` up to :data:`LARGEST` in size.

    Scaling by a power of two, ``floor`` and the difference are exact in float32 and in float64; only bits below
    :math:`2^{-52}` are rounded.
    """
    scaled = values * 2.0**COARSE_BITS
    coarse = scaled.floor()
    fine = ((scaled - coarse) * 2.0**FINE_BITS).round()
    return torch.stack((coarse, fine), dim=-1).to(torch.int64)


def carry(limbs: Tensor) -> Tensor:
    """Move what exceeds the fine limb into the coarse one; the value ``(..., 2)`` stands for is unchanged."""
    coarse, fine = limbs.unbind(-1)
    return torch.stack((coarse + (fine >> FINE_BITS), fine & (2**FINE_BITS - 1)), dim=-1)


def from_fixed(limbs: Tensor) -> Tensor:
    """Values ``(...)`` in float64 of limbs ``(..., 2)``; on the CPU where the device has no float64."""
    if limbs.device.type == "mps":
        limbs = limbs.cpu()
    coarse, fine = carry(limbs).to(torch.float64).unbind(-1)
    return coarse * 2.0**-COARSE_BITS + fine * 2.0 ** -(COARSE_BITS + FINE_BITS)
