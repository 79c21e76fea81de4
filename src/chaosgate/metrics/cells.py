"""Every metric of every test cell in one pass: the torchmetrics class behind the tables."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chaosgate.metrics.checks import check_num_bins, check_range, check_shapes
from chaosgate.metrics.functional import (
    Reliability,
    adaptive_calibration_error,
    bin_edges,
    bin_index,
    calibration_error,
    classification_scores,
)
from chaosgate.metrics.sums import PARTS, KeptSamples, carry, join, sum_by_slot

_COUNT, _TOP1, _TOP5, _CONFIDENCE, _NLL, _BRIER = range(6)  # columns of the state


class _Columns(dict[str, Tensor]):
    """Named columns ``(num_cells,)``, for one cell too.

    torchmetrics turns one-element results into scalars and rebuilds the mapping from them; this undoes it.
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        super().__init__((name, column.reshape(-1)) for name, column in columns.items())


class CellMetrics(KeptSamples):
    r"""Accuracy, NLL, ECE, Brier score and confidence of many cells (corruption, severity) at once.

    The state is sums per cell and confidence bin, held as integers (see :mod:`chaosgate.metrics.sums`): its size
    does not depend on the number of samples, processes are combined by adding, and batch size, order and number of
    processes leave no trace. Aggregate over cells with :func:`~chaosgate.metrics.aggregate_cells`, never by pooling
    samples: the paper averages the metrics of the cells.

    ``compute`` returns a dictionary of float64 tensors ``(num_cells,)``; a cell without samples has ``n = 0`` and nan
    elsewhere:

    ================ ====================================================================================
    ``n``            samples counted
    ``top1``         share of samples whose true class comes first (ties: the lower class number)
    ``top5``         the same among the first five; nan where there are fewer than five classes
    ``nll``          mean negative log-likelihood; inf where a true class had a logit of minus infinity
    ``ece``          expected calibration error over ``num_bins`` bins of equal width
    ``brier``        mean squared distance of the probabilities to the one-hot label, in [0, 2]
    ``confidence``   mean largest probability
    ``gap``          ``confidence - top1``: positive is over-confident. Read ``ece`` beside it
    ``adaptive_ece`` the same as ``ece`` over bins of equal mass; only with ``adaptive_bins``
    ================ ====================================================================================

    Logits with a nan or a plus infinity have no softmax: a cell with such a sample keeps its ``n`` and is nan in every
    other entry. No number is made up.

    Args:
        num_cells: number of cells; ``update`` says which cell each sample is in.
        num_bins: number of confidence bins.
        adaptive_bins: number of equal-mass bins for ``adaptive_ece``. Their borders are known only at the end, so this
            keeps 16 bytes per sample.
        validate_args: check that targets and cells are in range. Costs device synchronisations.
        kwargs: passed on to :class:`torchmetrics.Metric`.

    >>> metric = CellMetrics(num_cells=2)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 3.0]])
    >>> metric.update(logits, target=torch.tensor([0, 1, 1]), cell=torch.tensor([0, 0, 1]))
    >>> metric.compute()["top1"]
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    sums: Tensor

    def __init__(
        self,
        num_cells: int = 1,
        num_bins: int = 15,
        adaptive_bins: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_cells < 1:
            raise ValueError(f"asked for {num_cells} cells; at least 1 is needed. Set num_cells.")
        check_num_bins(num_bins)
        self.num_cells = num_cells
        self.num_bins = num_bins
        self.adaptive_bins = adaptive_bins
        self.validate_args = validate_args
        zeros = torch.zeros(num_cells, num_bins, 6, PARTS, dtype=torch.int64)
        self.add_state("sums", zeros, dist_reduce_fx="sum")
        if adaptive_bins is not None:
            check_num_bins(adaptive_bins)
            self.keep_samples()

    def update(
        self,
        logits: Tensor,
        target: Tensor,
        cell: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> None:
        """Count a batch: ``logits (B, K)``, ``target (B,)``, ``cell (B,)``; ``weight (B,)`` False marks padding.

        Padding may carry any logits, target and cell; it does not count.
        """
        counted = (
            torch.ones_like(target, dtype=torch.bool) if weight is None else weight.to(torch.bool)
        )
        cell = torch.zeros_like(target) if cell is None else cell
        check_shapes("logits", logits, target=target, cell=cell, weight=counted)
        if self.validate_args:
            check_range("target", target, logits.shape[1], counted)
            check_range("cell", cell, self.num_cells, counted)
        target = torch.where(counted, target, 0).long()
        cell = torch.where(counted, cell, 0).long()

        scores = classification_scores(logits.detach(), target)
        confidence = scores.confidence
        defined = confidence.isfinite()
        top1, top5 = (
            torch.where(defined, (scores.rank < k).to(confidence), torch.nan) for k in (1, 5)
        )
        if logits.shape[1] < 5:
            top5 = torch.full_like(top5, torch.nan)
        columns = (torch.ones_like(confidence), top1, top5, confidence, scores.nll, scores.brier)
        values = torch.where(counted[:, None], torch.stack(columns, dim=1), 0.0)

        slot = cell * self.num_bins + bin_index(values[:, _CONFIDENCE], self.num_bins)
        batch = sum_by_slot(values, slot, self.num_cells * self.num_bins)
        self.sums = carry(self.sums + batch.view_as(self.sums))
        if self.adaptive_bins is not None:
            self.append(
                torch.where(counted, confidence, torch.nan),
                scores.rank < 1,
                torch.where(counted, cell, -1),
            )

    def compute(self) -> dict[str, Tensor]:
        """Metrics per cell, each ``(num_cells,)`` in float64."""
        totals = join(carry(self.sums).sum(1))
        n, top1, top5, confidence, nll, brier = totals.unbind(-1)
        result = {"n": n, "top1": top1 / n, "top5": top5 / n, "nll": nll / n}
        result |= {
            "ece": calibration_error(self._reliability()),
            "brier": brier / n,
            "confidence": confidence / n,
        }
        result["gap"] = result["confidence"] - result["top1"]
        if self.adaptive_bins is not None:
            confidences, correct, cell = self.kept()
            errors = [
                adaptive_calibration_error(
                    confidences[cell == c], correct[cell == c], self.adaptive_bins
                )
                for c in range(self.num_cells)
            ]
            result["adaptive_ece"] = torch.stack(errors)
        return _Columns(result)

    def reliability(self) -> Reliability:
        """Sums per confidence bin, each ``(num_cells, num_bins)``, over all processes: call it on every one of them."""
        with self.sync_context():
            return self._reliability()

    def _reliability(self) -> Reliability:
        sums = join(self.sums)
        edges = bin_edges(self.num_bins, device=sums.device)
        return Reliability(sums[..., _COUNT], sums[..., _CONFIDENCE], sums[..., _TOP1], edges)
