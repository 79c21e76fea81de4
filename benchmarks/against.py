"""``python benchmarks/against.py OLD_SRC``: the speed of this code against an earlier commit's.

OLD_SRC is the folder ``src`` of a work tree of the earlier commit. Each round starts a process of
either side, in alternating order, and each process times the subjects. The table shows the best of
all rounds, since other work on the machine only adds, and the ratio old / new (above 1: this code
is faster). Only public names that both have are used.
"""

import json
import os
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ROUNDS, REPEATS = 7, 5


def subjects(photographs: str) -> dict[str, Callable[[], object]]:
    import chaosgate as cg
    from chaosgate.corruptions import PAPER, corrupt

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = cg.ImageFolder(photographs, image_size=224, batch_size=16, num_workers=0)
    images.setup("fit")
    photograph = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    logits = 3 * torch.randn(4, 500, 1000, generator=generator)
    target = torch.randint(0, 1000, (4, 500), generator=generator)
    probs = logits.softmax(2)
    h = torch.randn(64, 512, 14, 14, generator=generator).requires_grad_()
    gate = cg.GaussianChaos(log_std=1.0)
    law = cg.MaxEntLaw(cg.DirichletLaplacian(), (28, 28), beta=1.0)

    def metrics() -> None:
        cells, ece = cg.metrics.CellMetrics(), cg.metrics.CalibrationError()
        for number in range(4):
            cells.update(logits[number], target[number])
            ece.update(probs[number], target[number])
        cells.compute()
        ece.compute()

    return {
        "photographs to batches": lambda: list(images.train_dataloader()),
        "corruptions": lambda: [corrupt(photograph, name, 3) for name in PAPER],
        "metrics": metrics,
        "gate, forward and backward": lambda: gate(h).backward(torch.ones_like(h)),
        "field": lambda: [law.sample(256, generator=generator) for _ in range(10)],
    }


def measure(photographs: str) -> dict[str, float]:
    """Best milliseconds of each subject; the first call, which fills caches, does not count."""
    best = {}
    for name, call in subjects(photographs).items():
        call()
        best[name] = 1e3 * min(timeit.repeat(call, number=1, repeat=REPEATS))
    return best


def write_photographs(folder: Path) -> None:
    """56 JPEG files of 500 x 375 pixels in two classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 2), ("test", 2)):
        for kind in ("a", "b"):
            (folder / split / kind).mkdir(parents=True)
            for number in range(count):
                small = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
                small.resize((500, 375)).save(folder / split / kind / f"{number}.jpg", quality=90)


def main(old: str) -> None:
    sides = {"old": str(Path(old).resolve()), "new": str(Path(__file__).parents[1] / "src")}
    found: dict[str, list[Any]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder))
        for number in range(ROUNDS):
            for side in sorted(sides, reverse=bool(number % 2)):
                environment = {**os.environ, "PYTHONPATH": sides[side], "OMP_NUM_THREADS": "1"}
                command = [sys.executable, __file__, "--measure", folder]
                printed = subprocess.check_output(command, env=environment)
                found[side].append(json.loads(printed.splitlines()[-1]))
    print(f"{'subject':<28}{'old ms':>10}{'new ms':>10}{'old / new':>11}")
    for name in found["new"][0]:
        ours, theirs = (min(one[name] for one in found[side]) for side in ("new", "old"))
        print(f"{name:<28}{theirs:>10.1f}{ours:>10.1f}{theirs / ours:>11.3f}")


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1])
