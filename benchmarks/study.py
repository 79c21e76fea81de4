"""What a study costs beside its runs: ``chaosgate study run`` against a plain loop over its runs.

The loop calls :func:`chaosgate.study.execute.run.run` in one process. Tiny runs of embedded images.
Also the time of ``study status``.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import yaml

from benchmarks.timing import Row
from chaosgate.run.files import RunDirectory

STUDY: dict[str, Any] = {
    "base": ["base", "data/fashion_mnist"],
    "overrides": {
        "trainer.max_epochs": 1,
        "trainer.limit_train_batches": 3,
        "trainer.accelerator": "cpu",
        "trainer.enable_model_summary": False,
        "model.backbone": "resnet10_small",
        "model.backbone_args": {"channels": [8, 8, 8, 8]},
        "data.init_args.batch_size": 16,
        "data.init_args.corruptions": None,
    },
    "methods": {"gch": "noise/gch"},
    "reference": "gch",
    "checkpoint": "last",
}
LOOP = """
import sys
from pathlib import Path
import torch
from chaosgate.cli.training import compose, execute
from chaosgate.study import load_study, plan_runs
from chaosgate.study.execute.run import run
torch.set_num_threads(int(sys.argv[3]))
for one in plan_runs(load_study(sys.argv[1]), Path(sys.argv[2]), compose):
    run(one, execute)
"""


def run(repeats: int = 12) -> list[Row]:
    """Seconds on the wall for a study of ``repeats`` runs and for the loop, and their ratio."""
    with tempfile.TemporaryDirectory() as name:
        folder, threads = Path(name), str(torch.get_num_threads())
        path = folder / "tiny.yaml"
        path.write_text(yaml.safe_dump({**STUDY, "seeds": list(range(repeats))}))
        study = ["-m", "chaosgate", "study"]
        options = [str(path), f"--root={folder / 'study'}"]
        row: Row = {"study": f"{repeats} tiny runs"}
        row["study_s"] = _seconds([*study, "run", *options, f"--threads={threads}"])
        row["loop_s"] = _seconds(["-c", LOOP, str(path), str(folder / "loop"), threads])
        row["ratio"] = row["study_s"] / row["loop_s"]
        row["status_s"] = _seconds([*study, "status", *options])
        found = [_numbers(folder / kind / "tiny") for kind in ("study", "loop")]
        return [{**row, "same_rows": found[0] == found[1]}]


def _seconds(words: list[str]) -> float:
    start = perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def _numbers(folder: Path) -> list[tuple[Any, ...]]:
    rows = [row for path in sorted(folder.glob("*-*")) for row in RunDirectory(path).rows()]
    return [(row["seed"], row["n"], row["top1"], row["nll"], row["ece"]) for row in rows]
