"""Accuracy, likelihood and calibration, counted exactly.

Functions first, :class:`torchmetrics.Metric` classes as thin shells over sums.
"""

from chaosgate.metrics.aggregate import aggregate_cells, corruption_means
from chaosgate.metrics.cells import CellMetrics
from chaosgate.metrics.figure import reliability_figure
from chaosgate.metrics.functional import (
    Reliability,
    bin_edges,
    calibration_bins,
    calibration_error,
    classification_scores,
)

__all__ = [
    "CellMetrics",
    "Reliability",
    "aggregate_cells",
    "bin_edges",
    "calibration_bins",
    "calibration_error",
    "classification_scores",
    "corruption_means",
    "reliability_figure",
]
