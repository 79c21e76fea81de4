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

from benchmarks.timing import Row, interleaved

_QUICKSTART = (
    "-c base -c data/fashion_mnist -c noise/gch --data.batch_size=64 --data.severities=[1,3,5] "
    "--model.backbone_args.channels=[8,16,32,64] --data.crop_padding=0 "
    "--data.horizontal_flip=false --trainer.enable_model_summary=false --trainer.accelerator=cpu"
)
_END = "--trainer.callbacks+=benchmarks.imports.EndAtFirstStep"


class EndAtFirstStep(Callback):
    """End the process when the first training step, or the first batch of a test, is done."""

    def on_train_batch_end(self, *unused: Any) -> None:
        os._exit(0)

    on_test_batch_end = on_train_batch_end  # type: ignore[assignment]


def run(repeats: int = 5) -> list[Row]:
    """Wall time of whole processes, the cases and their peers taking turns; medians.

    A test starts with the corrupted images of an earlier one, as the tests of a study do. The ratio
    is the case's time over its peer's.
    """
    with tempfile.TemporaryDirectory() as folder:

        def command(words: str) -> str:
            if "--help" not in words:
                words = f"{words} {_QUICKSTART} --data.cache_dir={folder}/cache"
            return f"from chaosgate.__main__ import main; raise SystemExit(main({words.split()}))"

        trained = f"--run_dir={folder}/trained"
        for words in (f"fit {trained} --trainer.max_steps=1", f"test {trained}"):
            _process(command(words))
        cases = {
            "import chaosgate and build a gate": (
                "import chaosgate; chaosgate.GaussianChaos(log_std=1)",
                "import torch",
            ),
            "fit --help": (command("fit --help"), "import lightning"),
            "fit, first step": (
                command(f"fit --run_dir={folder}/begun {_END}"),
                "import lightning",
            ),
            "test, first batch": (command(f"test {trained} {_END}"), "import lightning"),
        }
        codes = {code for pair in cases.values() for code in pair}
        times = interleaved({code: partial(_process, code) for code in codes}, repeats)
    return [
        {"case": case, "ms": times[code], "peer": peer, "peer_ms": times[peer]}
        | {"ratio": times[code] / times[peer], "more_ms": times[code] - times[peer]}
        for case, (code, peer) in cases.items()
    ]


def _process(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
