"""What warm processes save: a study of tiny runs by ``chaosgate study run``, and the same runs in a fresh process each.

``study run`` imports everything once and forks its workers from there. Its time is that of the whole command: planning,
runs, report. The other way is ``chaosgate worker ORDER`` for one run after the other, without planning and report.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml
from rich.console import Console
from rich.progress import track

from chaosgate.cli.fit import parsed
from chaosgate.run.directory import RunDirectory
from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.execute.worker import write_order

STUDY: dict[str, Any] = {
    "base": ["base", "data/fashion_mnist"],
    "overrides": {
        "trainer.max_epochs": 1,
        "trainer.limit_train_batches": 3,
        "trainer.accelerator": "cpu",
        "trainer.enable_model_summary": False,
        "model.backbone_args": {"channels": [8, 8, 8, 8]},
        "data.init_args.batch_size": 16,
        "data.init_args.corruptions": None,
    },
    "methods": {"gch": "noise/gch"},
    "reference": "gch",
    "checkpoint": "last",
}


def run(threads: int = 1, repeats: int = 20) -> list[dict[str, Any]]:
    """Seconds on the wall for a study of ``repeats`` runs, one at a time, both ways; ``same_rows`` must be true."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tiny.yaml")
        path.write_text(yaml.safe_dump({**STUDY, "seeds": list(range(repeats))}), encoding="utf-8")
        warm, fresh = (
            plan_runs(load_study(path), Path(folder, name), parsed) for name in ("warm", "fresh")
        )
        words = [
            "study",
            "run",
            str(path),
            f"--root={Path(folder, 'warm')}",
            "--jobs=1",
            f"--threads={threads}",
        ]
        warm_s = _seconds(folder, [words], f"a study of {repeats} runs")
        orders = [["worker", str(write_order(one, threads))] for one in fresh]
        fresh_s = _seconds(folder, orders, "a fresh process for each")
        same = _numbers(warm) == _numbers(fresh)
    row = {
        "study": f"{repeats} tiny runs",
        "warm_s": warm_s,
        "fresh_s": fresh_s,
        "ratio": warm_s / fresh_s,
    }
    return [{**row, "saved_per_run_s": (fresh_s - warm_s) / repeats, "same_rows": same}]


def _seconds(folder: str, commands: Sequence[Sequence[str]], what: str) -> float:
    start = perf_counter()
    for words in track(commands, what, console=Console(stderr=True)):
        command = [sys.executable, "-m", "chaosgate", *words]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"chaosgate {words[0]} ended with {done.returncode}: {done.stderr[-1000:]}"
            )
    return perf_counter() - start


def _numbers(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    rows = [row for one in runs for row in RunDirectory(one.directory).rows()]
    return [(row["seed"], row["n"], row["top1"], row["nll"], row["ece"]) for row in rows]
