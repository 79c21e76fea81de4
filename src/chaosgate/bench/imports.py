"""Time until something can be done: each case is a new process, beside one that only imports the library behind it."""

import os
import subprocess
import sys
from functools import partial
from typing import Any

from chaosgate.bench.timing import interleaved

_GATE = "import chaosgate; chaosgate.GaussianChaos(log_std=1.0)"
_HELP = "import sys; from chaosgate.__main__ import main; main(['fit', '--help'])"
CASES = {
    "import chaosgate and build a gate": (_GATE, "import torch"),
    "chaosgate fit --help": (_HELP, "import lightning"),
}


def run(threads: int = 1, repeats: int = 5) -> list[dict[str, Any]]:
    """Wall time of whole processes, the cases and their peers taking turns; medians."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    codes = {code for pair in CASES.values() for code in pair}
    times = interleaved({code: partial(_process, code, environment) for code in codes}, repeats)
    return [
        {"case": case, "ms": times[code], "peer": peer, "peer ms": times[peer], "ratio": times[code] / times[peer]}
        | {"more, ms": times[code] - times[peer]}
        for case, (code, peer) in CASES.items()
    ]


def _process(code: str, environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.DEVNULL)
