"""State of the metrics that no sum can express: the confidences themselves."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from chaosgate.metrics.functional import working_precision

_SCALE_BITS = 60
_UNDEFINED = -1


class KeptSamples(Metric):
    """Base of metrics that keep confidence, correctness and cell of each sample: 16 bytes a sample.

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
