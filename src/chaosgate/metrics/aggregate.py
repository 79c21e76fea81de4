"""Test cells, the mean over cells, and when a small calibration error means failure. No torch."""

from collections.abc import Mapping
from math import fsum
from typing import NamedTuple

SUFFIX = "_T"
"""Suffix of metrics after temperature scaling, in result rows and tables."""

SCALED = ("nll", "ece", "brier", "confidence", "gap", "adaptive_ece")
"""Metrics that a temperature changes. The accuracy does not change."""

PLUS_T = ("nll", "ece")
"""Metrics that every table also shows after temperature scaling."""


class Cell(NamedTuple):
    """A part of a test: a corruption at a severity from 1 to 5, or the clean set, ``CLEAN``."""

    corruption: str
    severity: int


CLEAN = Cell("clean", 0)
ByCell = Mapping[Cell, float] | Mapping[tuple[str, int], float]


def aggregate_cells(values: ByCell) -> float:
    """Mean over corruptions of the mean over severities, the paper's number (app. imagenetc_full).

    It averages the metrics of all cells except the clean one; pooling the samples of all cells
    would give a different, usually smaller ECE. Every corruption needs the same severities, because
    means over different cells are not comparable. A NaN in a cell makes the result NaN.

    >>> aggregate_cells({("fog", 1): 0.8, ("fog", 2): 0.6, ("snow", 1): 0.5, ("snow", 2): 0.3})
    0.55
    """
    cells = {Cell(*cell): float(value) for cell, value in values.items() if cell[0] != "clean"}
    names, levels = {cell.corruption for cell in cells}, {cell.severity for cell in cells}
    absent = sorted({(name, s) for name in names for s in levels} - cells.keys())
    if absent or not cells:
        raise ValueError(
            f"no value for {len(absent)} of {len(names) * len(levels)} corrupted cells"
            f"{f', among them {absent[:3]}' if absent else ''}. Test them, or leave out their "
            "corruption or severity everywhere."
        )
    means = [fsum(cells[Cell(name, s)] for s in levels) / len(levels) for name in names]
    return fsum(means) / len(means)


def collapsed(
    top1: float,
    confidence: float,
    reference_top1: float,
    keep: float = 0.5,
    num_classes: int | None = None,
) -> bool:
    r"""Whether a network has lost both accuracy and confidence, so that its ECE is not meaningful.

    Such a network can have a small ECE: at :math:`\gamma = 0.35` the paper reports .043 on
    ImageNet-C, the smallest of its sweep, at a Top-1 of .050 instead of .382 (tab.
    imagenetc_gamma). The rule: with chance level
    :math:`c = 1/K` (0 if ``num_classes`` is not given), both

    .. math:: \text{top1} \le c + \text{keep}\,(\text{reference} - c), \qquad
              \text{confidence} \le c + \text{keep}\,(\text{reference} - c).

    An inaccurate but confident network is not flagged, because its ECE is large. With few classes,
    give ``num_classes``; otherwise a network at chance level may pass.

    Args:
        top1: accuracy of the network in question.
        confidence: its mean largest probability.
        reference_top1: accuracy of the same network without noise on the same data.
        keep: share of the reference's margin above chance below which a network has collapsed.
        num_classes: number of classes, for the chance level.

    >>> collapsed(top1=0.050, confidence=0.007, reference_top1=0.382)
    True
    >>> collapsed(top1=0.383, confidence=0.44, reference_top1=0.382)
    False
    """
    shares = (top1, confidence, reference_top1)
    if not all(0 <= share <= 1 for share in shares):  # also a NaN
        raise ValueError(f"top1, confidence and reference_top1 lie in [0, 1]; found {shares}.")
    chance = 0.0 if num_classes is None else 1 / num_classes
    limit = chance + keep * (reference_top1 - chance)
    return reference_top1 > chance and max(top1, confidence) <= limit
