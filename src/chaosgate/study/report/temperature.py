"""The columns "+T" of a table: the same networks after post-hoc temperature scaling."""

from collections.abc import Sequence

from chaosgate.study.report.collect import Finished

PLUS_T = ("nll", "ece")
"""Metrics that every table also shows after temperature scaling, as far as the study has them."""
ON_TEST = "test"


def scaled(metric: str) -> str:
    """The key of a metric after temperature scaling, in result rows and tables."""
    return f"{metric}_T"


def with_scaled(metrics: Sequence[str]) -> list[str]:
    """The columns of a table: the metrics, and behind them those after temperature scaling.

    >>> with_scaled(["top1", "ece"])
    ['top1', 'ece', 'ece_T']
    """
    return [*metrics, *(scaled(metric) for metric in PLUS_T if metric in metrics)]


def is_scaled(metric: str) -> bool:
    """Whether a column is one after temperature scaling."""
    return metric.endswith("_T")


def temperatures(ones: Sequence[Finished]) -> dict[int, float]:
    """The fitted temperature of every seed that has one."""
    found = {
        one.run.seed: [row["temperature"] for row in one.rows if row.get("temperature") is not None] for one in ones
    }
    return {seed: float(values[0]) for seed, values in found.items() if values}


def fitted_on_test(ones: Sequence[Finished]) -> bool:
    """Whether a temperature has seen the test images, as where the protocol selects checkpoints on them."""
    return any(row.get("temperature_split") == ON_TEST for one in ones for row in one.rows)
