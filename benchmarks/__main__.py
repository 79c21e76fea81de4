"""``python -m benchmarks SUBJECT``: ratios against named peers, measured in the same run."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from json import dumps
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.table import Table

from chaosgate.cli.commands import CommandParser
from chaosgate.run.config_files import ALLOWED

Subject = Literal[
    "gate", "field", "metrics", "corruptions", "alternatives", "data", "imports", "fit", "study"
]


def bench(
    subject: Subject = "gate",
    *,
    threads: PositiveInt = 1,
    repeats: PositiveInt | None = None,
    images: Path | None = None,
    json: Path | None = None,
) -> None:
    """Measure ratios against named peers in the same run: interleaved repetitions, medians.

    Absolute times mean little on a shared machine.

      gate          gates on feature maps against copy, multiply, torch and timm dropouts
      field         field synthesis against scipy's sine transform and a dense Cholesky sampler
      metrics       calibration metrics against torchmetrics
      corruptions   the paper's seven corruptions against straightforward implementations
      alternatives  steps and tests with label smoothing, mixup, EMA, ... against without
      data          transforms against torchvision's PIL pipeline; all cells in one pass
      imports       first gate, help and first step against 'import torch' and 'import lightning'
      fit           epochs of chaosgate fit against a plain PyTorch loop
      study         a study of tiny runs against a plain loop over the same runs

    Args:
        subject: What to measure.
        threads: Threads of the numerical libraries.
        repeats: Repetitions of each measurement; for study the number of runs.
        images: With data: measure on the JPEG files of this folder.
        json: Also write the rows there.
    """
    settings: dict[str, Any] = {"threads": threads} | ({"repeats": repeats} if repeats else {})
    if images is not None:
        settings["folder"] = str(images)
    rows = import_module(f"benchmarks.{subject}").run(**settings)
    if json is not None:
        json.write_text(dumps(rows, indent=1) + "\n", encoding="utf-8")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(
        title=f"{subject}, {threads} thread(s); times in ms unless the column says otherwise"
    )
    for name in columns:
        table.add_column(name, justify="left" if isinstance(rows[0].get(name), str) else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    Console(width=max(Console().width, 24 + 16 * len(columns))).print(
        table
    )  # numbers are not cut off


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> None:
    os.environ.setdefault(
        ALLOWED, "benchmarks"
    )  # configurations of the benchmarks name its classes
    parser = CommandParser(bench, "python -m benchmarks")
    bench(**parser.parse_args(list(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
