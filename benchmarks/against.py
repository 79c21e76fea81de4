"""``python benchmarks/against.py OLD_SRC``: the speed of this code against an earlier commit's.

OLD_SRC is the folder ``src`` of a work tree of the earlier commit. Each round starts a process of
either side, in alternating order, and each process times the subjects. The table shows the best of
all rounds, since other work on the machine only adds, and the ratio old / new (above 1: this code
is faster). Only public names that both have are used: photographs to batches, the paper's
corruptions, metrics, the gate, and fields.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

ROUNDS, REPEATS = 7, 5
HERE = Path(__file__).parents[1] / "src"


def subjects(photographs: Path) -> dict[str, Callable[[], object]]:
    import numpy as np
    import torch

    import chaosgate as cg
    from chaosgate.corruptions import PAPER, corrupt

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = cg.ImageFolder(str(photographs), image_size=224, batch_size=16, num_workers=0)
    images.setup("fit")
    photograph = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    logits = 3 * torch.randn(2000, 1000, generator=generator)
    target = torch.randint(0, 1000, (2000,), generator=generator)
    probs = logits.softmax(1)
    h = torch.randn(64, 512, 14, 14, generator=generator).requires_grad_()
    gate = cg.GaussianChaos(log_std=1.0)
    law = cg.MaxEntLaw(cg.DirichletLaplacian(), (28, 28), beta=1.0)

    def metrics() -> None:
        cells, ece = cg.metrics.CellMetrics(), cg.metrics.CalibrationError()
        for rows in torch.arange(2000).split(500):
            cells.update(logits[rows], target[rows])
            ece.update(probs[rows], target[rows])
        cells.compute()
        ece.compute()

    return {
        "photographs to batches": lambda: list(images.train_dataloader()),
        "corruptions": lambda: [corrupt(photograph, name, 3) for name in PAPER],
        "metrics": metrics,
        "gate, forward and backward": lambda: gate(h).backward(torch.ones_like(h)),
        "field": lambda: [law.sample(256, generator=generator) for _ in range(10)],
    }


def measure(photographs: Path) -> dict[str, float]:
    """Best milliseconds of each subject; the first call, which fills caches, does not count."""
    best: dict[str, float] = {}
    for name, call in subjects(photographs).items():
        call()
        times = []
        for _ in range(REPEATS):
            start = perf_counter()
            call()
            times.append(1e3 * (perf_counter() - start))
        best[name] = min(times)
    return best


def photographs(folder: Path) -> None:
    """48 JPEG files of 500 x 375 pixels in two classes."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 2), ("test", 2)):
        for kind in ("a", "b"):
            (folder / split / kind).mkdir(parents=True)
            for number in range(count):
                small = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
                small.resize((500, 375)).save(folder / split / kind / f"{number}.jpg", quality=90)


def main(old: Path) -> None:
    sides = {"old": old.resolve(), "new": HERE}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder))
        for number in range(ROUNDS):
            for side in sorted(sides, reverse=bool(number % 2)):
                environment = {**os.environ, "PYTHONPATH": str(sides[side]), "OMP_NUM_THREADS": "1"}
                command = [sys.executable, __file__, "--measure", folder]
                done = subprocess.run(command, env=environment, check=True, capture_output=True)
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'subject':<28}{'old ms':>10}{'new ms':>10}{'old / new':>11}")
    for name in found["new"][0]:
        ours, theirs = (min(one[name] for one in found[side]) for side in ("new", "old"))
        print(f"{name:<28}{theirs:>10.1f}{ours:>10.1f}{theirs / ours:>11.3f}")


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]))
