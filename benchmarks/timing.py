"""Interleaved times: every repetition times each contender once, so that other work on the machine
slows all of them alike.

The order rotates from round to round: who comes after whom decides who finds memory ready and who
must fetch it.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import cv2
import torch

Row = dict[str, Any]
Contenders = Mapping[str, Callable[[], object]]
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's mallopt


def rounds(contenders: Contenders, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each contender in ``repeats`` rounds, after one that fills caches."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(repeats + 1):
        order.append(order.pop(0))
        for name in order[:: 1 if number % 2 else -1]:
            start = perf_counter()
            contenders[name]()
            if number:
                times[name].append(1e3 * (perf_counter() - start))
    return times


def interleaved(contenders: Contenders, repeats: int) -> dict[str, float]:
    """Median milliseconds of each contender over :func:`rounds`."""
    return {name: median(times) for name, times in rounds(contenders, repeats).items()}


def compare(what: str, ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> Row:
    """Median milliseconds of ours and of the peer; above 1 the ratio says that ours is faster."""
    times = interleaved({"ours": ours, "peer": peer}, repeats)
    return versus(what, times["ours"], times["peer"])


def versus(what: str, ours: float, peer: float) -> Row:
    return {"what": what, "ours_ms": ours, "reference_ms": peer, "ratio": peer / ours}


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """OpenCV and torch on ``count`` threads inside."""
    before = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(count)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])


def keep_memory() -> None:
    """Let this process reuse large blocks of memory instead of returning them, as the allocator of
    a GPU does.

    Otherwise every feature map is made of fresh pages, and the time to get those from the system is
    most of a multiplication. It is the same for all contenders. Without glibc nothing happens.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    except (OSError, AttributeError):
        return
