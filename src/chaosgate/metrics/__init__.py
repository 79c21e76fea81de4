"""Accuracy, likelihood and calibration, counted exactly.

Functions first, :class:`torchmetrics.Metric` classes as thin shells over sums of integers: every result is the same
for every batch size, order of samples and number of processes.
"""

from chaosgate.metrics.adaptive import adaptive_bins, adaptive_calibration_error
from chaosgate.metrics.aggregate import aggregate_cells, corruption_means
from chaosgate.metrics.brier import BrierDecomposition, BrierScore
from chaosgate.metrics.calibration import AdaptiveCalibrationError, CalibrationError
from chaosgate.metrics.cells import CellMetrics
from chaosgate.metrics.collapse import collapsed
from chaosgate.metrics.figure import reliability_figure
from chaosgate.metrics.functional import (
    Reliability,
    Scores,
    bin_edges,
    calibration_bins,
    calibration_error,
    classification_scores,
)
from chaosgate.metrics.likelihood import NegativeLogLikelihood
from chaosgate.metrics.temperature import TemperatureFit, fit_temperature, temperature_scaling

__all__ = [
    "AdaptiveCalibrationError",
    "BrierDecomposition",
    "BrierScore",
    "CalibrationError",
    "CellMetrics",
    "NegativeLogLikelihood",
    "Reliability",
    "Scores",
    "TemperatureFit",
    "adaptive_bins",
    "adaptive_calibration_error",
    "aggregate_cells",
    "bin_edges",
    "calibration_bins",
    "calibration_error",
    "classification_scores",
    "collapsed",
    "corruption_means",
    "fit_temperature",
    "reliability_figure",
    "temperature_scaling",
]
