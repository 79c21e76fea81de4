"""Accuracy, likelihood and calibration, independent of batch size and number of processes.

The :class:`torchmetrics.Metric` classes wrap functions. Results do not depend on batch size, order
of samples or number of processes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.metrics.aggregate import aggregate_cells, collapsed
    from chaosgate.metrics.figure import reliability_figure
    from chaosgate.metrics.functional import (
        adaptive_calibration_error,
        calibration_bins,
        calibration_error,
        classification_scores,
        classwise_calibration_error,
    )
    from chaosgate.metrics.modules import (
        BrierScore,
        CalibrationError,
        CellMetrics,
        NegativeLogLikelihood,
    )
    from chaosgate.metrics.ranking import area_under_risk_coverage, area_under_roc
    from chaosgate.metrics.temperature import fit_temperature, temperature_scaling

NUM_BINS = 15
"""Bins of the calibration error, as in the paper."""

# Names load on first use: a report, which only averages cells, needs neither torch nor matplotlib.
_FILES = ("aggregate", "functional", "modules", "ranking", "temperature", "figure")

__all__ = [
    "BrierScore",
    "CalibrationError",
    "CellMetrics",
    "NegativeLogLikelihood",
    "adaptive_calibration_error",
    "aggregate_cells",
    "area_under_risk_coverage",
    "area_under_roc",
    "calibration_bins",
    "calibration_error",
    "classification_scores",
    "classwise_calibration_error",
    "collapsed",
    "fit_temperature",
    "reliability_figure",
    "temperature_scaling",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        modules = (import_module(f"{__name__}.{file}") for file in _FILES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
