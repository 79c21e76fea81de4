"""Accuracy, likelihood and calibration, counted exactly.

Functions first, :class:`torchmetrics.Metric` classes as thin shells over sums of integers: every result is the same
for every batch size, order of samples and number of processes.

Names load on first use, so that a report, which only averages cells, does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.metrics.aggregate import aggregate_cells, collapsed, corruption_means
    from chaosgate.metrics.calibration import AdaptiveCalibrationError, CalibrationError
    from chaosgate.metrics.cells import CellMetrics
    from chaosgate.metrics.figure import reliability_figure
    from chaosgate.metrics.functional import (
        Reliability,
        Scores,
        adaptive_bins,
        adaptive_calibration_error,
        bin_edges,
        calibration_bins,
        calibration_error,
        classification_scores,
        classwise_calibration_error,
        effective_counts,
    )
    from chaosgate.metrics.ranking import area_under_risk_coverage, area_under_roc, risk_coverage
    from chaosgate.metrics.scoring import BrierDecomposition, BrierScore, NegativeLogLikelihood
    from chaosgate.metrics.temperature import TemperatureFit, fit_temperature, temperature_scaling

_HOME = {
    "aggregate": ("aggregate_cells", "collapsed", "corruption_means"),
    "calibration": ("AdaptiveCalibrationError", "CalibrationError"),
    "cells": ("CellMetrics",),
    "figure": ("reliability_figure",),
    "functional": (
        "Reliability",
        "Scores",
        "adaptive_bins",
        "adaptive_calibration_error",
        "bin_edges",
        "calibration_bins",
        "calibration_error",
        "classification_scores",
        "classwise_calibration_error",
        "effective_counts",
    ),
    "ranking": ("area_under_risk_coverage", "area_under_roc", "risk_coverage"),
    "scoring": ("BrierDecomposition", "BrierScore", "NegativeLogLikelihood"),
    "temperature": ("TemperatureFit", "fit_temperature", "temperature_scaling"),
}
_LOCATION = {name: home for home, names in _HOME.items() for name in names}

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
    "area_under_risk_coverage",
    "area_under_roc",
    "bin_edges",
    "calibration_bins",
    "calibration_error",
    "classification_scores",
    "classwise_calibration_error",
    "collapsed",
    "corruption_means",
    "effective_counts",
    "fit_temperature",
    "reliability_figure",
    "risk_coverage",
    "temperature_scaling",
]


def __getattr__(name: str) -> Any:
    if name in _LOCATION:
        return getattr(import_module(f"{__name__}.{_LOCATION[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
