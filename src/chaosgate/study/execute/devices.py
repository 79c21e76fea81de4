"""Which GPUs there are, found without loading torch, and which worker gets which."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` allows, or all that ``nvidia-smi`` lists; none without a GPU."""
    allowed = os.environ.get(VISIBLE)
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


def least_used(devices: Sequence[str], in_use: Iterable[str | None]) -> str | None:
    """The device with the fewest workers, the first of several; None if there is none.

    >>> least_used(["0", "1"], ["0"]), least_used(["0", "1"], ["0", "1"]), least_used([], [])
    ('1', '0', None)
    """
    used = list(in_use)
    return min(devices, key=used.count) if devices else None
