"""Test cells, the mean over cells, and when a small calibration error means failure. No torch."""

from collections.abc import Collection, Iterable, Mapping
from math import fsum, isfinite
from typing import NamedTuple

SUFFIX = "_T"
"""Ends the key of a metric after temperature scaling, in result rows and tables."""

SCALED = ("nll", "ece", "brier", "confidence", "gap", "adaptive_ece")
"""Metrics that a temperature changes; it keeps the order of the classes, and so the accuracy."""

PLUS_T = ("nll", "ece")
"""Metrics that every table also shows after temperature scaling."""


class Cell(NamedTuple):
    """A part of a test: a corruption at a severity from 1 to 5, or the clean set, ``CLEAN``."""

    corruption: str
    severity: int


CLEAN = Cell("clean", 0)
ByCell = Mapping[Cell, float] | Mapping[tuple[str, int], float]


def corruption_means(
    values: ByCell,
    missing: Collection[tuple[str, int]] = (),
    severities: Iterable[int] | None = None,
) -> dict[str, float]:
    """Mean over severities of each corruption's cells, the clean cell left out (tab. imagenetc_breakdown).

    Args:
        values: metric of each cell ``(corruption, severity)``. The corruption ``"clean"`` is not averaged.
        missing: cells known to be absent. Any other hole in the grid of corruptions and severities is an error:
            a mean over the cells that happen to be there is not comparable with the mean over all.
        severities: the severities each corruption must have; by default all that occur.

    >>> corruption_means({("clean", 0): 0.9, ("fog", 1): 0.8, ("fog", 2): 0.6})
    {'fog': 0.7}
    """
    cells = {
        (name, severity): float(value)
        for (name, severity), value in values.items()
        if name != "clean"
    }
    known = {(name, severity) for name, severity in missing}
    if unneeded := sorted(known & cells.keys()):
        raise ValueError(
            f"cells {unneeded} are declared missing but have values. Take them out of `missing`."
        )
    levels = sorted(
        {severity for _, severity in cells.keys() | known}
        if severities is None
        else set(severities)
    )
    corruptions = dict.fromkeys(name for name, _ in [*cells, *sorted(known)])
    grid = [(name, level) for name in corruptions for level in levels]
    if stray := sorted(cells.keys() - set(grid)):
        raise ValueError(
            f"cells {stray} lie outside the severities asked for, {levels}. Leave them out."
        )
    if absent := [cell for cell in grid if cell not in cells and cell not in known]:
        raise ValueError(
            f"no value for {len(absent)} of {len(grid)} cells, among them {absent[:3]}. "
            "Evaluate them, or list them in `missing` and say so beside the number."
        )
    rows = {
        name: [cells[name, level] for level in levels if (name, level) in cells]
        for name in corruptions
    }
    return {name: fsum(row) / len(row) for name, row in rows.items() if row}


def aggregate_cells(
    values: ByCell,
    missing: Collection[tuple[str, int]] = (),
    severities: Iterable[int] | None = None,
) -> float:
    """Mean over corruptions of the mean over severities, the paper's ImageNet-C number (app. imagenetc_full).

    It averages the metric of each cell; pooling the samples of all cells first would give another, usually smaller
    ECE. Arguments as in :func:`corruption_means`; nan in a cell makes the result nan.

    >>> aggregate_cells({("fog", 1): 0.8, ("fog", 2): 0.6, ("snow", 1): 0.5, ("snow", 2): 0.3})
    0.55
    """
    means = corruption_means(values, missing, severities)
    if not means:
        raise ValueError(
            f"no corrupted cell among {sorted(values)}; an aggregate needs at least one."
        )
    return fsum(means.values()) / len(means)


def collapsed(
    top1: float,
    confidence: float,
    reference_top1: float,
    keep: float = 0.5,
    num_classes: int | None = None,
) -> bool:
    r"""Whether a network is well calibrated only because it is both inaccurate and unconfident (tab. imagenetc_gamma).

    A network that gives up accuracy and confidence together has a small ECE: at :math:`\gamma = 0.35` the paper finds
    .043 on ImageNet-C, the smallest of its sweep, at a top-1 of .050 where .382 is possible. The rule: with chance
    level :math:`c = 1/K` (0 if ``num_classes`` is not given), both

    .. math:: \text{top1} \le c + \text{keep}\,(\text{reference} - c), \qquad
              \text{confidence} \le c + \text{keep}\,(\text{reference} - c).

    That is: at least half of the reference's lead is lost, and confidence fell with it. A network that failed and
    stayed confident is not flagged: its ECE is large and speaks for itself. With few classes give ``num_classes``, or
    a network at chance (.5 of 2) passes for half as good as the reference.

    Args:
        top1: accuracy of the network in question.
        confidence: its mean largest probability.
        reference_top1: accuracy of the same network without noise on the same data.
        keep: share of the reference's lead over chance below which the network counts as collapsed.
        num_classes: number of classes, for the chance level.

    >>> collapsed(top1=0.050, confidence=0.007, reference_top1=0.382)
    True
    >>> collapsed(top1=0.383, confidence=0.44, reference_top1=0.382)
    False
    """
    given = {"top1": top1, "confidence": confidence, "reference_top1": reference_top1}
    if bad := {
        name: value for name, value in given.items() if not (isfinite(value) and 0 <= value <= 1)
    }:
        raise ValueError(
            f"shares must lie in [0, 1]; found {bad}. A run without finite numbers needs no flag."
        )
    chance = 0.0 if num_classes is None else 1 / num_classes
    if reference_top1 <= chance:
        return False  # nothing to lose: the reference is no better than chance
    limit = chance + keep * (reference_top1 - chance)
    return top1 <= limit and confidence <= limit
