"""``python -m benchmarks [NAME ...]``: ratios against named peers, measured in the same run.

Absolute times mean little on a shared machine. Without a name those that take minutes:

  gate          gates on feature maps against copy, multiply, torch and timm dropouts
  field         field synthesis against scipy's sine transform and a dense Cholesky sampler
  metrics       calibration metrics against torchmetrics
  corruptions   the paper's seven corruptions against straightforward implementations
  alternatives  steps and tests with label smoothing, mixup, EMA, ... against without
  data          transforms against torchvision's PIL pipeline

By name only, since they start processes and train:

  imports       first gate, help and first step against 'import torch' and 'import lightning'
  fit           epochs of chaosgate fit against a plain PyTorch loop
  study         a study of tiny runs against a plain loop over the same runs
"""

import argparse
import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pandas as pd

from benchmarks.timing import on_threads
from chaosgate.run.files import ALLOWED

QUICK = ["gate", "field", "metrics", "corruptions", "alternatives", "data"]
NAMES = [*QUICK, "imports", "fit", "study"]


def main(words: Sequence[str] | None = None) -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("benchmarks", description=__doc__, formatter_class=plain)
    parser.add_argument("names", nargs="*", metavar="NAME", default=QUICK, help=", ".join(NAMES))
    parser.add_argument("--threads", type=int, default=1, help="of the numerical libraries")
    parser.add_argument("--repeats", type=int, help="of each measurement; for study: runs")
    parser.add_argument("--json", type=Path, help="also write the rows of the last NAME there")
    given = parser.parse_args(words)
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    os.environ.setdefault(ALLOWED, "benchmarks")  # their configurations name classes of them
    os.environ["OMP_NUM_THREADS"] = str(given.threads)  # of the processes that they start
    for name in given.names:
        repeats = {"repeats": given.repeats} if given.repeats else {}
        with on_threads(given.threads):
            rows = import_module(f"benchmarks.{name}").run(**repeats)
        table = pd.DataFrame(rows).to_string(index=False, na_rep="", float_format="%.3g")
        print(f"\n{name}, {given.threads} thread(s)\n{table}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
