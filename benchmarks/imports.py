"""Time until something is done: each case is a new process, beside one that only imports the
library behind it.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

from lightning.pytorch import Callback

from benchmarks.timing import interleaved

_CHAOSGATE = "import sys; from chaosgate.__main__ import main; sys.exit(main({}))"
_QUICKSTART = [
    "-c",
    "base",
    "-c",
    "data/fashion_mnist",
    "-c",
    "noise/gch",
    "--data.batch_size=64",
] + [
    *(
        "--model.backbone_args.channels=[8,16,32,64]",
        "--data.severities=[1,3,5]",
        "--data.crop_padding=0",
    ),
    *(
        "--data.horizontal_flip=false",
        "--trainer.enable_model_summary=false",
        "--trainer.accelerator=cpu",
    ),
]
_END = "--trainer.callbacks+=benchmarks.imports.EndAtFirstStep"


class EndAtFirstStep(Callback):
    """End the process when the first training step, or the first batch of a test, is done."""

    def on_train_batch_end(self, *unused: Any) -> None:
        os._exit(0)

    def on_test_batch_end(self, *unused: Any) -> None:
        os._exit(0)


def run(threads: int = 1, repeats: int = 5) -> list[dict[str, Any]]:
    """Wall time of whole processes, the cases and their peers taking turns; medians.

    A test starts with the corrupted images of an earlier one, as the tests of a study do.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        words = [*_QUICKSTART, f"--data.cache_dir={folder}/cache"]
        trained, begun = f"--run_dir={folder}/trained", f"--run_dir={folder}/begun"
        for before in (["fit", "--trainer.max_steps=1"], ["test"]):
            _process(_CHAOSGATE.format([before[0], *words, *before[1:], trained]), environment)
        cases = {
            "import chaosgate and build a gate": (
                "import chaosgate; chaosgate.GaussianChaos(log_std=1)",
                "import torch",
            ),
            "chaosgate fit --help": (_CHAOSGATE.format(["fit", "--help"]), "import lightning"),
            "chaosgate fit, first step": (
                _CHAOSGATE.format(["fit", *words, begun, _END]),
                "import lightning",
            ),
            "chaosgate test, first batch": (
                _CHAOSGATE.format(["test", *words, trained, _END]),
                "import lightning",
            ),
        }
        codes = {code for pair in cases.values() for code in pair}
        times = interleaved({code: partial(_process, code, environment) for code in codes}, repeats)
    return [
        {
            "case": case,
            "ms": times[code],
            "peer": peer,
            "peer ms": times[peer],
            "ratio": times[code] / times[peer],
        }
        | {"more, ms": times[code] - times[peer]}
        for case, (code, peer) in cases.items()
    ]


def _process(code: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{code[:200]} ended with {done.returncode}: {done.stderr[-1000:]}")
