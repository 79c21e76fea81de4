"""BatchNorm under noise: running statistics are gathered with the gate on and used with it off.

Here is how far apart the two are, and a pass that gathers them again without noise, as a control.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from chaosgate.inject.calls import Call
from chaosgate.inject.survey import eager, evaluation

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment


@dataclass(frozen=True)
class BatchNormShift:
    r"""What a gate does to the statistics that one BatchNorm gathers.

    ``mean_shift`` is the mean over channels of :math:`|\mu'-\mu|/\sigma`, ``variance_ratio`` that of
    :math:`\sigma'^2/\sigma^2`, with the gate on (primed) and off, on the same images.
    """

    module: str
    mean_shift: float
    variance_ratio: float


def batchnorm_shift(attachment: "Attachment", batch: Tensor | Call) -> list[BatchNormShift]:
    """The shift at every BatchNorm behind a gate; those in front of it see no difference and are left out."""
    with evaluation(attachment.model), torch.no_grad(), eager():
        plain = _input_statistics(attachment.model, Call.of(batch))
        with attachment.forced(draw=-1):
            gated = _input_statistics(attachment.model, Call.of(batch))
    shifts = []
    for name, (mean, variance) in plain.items():
        noisy_mean, noisy_variance = gated[name]
        if torch.equal(mean, noisy_mean):
            continue
        safe = variance.clamp_min(1e-12)
        shifts.append(
            BatchNormShift(
                name, float(((noisy_mean - mean).abs() / safe.sqrt()).mean()), float((noisy_variance / safe).mean())
            )
        )
    return shifts


def _input_statistics(model: nn.Module, call: Call) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def recorder(name: str) -> Any:
        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].double().transpose(0, 1).flatten(1)
            found[name] = (x.mean(1), x.var(1, correction=0))

        return record

    handles = [m.register_forward_pre_hook(recorder(n)) for n, m in model.named_modules() if isinstance(m, _BatchNorm)]
    try:
        call.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return found


def reestimate_bn(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Gather the running statistics of every BatchNorm anew from ``batches`` of images, without noise.

    Each statistic becomes the plain average over the batches. Modes and momenta are restored; weights are not touched.
    Call it with no gate attached. Returns the number of batches used.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm with running statistics; there is nothing to estimate."
        )
    momenta = [norm.momentum for norm in norms]
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise ValueError("reestimate_bn got no batches; the running statistics were left as they are.")
    count = 0
    with evaluation(model), torch.no_grad():
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the cumulative average
            norm.train()
        for batch in chain([first], waiting):
            model(batch)
            count += 1
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return count
