"""Time to turn white noise into fields, against scipy's sine transform and a dense Cholesky
sampler.

All three start from the same float32 whites; nobody draws. Scipy transforms only, ours and the
dense one also scale.
"""

from functools import partial
from typing import Any

import scipy.fft
import torch

from benchmarks.timing import Row, compare, interleaved
from chaosgate.field import DirichletLaplacian, Grid

GRIDS: tuple[Grid, ...] = (
    *((side, side) for side in (7, 14, 28, 56, 112, 256, 512)),
    *((7, 28), (28, 7), (14, 56), (56, 14), (28, 112), (112, 28)),
)
DENSE_SITES = 56 * 56  # the matrix takes 39 MB there, and 16 times as much on the next grid


def run(repeats: int = 31, grids: tuple[Grid, ...] = GRIDS) -> list[Row]:
    """Median milliseconds for 64 fields per grid."""
    rows = []
    for grid in grids:
        sites = grid[0] * grid[1]
        white = torch.randn(64, *grid, generator=torch.Generator().manual_seed(0))
        ours, peer = partial(DirichletLaplacian().color, white), partial(_scipy, white.numpy())
        often = repeats if sites <= 100_000 else -(-repeats // 5)
        row = compare(f"{grid[0]}x{grid[1]}", ours, peer, often)
        if sites <= DENSE_SITES:  # on its own: its matrix drives everything else out of the cache
            root = torch.linalg.cholesky(DirichletLaplacian().green(grid)).T.contiguous().float()
            row |= interleaved({"dense_ms": partial(torch.mm, white.view(64, sites), root)}, often)
        rows.append(row)
    return rows


def _scipy(white: Any) -> Any:
    threads = torch.get_num_threads()
    return scipy.fft.dstn(white, type=1, axes=(1, 2), norm="ortho", workers=threads)
