"""Names of metrics and of the parts of a test, and directions of improvement. No torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from chaosgate.metrics.aggregate import PLUS_T as PLUS_T
from chaosgate.metrics.aggregate import SUFFIX, Cell

ROWS = "rows.jsonl.xz"  # of a packed study
CLEAN, CORRUPTED = MAIN = ("clean", "corrupted")
PRIMARY = "nll_T"
ON_TEST = "†"
"""Mark of a number whose temperature was fitted on the test images."""

NAMES = {
    "top1": ("Top-1", "higher"),
    "top5": ("Top-5", "higher"),
    "nll": ("NLL", "lower"),
    "ece": ("ECE", "lower"),
    "adaptive_ece": ("ECE, equal mass", "lower"),
    "brier": ("Brier", "lower"),
    "gap": ("conf-acc", ""),
    "confidence": ("conf", ""),
    "temperature": ("T", ""),
    "energy": ("energy", ""),
}
"""Head of a column and direction of improvement, by the key that result rows use."""


def is_packed(folder: Path) -> bool:
    """Whether a path is the folder of a packed study."""
    return (folder / ROWS).is_file()


def scaled(metric: str) -> str:
    """The key of a metric after temperature scaling."""
    return metric + SUFFIX


def is_scaled(metric: str) -> bool:
    """Whether a key is that of a metric after temperature scaling."""
    return metric.endswith(SUFFIX)


def better(metric: str) -> str:
    """The direction of improvement; empty if there is none."""
    return NAMES.get(metric.removesuffix(SUFFIX), ("", ""))[1]


def title(metric: str) -> str:
    """The head of a column.

    >>> title("gap"), title("ece_T")
    ('conf-acc', 'ECE+T')
    """
    return NAMES[metric.removesuffix(SUFFIX)][0] + "+T" * is_scaled(metric)


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
