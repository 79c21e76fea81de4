"""``chaosgate bench``: tables of ratios against named peers, measured in the same run."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaosgate.cli.flags import whole

SUBJECTS = {
    "gate": "gates on feature maps against copy, multiply, torch and timm dropouts",
    "alternatives": "training steps and tests with label smoothing, mixup, EMA, ... against the same without",
    "field": "field synthesis against scipy's sine transform and a dense Cholesky sampler",
    "metrics": "calibration metrics against torchmetrics",
    "corruptions": "the paper's seven corruptions against straightforward implementations",
    "import": "a gate ready to use against 'import torch', 'chaosgate fit --help' against 'import lightning'",
    "fit": "epochs of chaosgate fit against a plain PyTorch loop with the same network, batches and validation",
    "study": "a study of tiny runs in warm processes against a fresh process for each run; --repeats is how many runs",
    "data": "decoding and transforms against torchvision's PIL pipeline, all cells in one pass against one by one",
}


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark and print its table; ``--json FILE`` keeps the rows."""
    flags = parser()
    options = flags.parse_args(arguments[1:])
    if options.json not in (None, "-") and not Path(options.json).absolute().parent.is_dir():
        flags.error(f"argument --json: no folder for {options.json}; make it first")
    chosen: dict[str, Any] = {"threads": options.threads}
    if options.repeats is not None:
        chosen["repeats"] = options.repeats
    if options.images is not None:
        if options.subject != "data":
            flags.error("argument --images: only bench data reads photographs")
        chosen["folder"] = options.images
    module = "imports" if options.subject == "import" else options.subject  # import is not a name in Python
    try:
        rows = import_module(f"chaosgate.bench.{module}").run(**chosen)
    except ImportError as error:
        flags.error(str(error))
    except (OSError, ValueError) as error:
        if options.images is None:
            raise
        flags.error(f"argument --images: {error}")
    if options.json == "-":
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    table = _table(options.subject, options.threads, rows)
    wide = 24 + 16 * len(table.columns)  # numbers are not to be cut off where there is no terminal to ask
    Console(width=max(Console().width, wide)).print(table)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="chaosgate bench",
        description="Ratios against named peers in the same run: interleaved repetitions; medians, for gates means "
        "over all steps. Absolute times mean little on a shared machine; the ratios are what counts.",
        epilog="subjects: " + "; ".join(f"{name}: {what}" for name, what in SUBJECTS.items()),
    )
    made.add_argument("subject", choices=SUBJECTS)
    made.add_argument("--threads", type=whole(1), default=1, help="threads of the numerical libraries (default 1)")
    made.add_argument("--repeats", type=whole(1), default=None, help="repetitions of each measurement")
    made.add_argument("--images", metavar="FOLDER", help="data: measure on these JPEG files, unchanged")
    made.add_argument("--json", metavar="FILE", help="write the rows to FILE; - prints them instead of the table")
    return made


def _table(subject: str, threads: int, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"bench {subject}, {threads} thread(s); times in ms, interleaved repetitions")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name, justify="left" if isinstance(rows[0].get(name), str) else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
