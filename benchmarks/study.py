"""What a study costs beside its runs: ``chaosgate study run`` against a plain loop over its runs.

The loop calls :func:`chaosgate.study.execute.run.run` in one process. Tiny runs of embedded images,
and of image folders with two data workers. Also the time of ``study status``.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml

from chaosgate.run.directory import RunDirectory

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


def run(threads: int = 1, repeats: int = 12, folders: bool = True) -> list[dict[str, Any]]:
    """Seconds on the wall for a study of ``repeats`` runs and for the loop, and their ratio."""
    rows = []
    for images in ("embedded images", *(["image folders, two workers"] if folders else [])):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            content = {**STUDY, "seeds": list(range(repeats))}
            if images != "embedded images":
                data = {"class_path": "chaosgate.ImageFolder", "init_args": _images(folder)}
                (folder / "data.yaml").write_text(yaml.safe_dump({"data": data}))
                content |= {"base": ["base", "data.yaml"]}
                workers = {"data.init_args.num_workers": 2, "model.backbone": "resnet10_small"}
                content["overrides"] = {**STUDY["overrides"], **workers}
            path = folder / "tiny.yaml"
            path.write_text(yaml.safe_dump(content))
            options = [str(path), f"--root={folder / 'study'}"]
            words = ["-m", "chaosgate", "study", "run", *options, f"--threads={threads}"]
            study_s = _seconds(words)
            loop_s = _seconds(["-c", LOOP, str(path), str(folder / "loop"), str(threads)])
            status_s = _seconds(["-m", "chaosgate", "study", "status", *options])
            same = _numbers(folder / "study" / "tiny") == _numbers(folder / "loop" / "tiny")
        row: dict[str, Any] = {"study": f"{repeats} tiny runs, {images}", "study_s": study_s}
        ratio = study_s / loop_s
        more = {"loop_s": loop_s, "ratio": ratio, "status_s": status_s, "same_rows": same}
        rows.append({**row, **more})
    return rows


def _images(folder: Path) -> dict[str, Any]:
    """Folders of 105 small images, and the arguments of their data module."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 15)):
        for kind in ("a", "b", "c"):
            place = folder / "images" / split / kind
            place.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return {"root": str(folder / "images"), "image_size": 32}


def _seconds(words: Sequence[str]) -> float:
    start = perf_counter()
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words[:3]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return perf_counter() - start


def _numbers(folder: Path) -> list[tuple[Any, ...]]:
    rows = [row for path in sorted(folder.glob("*-*")) for row in RunDirectory(path).rows()]
    return [(row["seed"], row["n"], row["top1"], row["nll"], row["ece"]) for row in rows]
