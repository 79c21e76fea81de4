"""Every metric of every test cell in one pass: the torchmetrics class behind the tables."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from chaosgate.metrics.fixed_point import LARGEST, carry, from_fixed, to_fixed
from chaosgate.metrics.functional import Reliability, bin_edges, bin_index, calibration_error, classification_scores

# Columns of the two states.
_COUNT, _UNDEFINED, _INFINITE, _TOP1, _RANKED, _TOP5 = range(6)
_CONFIDENCE, _NLL, _BRIER = range(3)


class CellMetrics(Metric):
    r"""Accuracy, NLL, ECE, Brier score and confidence of many cells (corruption, severity) at once.

    The state is sums per cell and confidence bin, held as int64 (see :mod:`chaosgate.metrics.fixed_point`): its size
    does not depend on the number of samples, processes are combined by adding, and the results are the same bit for
    bit for every batch size, order and number of processes. Aggregate over cells with
    :func:`~chaosgate.metrics.aggregate_cells`, never by pooling samples: the paper averages the metrics of the cells.

    ``compute`` returns a dictionary of float64 tensors ``(num_cells,)``; a cell without samples has ``n = 0`` and nan
    elsewhere:

    ============== ====================================================================================
    ``n``          samples counted
    ``top1``       share of samples whose true class comes first (ties: the lower class number)
    ``top5``       the same among the first five; nan where there are fewer than five classes
    ``nll``        mean negative log-likelihood; inf where a true class had a logit of minus infinity
    ``ece``        expected calibration error over ``num_bins`` bins of equal width
    ``brier``      mean squared distance of the probabilities to the one-hot label, in [0, 2]
    ``confidence`` mean largest probability
    ``gap``        ``confidence - top1``: positive is over-confident. Read ``ece`` beside it
    ``nonfinite``  samples whose logits had a nan or an infinity that leaves no softmax
    ============== ====================================================================================

    A cell with such a sample has nan in every column but ``n`` and ``nonfinite``: no number is made up.

    Args:
        num_cells: number of cells; ``update`` says which cell each sample is in.
        num_bins: number of confidence bins.
        validate_args: check that targets and cells are in range. Costs one device synchronisation per batch.
        kwargs: passed on to :class:`torchmetrics.Metric`.

    >>> metric = CellMetrics(num_cells=2)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 3.0]])
    >>> metric.update(logits, target=torch.tensor([0, 1, 1]), cell=torch.tensor([0, 0, 1]))
    >>> metric.compute()["top1"]
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    counts: Tensor
    limbs: Tensor

    def __init__(self, num_cells: int = 1, num_bins: int = 15, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_cells < 1:
            raise ValueError(f"asked for {num_cells} cells; at least 1 is needed. Set num_cells.")
        if num_bins < 1:
            raise ValueError(f"asked for {num_bins} calibration bins; at least 1 is needed. Set num_bins, e.g. 15.")
        self.num_cells = num_cells
        self.num_bins = num_bins
        self.validate_args = validate_args
        self.add_state("counts", torch.zeros(num_cells, num_bins, 6, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("limbs", torch.zeros(num_cells, num_bins, 3, 2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor, cell: Tensor | None = None, weight: Tensor | None = None) -> None:
        """Count a batch: ``logits (B, K)``, ``target (B,)``, ``cell (B,)``; ``weight (B,)`` False marks padding.

        Padding may carry any target and cell; it is not looked at.
        """
        counted = torch.ones_like(target, dtype=torch.bool) if weight is None else weight.to(torch.bool)
        cell = torch.zeros_like(target) if cell is None else cell
        self._check(logits, target, cell, counted)
        target = torch.where(counted, target, 0).long()
        cell = torch.where(counted, cell, 0).long()

        scores = classification_scores(logits.detach(), target)
        representable = scores.nll <= LARGEST
        hits = (
            torch.ones_like(counted),
            ~scores.defined,
            scores.defined & ~representable,
            scores.rank < 1,
            torch.full_like(counted, logits.shape[1] >= 5),
            scores.rank < 5,
        )
        reals = torch.stack((scores.confidence, torch.where(representable, scores.nll, 0.0), scores.brier), dim=1)
        reals = torch.where(scores.defined[:, None], reals, 0.0)

        slot = cell * self.num_bins + bin_index(reals[:, _CONFIDENCE], self.num_bins)
        self.counts.flatten(0, 1).index_add_(0, slot, (torch.stack(hits, dim=1) & counted[:, None]).long())
        self.limbs.flatten(0, 1).index_add_(0, slot, to_fixed(reals) * counted[:, None, None])
        self.limbs = carry(self.limbs)

    def compute(self) -> dict[str, Tensor]:
        """Metrics per cell, each ``(num_cells,)`` in float64."""
        counts, sums = self._totals()
        n, undefined, infinite, top1, ranked, top5 = counts.sum(1).unbind(-1)
        means = sums.sum(1) / n[:, None]
        accuracy = torch.where(undefined > 0, torch.nan, top1 / n)
        return {
            "n": n,
            "top1": accuracy,
            "top5": torch.where((undefined > 0) | (ranked == 0), torch.nan, top5 / n),
            "nll": torch.where((infinite > 0) & (undefined == 0), torch.inf, means[:, _NLL]),
            "ece": calibration_error(self._reliability()),
            "brier": means[:, _BRIER],
            "confidence": means[:, _CONFIDENCE],
            "gap": means[:, _CONFIDENCE] - accuracy,
            "nonfinite": undefined,
        }

    def reliability(self) -> Reliability:
        """Sums per confidence bin, each ``(num_cells, num_bins)``, over all processes: call it on every one of them."""
        with self.sync_context():
            return self._reliability()

    def _reliability(self) -> Reliability:
        counts, sums = self._totals()
        edges = bin_edges(self.num_bins, device=counts.device)
        return Reliability(counts[..., _COUNT], sums[..., _CONFIDENCE], counts[..., _TOP1], edges)

    def _totals(self) -> tuple[Tensor, Tensor]:
        """Counts and real sums per (cell, bin) in float64; the latter are nan in a bin with an undefined sample."""
        sums = from_fixed(self.limbs)
        counts = self.counts.to(sums.device).to(torch.float64)
        return counts, torch.where(counts[..., _UNDEFINED, None] > 0, torch.nan, sums)

    def _check(self, logits: Tensor, target: Tensor, cell: Tensor, counted: Tensor) -> None:
        if logits.ndim != 2 or any(x.shape != logits.shape[:1] for x in (target, cell, counted)):
            raise ValueError(
                "logits must be (B, K), and target, cell and weight (B,); found "
                f"{tuple(logits.shape)}, {tuple(target.shape)}, {tuple(cell.shape)} and {tuple(counted.shape)}."
            )
        if not self.validate_args:
            return
        classes = logits.shape[1]
        wrong = (target < 0) | (target >= classes) | (cell < 0) | (cell >= self.num_cells)
        if bool((wrong & counted).any()):
            row = int((wrong & counted).nonzero()[0])
            raise ValueError(
                f"sample {row} has target {int(target[row])} and cell {int(cell[row])}; targets run from 0 to "
                f"{classes - 1} and cells to {self.num_cells - 1}. Check the data, or mark padding with weight=False."
            )
