"""From the metrics of cells to one number per table entry."""

from collections.abc import Collection, Iterable, Mapping
from math import fsum

Cell = tuple[str, int]


def corruption_means(
    values: Mapping[Cell, float],
    missing: Collection[Cell] = (),
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
    cells = {(name, severity): float(value) for (name, severity), value in values.items() if name != "clean"}
    known = {(name, severity) for name, severity in missing}
    if unneeded := sorted(known & cells.keys()):
        raise ValueError(f"cells {unneeded} are declared missing but have values. Take them out of `missing`.")
    levels = sorted({severity for _, severity in cells.keys() | known} if severities is None else set(severities))
    corruptions = dict.fromkeys(name for name, _ in [*cells, *sorted(known)])
    grid = [(name, level) for name in corruptions for level in levels]
    if stray := sorted(cells.keys() - set(grid)):
        raise ValueError(f"cells {stray} lie outside the severities asked for, {levels}. Leave them out.")
    if absent := [cell for cell in grid if cell not in cells and cell not in known]:
        raise ValueError(
            f"no value for {len(absent)} of {len(grid)} cells, among them {absent[:3]}. "
            "Evaluate them, or list them in `missing` and say so beside the number."
        )
    rows = {name: [cells[name, level] for level in levels if (name, level) in cells] for name in corruptions}
    return {name: fsum(row) / len(row) for name, row in rows.items() if row}


def aggregate_cells(
    values: Mapping[Cell, float],
    missing: Collection[Cell] = (),
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
        raise ValueError(f"no corrupted cell among {sorted(values)}; an aggregate needs at least one.")
    return fsum(means.values()) / len(means)
