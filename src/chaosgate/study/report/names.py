"""What metrics and the parts of a test are called, and in which direction a metric is better. No
torch.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from chaosgate.metrics.aggregate import PLUS_T as PLUS_T
from chaosgate.metrics.aggregate import SUFFIX, Cell

CLEAN, CORRUPTED = MAIN = ("clean", "corrupted")
PRIMARY = "nll_T"
ON_TEST = "†"
"""Mark of a number whose temperature has seen the test images; stands beside it in every table."""

FROM_LOGITS = ("classwise_ece", "brier_reliability", "brier_resolution")
"""Metrics of a study that need the kept logits: they depend on every class."""

FROM_OUTPUTS = ("aurc", "ood_auroc", *FROM_LOGITS)
"""Metrics of a study that no result row has: they are made from what a test kept of every image."""


class Name(NamedTuple):
    """The head of a column, and the direction of improvement; ``zero`` for the closer to zero."""

    title: str
    better: Literal["higher", "lower", "zero"] | None


NAMES = {
    "top1": Name("Top-1", "higher"),
    "top5": Name("Top-5", "higher"),
    "nll": Name("NLL", "lower"),
    "ece": Name("ECE", "lower"),
    "adaptive_ece": Name("ECE, equal mass", "lower"),
    "classwise_ece": Name("ECE, classwise", "lower"),
    "brier": Name("Brier", "lower"),
    "brier_reliability": Name("Brier rel.", "lower"),
    "brier_resolution": Name("Brier res.", "higher"),
    "aurc": Name("AURC", "lower"),
    "ood_auroc": Name("OOD AUROC", "higher"),
    "gap": Name("conf-acc", "zero"),
    "confidence": Name("conf", None),
}
"""By the key that result rows use."""


def scaled(metric: str) -> str:
    """The key of a metric after temperature scaling."""
    return metric + SUFFIX


def is_scaled(metric: str) -> bool:
    """Whether a key is that of a metric after temperature scaling."""
    return metric.endswith(SUFFIX)


def better(metric: str) -> str | None:
    """The direction of improvement; None for what is no metric or has none."""
    name = NAMES.get(metric.removesuffix(SUFFIX))
    return None if name is None else name.better


def title(metric: str) -> str:
    """The head of a column.

    >>> title("gap"), title("ece_T")
    ('conf-acc', 'ECE+T')
    """
    return NAMES[metric.removesuffix(SUFFIX)].title + ("+T" if is_scaled(metric) else "")


def columns_of(metrics: Iterable[str]) -> list[str]:
    """Columns of a study's tables: Top-1, the primary one, then its metrics, also after scaling.

    >>> columns_of(["ece"])
    ['top1', 'nll_T', 'ece', 'ece_T']
    """
    own = [[one, *([scaled(one)] if one in PLUS_T else [])] for one in metrics]
    return list(dict.fromkeys(["top1", PRIMARY, *sum(own, [])]))


def parts_of(cells: Iterable[Cell]) -> dict[str, Sequence[Sequence[Cell]]]:
    """Parts of a test with their cells by corruption: clean, corrupted, each of both axes."""
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell[0], []).append(cell)
    clean = by_name.pop(CLEAN, None)
    groups: dict[str, Sequence[Sequence[Cell]]] = {CLEAN: [clean]} if clean else {}
    if by_name:
        groups[CORRUPTED] = list(by_name.values())
        groups |= {name: [own] for name, own in by_name.items()}
        every = [cell for own in by_name.values() for cell in own]
        for level in sorted({level for _, level in every}):
            groups[f"severity {level}"] = [[cell] for cell in every if cell[1] == level]
    return groups
