"""What metrics are called, and in which direction they are better. Needs no torch."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from chaosgate.metrics.aggregate import PLUS_T as PLUS_T
from chaosgate.metrics.aggregate import SUFFIX

ON_TEST = "†"
"""Mark of a number whose temperature has seen the test images; stands beside it in every table."""

FROM_LOGITS = ("classwise_ece", "brier_reliability", "brier_resolution")
"""Metrics of a study that need the kept logits: they depend on every class."""

FROM_OUTPUTS = ("aurc", "ood_auroc", *FROM_LOGITS)
"""Metrics of a study that no result row has: they are made from what a test kept of every image."""


class Name(NamedTuple):
    """How a metric is written.

    Args:
        title: Head of a column.
        latex: The same in LaTeX, without the arrow.
        better: The direction of improvement; ``zero`` for the closer to zero, None where there is none.
    """

    title: str
    latex: str
    better: Literal["higher", "lower", "zero"] | None


NAMES = {
    "top1": Name("Top-1", "Top-1", "higher"),
    "top5": Name("Top-5", "Top-5", "higher"),
    "nll": Name("NLL", "NLL", "lower"),
    "ece": Name("ECE", "ECE", "lower"),
    "adaptive_ece": Name("ECE, equal mass", "ECE (equal mass)", "lower"),
    "classwise_ece": Name("ECE, classwise", "ECE (classwise)", "lower"),
    "brier": Name("Brier", "Brier", "lower"),
    "brier_reliability": Name("Brier rel.", "Brier rel.", "lower"),
    "brier_resolution": Name("Brier res.", "Brier res.", "higher"),
    "aurc": Name("AURC", "AURC", "lower"),
    "ood_auroc": Name("OOD AUROC", "OOD AUROC", "higher"),
    "gap": Name("conf-acc", "conf.$-$acc.", "zero"),
    "confidence": Name("conf", "conf.", None),
}
"""By the key that result rows use."""


def scaled(metric: str) -> str:
    """The key of a metric after temperature scaling."""
    return metric + SUFFIX


def is_scaled(metric: str) -> bool:
    """Whether a key is that of a metric after temperature scaling."""
    return metric.endswith(SUFFIX)


def with_scaled(metrics: Sequence[str]) -> list[str]:
    """The columns of a table: the metrics, and behind them those after temperature scaling.

    >>> with_scaled(["top1", "ece"])
    ['top1', 'ece', 'ece_T']
    """
    return [*metrics, *(scaled(metric) for metric in PLUS_T if metric in metrics)]


def title(metric: str) -> str:
    """The head of a column.

    >>> title("gap"), title("ece_T")
    ('conf-acc', 'ECE+T')
    """
    return NAMES[metric.removesuffix(SUFFIX)].title + ("+T" if is_scaled(metric) else "")


def latex_title(metric: str) -> str:
    r"""The same in LaTeX, with an arrow in the direction of improvement.

    >>> latex_title("ece_T")
    'ECE+T$\\downarrow$'
    """
    name = NAMES[metric.removesuffix(SUFFIX)]
    arrow = {"higher": r"$\uparrow$", "lower": r"$\downarrow$"}.get(name.better or "", "")
    return name.latex + ("+T" if is_scaled(metric) else "") + arrow


def improvement(metric: str, before: float, after: float) -> float:
    """By how much ``after`` is better than ``before``: negative if it is worse, 0 for a metric without a direction.

    >>> improvement("ece", 0.05, 0.04) > 0, improvement("gap", -0.01, 0.02) > 0
    (True, False)
    """
    better = NAMES[metric.removesuffix(SUFFIX)].better
    if better is None:
        return 0.0
    return {"higher": after - before, "lower": before - after, "zero": abs(before) - abs(after)}[
        better
    ]
