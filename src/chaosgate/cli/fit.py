"""Until studies call :mod:`chaosgate.cli.training`: command lines instead of configurations."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """How a command ended: its exit status, and the rows that a test has written."""

    status: int
    rows: list[dict[str, Any]]


def execute(arguments: Sequence[str]) -> Outcome:
    from chaosgate.cli import training

    rows: list[dict[str, Any]] = []

    def work() -> None:
        rows.extend(training.execute(arguments[0], training.compose(arguments[1:])))

    return Outcome(training.exit_status(work), rows)


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    from chaosgate.cli.training import compose

    return compose(arguments[1:])
