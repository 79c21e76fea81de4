"""Time to turn white noise into fields, against scipy's sine transform and a dense Cholesky
sampler.

All three start from the same float32 whites; nobody draws. Scipy transforms only, ours and the
dense one also scale.
"""

from typing import Any

import scipy.fft
import torch
from torch import Tensor

from benchmarks.timing import interleaved, on_threads
from chaosgate.field import DirichletLaplacian, Grid
from chaosgate.field.operator import grid_text

GRIDS: tuple[Grid, ...] = (
    *((side, side) for side in (7, 14, 28, 56, 112)),
    *((7, 28), (28, 7), (14, 56), (56, 14), (28, 112), (112, 28)),
    *((256, 256), (512, 512)),
)
BATCH = 64
DENSE_SITES = 56 * 56
"""Largest grid for the dense sampler: its matrix takes 39 MB there, and 16 times as much on the
next.
"""


def run(
    threads: int = 1, repeats: int = 31, grids: tuple[Grid, ...] = GRIDS
) -> list[dict[str, Any]]:
    """Median milliseconds for 64 fields per grid, ours and scipy taking turns; a ratio below 1
    means ours is faster.

    Grids of more than 100,000 sites are repeated a fifth as often.
    """
    with on_threads(threads):
        return [_measure(grid, threads, repeats) for grid in grids]


def _measure(grid: Grid, threads: int, repeats: int) -> dict[str, Any]:
    operator, sites = DirichletLaplacian(), grid[0] * grid[1]
    white = torch.randn(BATCH, *grid, generator=torch.Generator().manual_seed(0))
    array = white.numpy()
    contenders = {
        "ours": lambda: operator.color(
            white
        ),  # the first round, which is not counted, builds the factor
        "scipy": lambda: scipy.fft.dstn(array, type=1, axes=(1, 2), norm="ortho", workers=threads),
    }
    ours, theirs = interleaved(
        contenders, repeats if sites <= 100_000 else -(-repeats // 5)
    ).values()
    row: dict[str, Any] = {
        "grid": grid_text(grid),
        "ours_ms": ours,
        "scipy_ms": theirs,
        "ratio": ours / theirs,
    }
    if sites <= DENSE_SITES:  # on its own: its matrix drives everything else out of the cache
        root = _dense_root(operator, grid)
        row |= interleaved({"dense_cholesky_ms": lambda: white.view(BATCH, sites) @ root}, repeats)
    return row


def _dense_root(operator: DirichletLaplacian, grid: Grid) -> Tensor:
    """Cholesky factor of the covariance, transposed: what does not know the structure."""
    root: Tensor = torch.linalg.cholesky(operator.green(grid))
    return root.T.contiguous().float()
